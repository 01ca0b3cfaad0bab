"""Steps that a replay does not need: random ones, and what is left of them."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from trnx.simulator.isa.activation_functions import _quietly
from trnx.simulator.language.operators import functions
from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.shortening import shorten

_SIZE = 64
_INPUTS = 2


@dataclass(frozen=True)
class _Place:
    """A view, and which elements of which memory it has."""

    view: torch.Tensor
    memory: int
    elements: frozenset[int]
    form: tuple[object, ...]

    def is_apart(self, other: _Place) -> bool:
        """Whether a step may read one and write the other: torch takes no other overlap."""
        same = (self.memory, self.form) == (other.memory, other.form)
        # Two inputs may be the same memory.
        is_same = self.memory == other.memory or max(self.memory, other.memory) < _INPUTS
        return same or not is_same or not self.elements & other.elements


class _Steps:
    """Random steps on two inputs, a result and own memory, each of `_SIZE` elements. Own memory is
    written before anything reads it, but for the last, which holds constants.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.slots = [Slot.unbound(4 * _SIZE, is_written=True) for _ in range(_INPUTS + 1)]
        self.own = [torch.zeros(_SIZE) for _ in range(3)]
        self.steps: list[Step] = [functools.partial(one.fill_, 1.0) for one in self.own[:-1]]

    def _place(self, shape: tuple[int, int], is_own: bool = False) -> _Place:
        """Dense, with gaps, or turned, in any memory."""
        chance = self.chance
        strides = chance.choice([(shape[1], 1)] * 5 + [(8, 1), (1, shape[0])])
        reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        offset = chance.choice([0, 0, 16, chance.randint(0, _SIZE - 1 - reach)])
        places = (torch.arange(shape[0])[:, None] * strides[0] + torch.arange(shape[1])) + offset
        places[:, 1:] += (strides[1] - 1) * torch.arange(1, shape[1])
        memory = chance.randint(0 if not is_own else _INPUTS + 1, _INPUTS + len(self.own))
        if memory > _INPUTS:
            view = self.own[memory - _INPUTS - 1].as_strided(shape, strides, offset)
        else:
            view = self.slots[memory].view(torch.float32, shape, strides, offset)
        elements = frozenset(places.flatten().tolist())
        return _Place(view, memory, elements, (shape, strides, offset))

    def add(self) -> None:
        chance = self.chance
        shape = chance.choice([(4, 4), (4, 4), (2, 8), (1, 4), (3, 4)])
        kind = chance.choice(["copy"] * 7 + ["sum", "binary", "binary", "fill", "in place", "own",
                                             "product", "added", "array",
                                             *["negated"] * 3])  # fmt: skip
        if kind in ("product", "added"):
            shapes, result = [(3, 2), (2, 4)], (3, 4)
        else:
            result = (shape[0], 1) if kind == "sum" else shape
            counts = {"binary": 2, "negated": 2, "fill": 0, "in place": 0}
            shapes = [shape] * counts.get(kind, 1)
        out = self._place(result, kind == "array")
        if out.memory == _INPUTS + len(self.own):
            return
        read = [self._place(one, kind == "array") for one in shapes]
        if kind == "negated" and read[0].memory == _INPUTS + len(self.own):
            return
        if all(one.is_apart(out) and (one.form != out.form or kind != "product") for one in read):
            if kind == "negated":
                self.steps.append(functools.partial(read[0].view.neg_))
            self.steps.append(self._step(kind, out.view, [one.view for one in read]))

    def _step(self, kind: str, out: torch.Tensor, read: list[torch.Tensor]) -> Step:
        chance = self.chance
        if kind == "copy":
            return functools.partial(out.copy_, *read)
        if kind == "fill":
            return functools.partial(out.fill_, float(chance.randint(-2, 2)))
        if kind == "in place":
            return functools.partial(out.neg_)
        if kind == "array":
            return functools.partial(_quietly, np.negative, read[0].numpy(), out.numpy())
        if kind == "sum":
            return functools.partial(torch.sum, *read, dim=1, keepdim=True, out=out)
        if kind == "binary":
            function = chance.choice([torch.sub, torch.add, torch.maximum, torch.eq])
            return functools.partial(function, *read, out=out)
        if kind == "own":
            return functools.partial(functions.relu, *read, out=out)
        if kind == "negated":
            return functools.partial(torch.add, *chance.sample(read, 2), out=out)
        if kind == "added":
            return functools.partial(torch.addmm, out, *read, out=out)
        return functools.partial(torch.mm, *read, out=out)


@pytest.mark.parametrize("are_same", [False, True])
def test_the_caller_sees_what_all_steps_would_leave(run_twice: Any, are_same: bool) -> None:
    left_out = 0
    for seed in range(1000):
        made = _Steps(seed)
        for _ in range(made.chance.randint(3, 14)):
            made.add()
        expected = run_twice(made, made.steps, are_same)
        found = shorten(made.steps, made.slots, _INPUTS, {})
        left_out += len(made.steps) - len(found.steps)
        for one, other in zip(run_twice(made, found.steps, are_same), expected, strict=True):
            assert torch.equal(one, other), seed
    assert left_out > 2000
