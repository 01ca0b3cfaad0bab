"""Generated kernels that are far from their limit are compared with two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.form_generated import generated_units
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.match import bindings_spec
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.order import Order, Unit, single_units
from trnx.fx_passes.profit import Profit
from trnx.fx_passes.region import KernelMatch
from trnx.nki_kernels import generator
from trnx.simulator.hardware import hardware

HW = hardware("trn2")


def limit(match: KernelMatch) -> float:
    cost = match.kernel.cost(bindings_spec(match))
    return HW.roofline_seconds(0, cost.vector_flops, cost.hbm_bytes) + HW.region_seconds


def units(
    function: Any, *inputs: torch.Tensor, times: Callable[[KernelMatch], float] | None
) -> tuple[Unit, ...]:
    """The units where a kernel takes so many times its limit."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    kinds = {node: "compute" for node in graph.nodes if is_compute(node)}
    order = Order(graph, single_units(graph, [], kinds))

    def seconds(match: KernelMatch) -> float:
        assert times is not None
        return times(match) * limit(match)

    profit = Profit(HW, (), "profit", None if times is None else seconds)
    return generated_units(order, generator, HW, profit, Refusals())


def scaled(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.tanh((x + y).sum((0, 1), keepdim=True)) * z


def tensors() -> list[torch.Tensor]:
    return [torch.ones(30, 40), torch.ones(30, 40), torch.ones(30, 40)]


def slow_with(op: str, times: float) -> Callable[[KernelMatch], float]:
    """Kernels with a sum and `op` take so many times their limit, others are at theirs."""

    def found(match: KernelMatch) -> float:
        return times if {"sum", op} <= set(match.kernel.name.split("_")) else 1.0

    return found


def test_a_slow_one_becomes_two_behind_the_reduction() -> None:
    first, second = units(scaled, *tensors(), times=slow_with("tanh", 9.0))
    assert isinstance(first.payload, KernelMatch)
    assert isinstance(second.payload, KernelMatch)
    assert [unit.payload.kernel.name for unit in (first, second)] == [
        "fused_add_sum",
        "fused_tanh_mul",
    ]
    (total,) = first.payload.results
    assert total in second.payload.bindings.values()


@pytest.mark.parametrize(
    "times", [slow_with("tanh", 1.3), slow_with("tanh", 2.2), lambda _: 9.0, None]
)
def test_one_stays_where_it_is_near_a_limit_or_faster_than_two(times: Any) -> None:
    (only,) = units(scaled, *tensors(), times=times)
    assert isinstance(only.payload, KernelMatch)
    assert only.payload.kernel.name == "fused_add_sum_tanh_mul"


def test_chains_are_not_cut() -> None:
    (only,) = units(lambda x: torch.tanh(x.relu() + 1), torch.ones(300, 400), times=lambda _: 9.0)
    assert len(only.nodes) == 3


def test_a_reduction_at_the_end_is_not_cut_off() -> None:
    (only,) = units(lambda x: x.relu().sum(), torch.ones(300, 400), times=lambda _: 9.0)
    assert len(only.nodes) == 2


def counted(
    times: Callable[[KernelMatch], float], asked: list[str]
) -> Callable[[KernelMatch], float]:
    """`times`, that notes in `asked` of which kernels it is asked."""

    def found(match: KernelMatch) -> float:
        asked.append(match.kernel.name)
        return times(match)

    return found


def test_groups_of_one_form_are_compared_once() -> None:
    def twice(*xs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scaled(*xs[:3]), scaled(*xs[3:])

    asked: list[str] = []
    times = counted(slow_with("tanh", 9.0), asked)
    one = units(scaled, *tensors(), times=times)
    alone = len(asked)
    two = units(twice, *tensors(), *tensors(), times=times)
    assert len(two) == 2 * len(one) == 4
    assert len(asked) - alone <= alone


def test_kernels_of_many_reductions_are_not_compared() -> None:
    def sums(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.tanh(x + x.sum(1, keepdim=True))
        return x

    asked: list[str] = []
    (only,) = units(sums, torch.ones(30, 40), times=counted(lambda _: 9.0, asked))
    assert isinstance(only.payload, KernelMatch)
    assert len(only.nodes) == 15
    assert set(asked) <= {only.payload.kernel.name}
