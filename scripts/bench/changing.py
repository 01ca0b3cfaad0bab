"""Measures of `models.py` in which something is new at every call: numbers, sizes, routing."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

NUMBERS = 200
STEPS = 21


def _seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


FUNCTIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "nki": lambda x, i: torch.relu(x * i + 1) / i,
    "compared": lambda x, i: torch.where(x > i, x, i),
    "power": lambda x, i: (x.abs() * 0.1) ** i,
    "int64": lambda x, i: (x.long() * i + 1) // i,
    "filled": lambda x, i: torch.full((64, 96), i) + x,
    "layer": lambda x, i: torch.softmax((x @ x.t()) / i, -1),
}


def new_numbers() -> dict[str, float]:
    """Mean milliseconds of a call with a Python integer that is new, small tensors; `worst` too."""
    x = torch.randn(64, 96)
    found: dict[str, float] = {}
    for name, function in FUNCTIONS.items():
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="trnx", dynamic=True)
        compiled(x, 3)
        spent = 0.0
        for number in range(5, 5 + NUMBERS):
            spent += _seconds(lambda: compiled(x, number))  # noqa: B023  called now
            want = function(x, number)
            torch.testing.assert_close(compiled(x, number), want, rtol=1e-4, atol=1e-5)
        found[name] = spent / NUMBERS * 1e3
    return {**found, "worst": max(found.values())}


class Experts(nn.Module):
    """Mixture of 4 experts: each token goes to the one that its gate likes best."""

    def __init__(self, width: int = 64, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = torch.softmax(self.gate(x), -1).max(-1)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == index).squeeze(1)
            result = result.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return result


def experts(*, train: bool) -> dict[str, float]:
    """A step of the mixture of experts with a new routing each; `ratio` to `fallback="eager"`."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Experts()

    def step(function: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(train):
            y: torch.Tensor = function(x)
        if train:
            y.square().mean().backward()
            model.zero_grad()
        return y.detach()

    options = ({}, {"fallback": "eager"})
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        auto, eager = (torch.compile(model, backend="trnx", options=o) for o in options)
        first = _seconds(lambda: step(auto, torch.randn(64, 64)))
        step(eager, torch.randn(64, 64))
        pairs = []
        for _ in range(STEPS):
            x = torch.randn(64, 64)
            torch.testing.assert_close(step(auto, x), step(model, x), rtol=1e-4, atol=1e-5)
            x = torch.randn(64, 64)
            pairs.append((_seconds(lambda: step(auto, x)), _seconds(lambda: step(eager, x))))  # noqa: B023  called now
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"first": first, "auto": ours, "fallback_eager": theirs, "ratio": ours / theirs}


def new_lengths() -> dict[str, float]:
    """Seconds of a call of a two-layer BERT with a new length (its kernels are traced and checked
    for it), and of the next call with the same."""
    from transformers import BertConfig, BertModel

    torch._dynamo.reset()
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    model = BertModel(config).eval()
    compiled = torch.compile(model, backend="trnx", dynamic=True)
    times = []
    with torch.no_grad():
        for length in random.Random(0).sample(range(16, 128), 9):
            tokens = torch.randint(0, 30000, (2, length))
            inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
            call = lambda: compiled(**inputs)  # noqa: B023, E731  called now
            times.append((_seconds(call), _seconds(call), _seconds(lambda: model(**inputs))))  # noqa: B023
    new, again, eager = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return {"new": new, "again": again, "eager": eager}
