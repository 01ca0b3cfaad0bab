"""Steps that a replay runs over all tiles at once: random ones, and what kernels become."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.language.operators import functions
from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program import tile_merging, wide_products
from trnx.simulator.program.portable import from_data, to_data
from trnx.simulator.program.step_effects import EffectReader
from trnx.simulator.program.tile_merging import merge_tiles

_SIZE = 512
_INPUTS = 2
_OWN = 4


class _Tiles:
    """Random loops over tiles of two inputs, a result and own memory, each of `_SIZE` elements.
    The last of own memory holds constants; what the others hold is written before it is read.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.slots = [Slot.unbound(4 * _SIZE, is_written=True) for _ in range(_INPUTS + 1)]
        self.own = [torch.zeros(_SIZE) for _ in range(_OWN)]
        self.blank = {one.untyped_storage().data_ptr(): one.nbytes for one in self.own[:-1]}
        self.steps: list[Step] = [functools.partial(one.fill_, 1.0) for one in self.own[:-1]]

    def _view(
        self, memory: int, shape: tuple[int, ...], strides: tuple[int, ...], at: int
    ) -> torch.Tensor:
        if memory > _INPUTS:
            return self.own[memory - _INPUTS - 1].as_strided(shape, strides, at)
        return self.slots[memory].view(torch.float32, shape, strides, at)

    def _memory(self, is_written: bool = False) -> int:
        return self.chance.randint(0, _INPUTS + _OWN - is_written)

    def loop(self) -> None:
        """Some element-wise steps on each of some tiles, or products and what reads them."""
        if self.chance.random() < 0.4:
            self._products()
            return
        chance = self.chance
        tiles = chance.randint(2, 5)
        body = [self._elementwise(chance.choice([(4, 4), (8, 1), (1, 8)])) for _ in range(3)]
        for tile in range(tiles):
            for step in body[: chance.choice([1, 2, 3])] if chance.random() < 0.2 else body:
                self.steps.append(step(tile))
            if chance.random() < 0.05:
                self.steps.append(self._elementwise((4, 4))(chance.randint(0, 4)))

    def _elementwise(self, shape: tuple[int, int]) -> functools.partial[Step]:
        chance = self.chance
        strides = chance.choice([(shape[1], 1), (16, 1), (8, 1)])
        kind = chance.choice(["copy", "fill", "add", "sub", "relu", "in place"])
        places = [
            (
                self._memory(number == 2),
                chance.choice([0, 0, 16, 64]),
                chance.choice([0, 1, 16, 64]),
            )
            for number in range(3)
        ]
        return functools.partial(self._step, kind, shape, strides, places)

    def _step(
        self,
        kind: str,
        shape: tuple[int, int],
        strides: tuple[int, int],
        places: list[tuple[int, int, int]],
        tile: int,
    ) -> Step:
        a, b, out = (
            self._view(memory, shape, strides, start + tile * distance)
            for memory, start, distance in places
        )
        if kind == "fill":
            return functools.partial(out.fill_, 3.0)
        if kind == "in place" or _may_meet(places[0], places[2]) or _may_meet(places[1], places[2]):
            return functools.partial(functions.relu, out, out=out)
        if kind == "copy":
            return functools.partial(out.copy_, a)
        if kind == "relu":
            return functools.partial(functions.relu, a, out=out)
        return functools.partial(torch.add if kind == "add" else torch.sub, a, b, out=out)

    def _products(self) -> None:
        """Each tile's product in a bank, from where a step brings it to its place."""
        chance = self.chance
        axis, tiles = chance.choice([0, 1]), chance.randint(2, 4)
        weight, banks = chance.choice([0, 1, _INPUTS + _OWN]), chance.choice([1, 2])
        for tile in range(tiles):
            size = 8 if tile < tiles - 1 or chance.random() < 0.7 else 4
            bank = self._view(_INPUTS + 1, *_as(axis, size), 64 * (tile % banks))
            if axis == 1:
                part = self._view(weight, (4, size), (64, 1), 8 * tile)
                factors = (self._view(_INPUTS + _OWN, (1, 4), (4, 1), 0), part)
            else:
                part = self._view(weight, (size, 4), (1, 64), 8 * tile)
                factors = (part, self._view(_INPUTS + _OWN, (4, 1), (1, 1), 0))
            self.steps.append(functools.partial(torch.mm, *factors, out=bank))
            place = self._view(chance.choice([2, _INPUTS + 2]), *_as(axis, size), 8 * tile)
            kind = chance.choice(["copy", "copy", "copy", "relu", "both"])
            if kind != "relu":
                self.steps.append(functools.partial(place.copy_, bank))
            if kind != "copy":
                self.steps.append(functools.partial(functions.relu, bank, out=place))
            if chance.random() < 0.1:
                self.steps.append(self._elementwise((4, 4))(tile))


def _as(axis: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shape and strides of a result."""
    return ((size, 1), (1, 1)) if axis == 0 else ((1, size), (size, 1))


def _may_meet(read: tuple[int, int, int], written: tuple[int, int, int]) -> bool:
    """torch takes no operand that overlaps the result in part."""
    return read[0] == written[0] or max(read[0], written[0]) < _INPUTS


@pytest.mark.parametrize("are_same", [False, True])
def test_the_caller_sees_what_all_steps_would_leave(run_twice: Any, are_same: bool) -> None:
    left_out = 0
    for seed in range(600):
        made = _Tiles(seed)
        for _ in range(made.chance.randint(1, 4)):
            made.loop()
        expected = run_twice(made, made.steps, are_same)
        found = merge_tiles(made.steps, EffectReader(made.slots, made.blank), _INPUTS)
        left_out += len(made.steps) - len(found)
        for one, other in zip(run_twice(made, found, are_same), expected, strict=True):
            assert torch.equal(one, other), seed
    assert left_out > 2000


def _rows(x: torch.Tensor, weight: torch.Tensor, outs: Sequence[torch.Tensor]) -> list[Step]:
    """`x` by eight columns of the weight at a time."""
    return [
        functools.partial(torch.mm, x, weight[:, 8 * i : 8 * i + 8], out=out)
        for i, out in enumerate(outs)
    ]


def _blank(*memories: torch.Tensor) -> dict[int, int]:
    return {one.untyped_storage().data_ptr(): one.nbytes for one in memories}


@pytest.fixture
def product() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, a weight and their product, in integers."""
    x, weight = torch.arange(4.0).view(1, 4), torch.arange(96.0).view(4, 24) % 7
    return x, weight, x @ weight


Product = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def test_neighbouring_results_are_one_product(product: Product) -> None:
    x, weight, expected = product
    out = torch.zeros(1, 24)
    steps = _rows(x, weight, out.split(8, 1))
    reader = EffectReader([], _blank(out))
    (step,) = merge_tiles(steps, reader, 0)
    step()
    assert torch.equal(out, expected)
    assert not reader.made


def test_a_result_that_is_seen_before_its_time_stays_apart(product: Product) -> None:
    x, weight, expected = product
    out, seen = torch.full((1, 24), 9.0), torch.zeros(1, 8)
    steps = _rows(x, weight, out.split(8, 1))
    steps.insert(2, functools.partial(seen.copy_, out[:, 16:]))
    left = merge_tiles(steps, EffectReader([], _blank(seen)), 0)
    for step in left:
        step()
    assert len(left) == 3
    assert torch.equal(out, expected)
    assert torch.equal(seen, torch.full((1, 8), 9.0))


@pytest.mark.parametrize(("is_fresh", "count"), [(True, 2), (False, 6)])
def test_banks_that_the_next_run_reads_stay(product: Product, is_fresh: bool, count: int) -> None:
    x, weight, expected = product
    bank, out = torch.zeros(1, 8), torch.zeros(1, 24)
    steps: list[Step] = []
    for step, place in zip(_rows(x, weight, [bank] * 3), out.split(8, 1), strict=True):
        steps += [step, functools.partial(place.copy_, bank)]
    start = [] if is_fresh else [functools.partial(out[:, :8].copy_, bank)]
    reader = EffectReader([], _blank(out))
    left = merge_tiles([*start, *steps], reader, 0)
    for step in left:
        step()
    assert len(left) == len(start) + count
    assert len(reader.made) == is_fresh
    assert torch.equal(out, expected)
    assert torch.equal(bank, torch.zeros(1, 8) if is_fresh else expected[:, 16:])


def test_results_of_many_rows_stay_apart() -> None:
    x, weight, out = torch.ones(64, 4), torch.ones(4, 96), torch.zeros(64, 96)
    steps = [
        functools.partial(torch.mm, x, weight[:, at : at + 48], out=out[:, at : at + 48])
        for at in (0, 48)
    ]
    assert len(merge_tiles(steps, EffectReader([], _blank(out)), 0)) == 2


@pytest.mark.parametrize(("size", "count"), [(8192, 1), (8193, 2)])
def test_large_tiles_stay_apart(size: int, count: int) -> None:
    x, out = torch.ones(2, size), torch.zeros(2, size)
    steps = [functools.partial(functions.relu, x[i], out=out[i]) for i in range(2)]
    assert len(merge_tiles(steps, EffectReader([], _blank(out)), 0)) == count


def test_functions_whose_operands_all_tiles_share_stay_apart() -> None:
    """torch would make the result as small as the operands."""
    x, out = torch.ones(8), torch.zeros(3, 8)
    steps = [functools.partial(functions.relu, x, out=one) for one in out]
    assert len(merge_tiles(steps, EffectReader([], _blank(out)), 0)) == 3
    copies = [functools.partial(one.copy_, x) for one in out]
    (copy,) = merge_tiles(copies, EffectReader([], _blank(out)), 0)
    copy()
    assert torch.equal(out, x.expand(3, 8))


def test_a_kernel_with_wide_steps_is_replicated_and_kept_as_data() -> None:
    kernels = load_module(Path(__file__).with_name("merging_kernels.py"))
    x = torch.randint(-4, 5, (1, 384)).float()
    weight = torch.randint(-4, 5, (1536, 384)).float()
    program = trace(kernels.row_on_partitions, [TensorSpec.of(x), TensorSpec.of(weight)])
    program.shorten()
    steps = [step for step in program.steps if isinstance(step, functools.partial)]
    assert sum(step.func in (torch.mm, torch.addmm) for step in steps) == 1
    data = to_data(program)
    assert data is not None
    for one in (program, program.replica(), from_data(data, lambda: program.rows)):
        assert torch.equal(one.run([x, weight])[0], x @ weight.T)


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch, product: Product) -> None:
    x, weight, expected = product
    bank, out = torch.zeros(1, 8), torch.zeros(1, 24)
    steps: list[Step] = []
    for step, place in zip(_rows(x, weight, [bank] * 3), out.split(8, 1), strict=True):
        steps += [step, functools.partial(place.copy_, bank)]
    monkeypatch.setattr(wide_products, "_MOST_TOUCHES", 5)
    monkeypatch.setattr(tile_merging, "_MOST_TOUCHES", 0)
    left = merge_tiles(steps, EffectReader([], _blank(bank, out)), 0)
    for step in left:
        step()
    assert len(left) == 6
    assert torch.equal(out, expected)


def _heads(count: int, rows: int, apart: int) -> tuple[list[Step], torch.Tensor]:
    """A product of each head, whose results are so many elements apart."""
    queries, keys = torch.randn(count, rows, 8), torch.randn(count, 16, 8)
    out = torch.zeros(count * apart)
    outs = [out.as_strided((rows, 16), (16, 1), head * apart) for head in range(count)]
    steps: list[Step] = [
        functools.partial(torch.mm, queries[head], keys[head].t(), out=outs[head])
        for head in range(count)
    ]
    return steps, out


@pytest.mark.parametrize("rows", [1, 4])
def test_products_of_heads_are_a_batch(rows: int) -> None:
    steps, out = _heads(3, rows, rows * 16)
    (batch,) = merge_tiles(steps, EffectReader([], {}), 0)
    assert isinstance(batch, functools.partial)
    assert batch.func is torch.bmm
    for step in steps:
        step()
    expected = out.clone()
    out.zero_()
    batch()
    assert torch.allclose(out, expected, rtol=1e-6, atol=1e-6)


def test_products_that_blas_takes_one_by_one_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, _ = _heads(3, 2, 40)
    assert len(merge_tiles(steps, EffectReader([], {}), 0)) == 3
    monkeypatch.setattr(tile_merging, "_MOST_OF_PRODUCT", 100)
    steps, _ = _heads(3, 2, 32)
    assert len(merge_tiles(steps, EffectReader([], {}), 0)) == 3


def test_a_batch_waits_for_what_a_step_between_writes() -> None:
    steps, _ = _heads(2, 2, 32)
    second = steps[1]
    assert isinstance(second, functools.partial)
    change = functools.partial(second.args[0].fill_, 2.0)
    assert len(merge_tiles([steps[0], change, second], EffectReader([], {}), 0)) == 3


def test_products_in_narrow_types_stay_apart() -> None:
    factors = torch.randn(2, 4, 8).bfloat16(), torch.randn(2, 8, 16).bfloat16()
    out = torch.zeros(2, 4, 16).bfloat16()
    steps: list[Step] = [
        functools.partial(torch.mm, factors[0][i], factors[1][i], out=out[i]) for i in range(2)
    ]
    assert len(merge_tiles(steps, EffectReader([], {}), 0)) == 2


def test_zeros_of_both_signs_are_not_one_number() -> None:
    tiles = torch.ones(2, 16)
    first: Step = functools.partial(tiles[0].fill_, 0.0)
    same, other = (functools.partial(tiles[1].fill_, number) for number in (0.0, -0.0))
    assert len(merge_tiles([first, same], EffectReader([], _blank(tiles)), 0)) == 1
    for step in merge_tiles([first, other], EffectReader([], _blank(tiles)), 0):
        step()
    assert torch.signbit(tiles).tolist() == [[False] * 16, [True] * 16]
