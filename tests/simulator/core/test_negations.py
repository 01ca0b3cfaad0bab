"""Negations that subtractions make unnecessary."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from trnx.simulator.memory.storage import Step
from trnx.simulator.program.negations import subtract_negated
from trnx.simulator.program.step_effects import EffectReader

Rows = torch.Tensor
# Steps on what was negated, on something else, and on a result.
MakeSteps = Callable[[Rows, Rows, Rows], list[Step]]


def _negated(rows: Rows, source: Rows) -> list[Step]:
    return [partial(rows.copy_, source), partial(rows.neg_)]


def _added(rows: Rows, a: Rows, out: Rows) -> list[Step]:
    return [partial(torch.add, a, rows, out=out)]


FOLDED: dict[str, MakeSteps] = {
    "second": _added,
    "first": lambda rows, a, out: [partial(torch.add, rows, a, out=out)],
    "a column": lambda rows, a, out: [partial(torch.add, a, rows[:, :1], out=out)],
    "twice": lambda rows, a, out: [*_added(rows, a, out), *_added(rows, out, out)],
    "overwritten then": lambda rows, a, out: [
        *_added(rows, a, out),
        partial(torch.mul, a, a, out=rows),
        partial(torch.mul, rows, out, out=out),
    ],
}
KEPT: dict[str, MakeSteps] = {
    "read by another step": lambda rows, a, out: [
        *_added(rows, a, out),
        partial(torch.mul, rows, out, out=out),
    ],
    "never read": lambda rows, a, out: [partial(torch.mul, a, a, out=out)],  # noqa: ARG005
    "added to itself": lambda rows, a, out: [partial(torch.add, rows, rows, out=out)],  # noqa: ARG005
    "added in place": lambda rows, a, out: [  # noqa: ARG005
        partial(torch.add, a, rows, out=rows),
        partial(torch.mul, rows, a, out=a),
    ],
    "scaled": lambda rows, a, out: [partial(torch.add, a, rows, alpha=2, out=out)],
    "written in part": lambda rows, a, out: [
        partial(rows[:2].fill_, 1.0),
        *_added(rows, a, out),
    ],
    "negated in part": lambda rows, a, out: [partial(rows[:2].neg_), *_added(rows, a, out)],
    "converted": lambda rows, a, out: [
        partial(torch.add, a, rows, out=torch.empty(4, 6, dtype=torch.float64)),
        *_added(rows, a, out),
    ],
}


def _results(steps: MakeSteps, fold: bool) -> tuple[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows, out = torch.zeros(4, 6), torch.zeros(4, 6)
    a, source = (torch.randn(4, 6, generator=generator) for _ in range(2))
    source[0] = a[0]
    source[1] = torch.inf
    made = [*_negated(rows, source), *steps(rows, a, out)]
    left = list(subtract_negated(made, EffectReader((), {}))) if fold else made
    for _ in range(2):
        for step in left:
            step()
    return len(made) - len(left), out


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_only_added_is_subtracted(name: str) -> None:
    left_out, found = _results(FOLDED[name], fold=True)
    assert left_out == 1
    assert torch.equal(found, _results(FOLDED[name], fold=False)[1])


@pytest.mark.parametrize("name", KEPT)
def test_what_others_need_stays_negated(name: str) -> None:
    left_out, found = _results(KEPT[name], fold=True)
    assert left_out == 0
    assert torch.equal(found, _results(KEPT[name], fold=False)[1])


def test_what_the_next_run_reads_stays_negated() -> None:
    rows, a, out = torch.ones(4, 6), torch.ones(4, 6), torch.zeros(4, 6)
    steps = [partial(rows.neg_), *_added(rows, a, out)]
    assert subtract_negated(steps, EffectReader((), {})) == steps
