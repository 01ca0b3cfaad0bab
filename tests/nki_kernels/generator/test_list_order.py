"""Stages of few tiles in the order that list scheduling finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.list_order import list_order
from trnx.nki_kernels.generator.timeline import Op
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16
CHIP = hardware("trn2")


def logsumexp(x: Any, dims: list[int]) -> Any:
    most = aten.amax.default(x, dims, True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), dims, True)
    return aten.add.Tensor(aten.log.default(total), most)


def softmax(x: Any, dims: list[int]) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, dims, True)))
    total = aten.sum.dim_IntList(weights, dims, True)
    return aten.silu.default(aten.div.Tensor(weights, total))


def order_of(chains: list[list[Op]]) -> list[tuple[int, int]]:
    """The order of tiles, each of which is a chain of ops, one a stage."""
    ops: list[Op] = []
    turns = {}
    for tile, chain in enumerate(chains):
        for stage, op in enumerate(chain):
            after = (len(ops) - 1,) if stage else ()
            turns[stage, tile] = range(len(ops), len(ops) + 1)
            ops.append(Op(op.queue, op.interval, op.latency, after, table=op.table))
    return list_order(ops, turns, timing(CHIP))


def test_an_engine_runs_another_tile_while_one_waits() -> None:
    short = Op("vector", 100.0, 500.0)
    assert order_of([[short, short]] * 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_what_is_there_does_not_wait_for_what_is_late() -> None:
    """The second tile's first stage ends late, so that the last stage of the first one runs."""
    slow, fast = Op("scalar", 3000.0, 3000.0), Op("vector", 100.0, 200.0)
    found = order_of([[slow, fast, fast]] * 2)
    assert found.index((2, 0)) < found.index((1, 1))


def test_tables_change_once() -> None:
    first = Op("scalar", 100.0, 300.0, table="exp")
    second = Op("scalar", 100.0, 300.0, table="log")
    found = order_of([[first, second]] * 4)
    assert [stage for stage, _ in found] == [0] * 4 + [1] * 4


def test_tiles_are_in_order_in_each_stage() -> None:
    ops = [Op("vector", 100.0, 200.0), Op("scalar", 400.0, 600.0), Op("vector", 300.0, 400.0)]
    found = order_of([ops] * 5)
    assert sorted(found) == [(stage, tile) for stage in range(3) for tile in range(5)]
    for stage in range(3):
        assert [tile for s, tile in found if s == stage] == list(range(5))
    for tile in range(5):
        assert [s for s, t in found if t == tile] == list(range(3))


@pytest.mark.parametrize("function", [logsumexp, softmax])
@pytest.mark.parametrize(
    ("shape", "dims"), [((1291, 40), [1]), ((700, 129), [0]), ((6, 50, 129), [0, 2])]
)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values(
    region: Build,
    cuts: Cuts,
    function: Callable[..., Any],
    shape: tuple[int, ...],
    dims: list[int],
    dtype: torch.dtype,
) -> None:
    made = region(lambda x: function(x, dims), draw(*shape, dtype=dtype))
    listed = [cut for cut in cuts.of(made) if cut.turns]
    assert listed
    kinds = {(c.across is None, bool(c.geometry.loops), c.geometry.even): c for c in listed}
    error = 1e-5 if dtype is F32 else 2e-2
    cuts.check(made, kinds.values(), rtol=error, atol=error)
