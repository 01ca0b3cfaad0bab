"""Drawn tokens: their distribution, seeds, batches with greedy neighbours, and compiled graphs."""

from __future__ import annotations

import asyncio

import pytest
import torch

from trnx.jobs.continuous import ContinuousEngine
from trnx.jobs.engines import GenerationEngine
from trnx.jobs.sampling import GREEDY, Sampling, draw, number_of

CPU = torch.device("cpu")
DRAWS = 4000


def shares(scores: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """How often each token is drawn by numbers that are spread evenly over [0, 1)."""
    numbers = (torch.arange(DRAWS) / DRAWS)[:, None]
    rows = scores.expand(DRAWS, -1)
    found = draw(
        rows, torch.full((DRAWS, 1), temperature), torch.full((DRAWS, 1), top_p), numbers
    ).argmax(-1)
    return torch.bincount(found, minlength=scores.numel()) / DRAWS


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_model_says(temperature: float) -> None:
    scores = torch.tensor([0.0, 2.0, -1.0, 0.5, 2.0, -torch.inf])
    wanted = torch.softmax(scores / temperature, -1)
    found = shares(scores, temperature, 1.0)
    torch.testing.assert_close(found, wanted, atol=2 / DRAWS, rtol=0)
    assert found[-1] == 0


def test_top_p_keeps_the_most_likely_tokens_that_reach_it() -> None:
    chances = torch.tensor([0.1, 0.5, 0.05, 0.3, 0.05])
    found = shares(chances.log(), 1.0, 0.75)
    wanted = torch.tensor([0, 0.625, 0, 0.375, 0])
    torch.testing.assert_close(found, wanted, atol=2 / DRAWS, rtol=0)
    assert shares(chances.log(), 1.0, 1e-9)[1] == 1


def test_a_large_vocabulary_and_the_largest_number() -> None:
    scores = torch.zeros(1, 130_001)
    largest = torch.tensor([[1 - 2**-24]])
    found = draw(scores, torch.ones(1, 1), torch.full((1, 1), 0.5), largest)
    assert found.isinf().sum() == 1


def test_greedy_rows_stay_as_they_are() -> None:
    scores = torch.randn(2, 9)
    rows = torch.tensor([[0.0], [1.0]])
    found = draw(scores, rows, torch.ones(2, 1), torch.full((2, 1), 0.5))
    assert torch.equal(found[0], scores[0])
    assert found[1].isinf().sum() == 1


def test_numbers_follow_seed_and_position() -> None:
    found = [number_of(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(100)]
    assert all(0 <= number < 1 for number in found)
    assert len(set(found)) == len(found)
    assert abs(sum(found) / len(found) - 0.5) < 0.05
    assert number_of(7, 3) == number_of(7, 3)


@torch.no_grad()
def expected(writer: GenerationEngine, prompt: str, count: int, sampling: Sampling) -> list[int]:
    """The same text by the model alone, without cache, padding, batches or compilation."""
    tokens = writer.tokens(prompt)
    first = len(tokens)
    for _ in range(count):
        scores = writer.module(input_ids=torch.tensor([tokens])).logits[:, -1].float()
        asked = sampling.temperature, sampling.top_p, number_of(sampling.seed, len(tokens))
        rows = [torch.tensor([[value]]) for value in asked]
        tokens.append(int(draw(scores, *rows).argmax()))
    return tokens[first:]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "trnx"])
def test_batches_of_drawn_and_greedy_texts(backend: str) -> None:
    writer = GenerationEngine("llama-tiny", "eager", None, CPU)
    asked = [
        ("a", GREEDY),
        ("tensor", Sampling(0.7, 0.9, 1)),
        ("x" * 20, Sampling(1.3, 1.0, 2)),
        ("tensor", Sampling(0.7, 0.9, 1)),
        ("tensor", Sampling(0.7, 0.9, 3)),
        ("b", GREEDY),
    ]
    text = ContinuousEngine(writer.module, 2, 32, 8, backend, None)
    text.warm_up()
    text.start()

    async def tokens(prompt: str, sampling: Sampling) -> list[int]:
        return [token async for token in text.stream(writer.tokens(prompt), 6, (), sampling)]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(tokens(*one) for one in asked))

    try:
        found = asyncio.run(all_of_them())
    finally:
        text.stop()
    assert found == [expected(writer, prompt, 6, sampling) for prompt, sampling in asked]
    assert found[1] == found[3] != found[4]


def test_each_shape_is_two_whole_graphs_that_are_compiled_before_the_first_request() -> None:
    writer = GenerationEngine("llama-tiny", "eager", None, CPU)
    text = ContinuousEngine(writer.module, 2, 32, 8, "aot_eager", None)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    text.warm_up()
    assert counters["stats"]["unique_graphs"] == 2 * 3
    assert not counters["graph_break"]
    text.start()

    async def run() -> None:
        for sampling in (GREEDY, Sampling(1.0, 0.9, 1)):
            prompt = writer.tokens("tensor engine")
            assert len([token async for token in text.stream(prompt, 4, (), sampling)]) == 4

    try:
        asyncio.run(run())
    finally:
        text.stop()
    assert counters["stats"]["unique_graphs"] == 2 * 3
