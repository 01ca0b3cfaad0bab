"""Generated kernels of the same work become few; an order between them stays."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.extract import inputs_of
from trnx.fx_passes.form_generated import generated_units
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.merge_alike import LEAST, MOST_TENSORS, merge_alike
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.order import Order, Unit, single_units
from trnx.fx_passes.profit import Profit
from trnx.fx_passes.region import KernelMatch
from trnx.nki_kernels import generator
from trnx.simulator.hardware import hardware

HW = hardware("trn2")


def merged(function: Any, *inputs: Any) -> tuple[Unit, ...]:
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    kinds = {node: "compute" for node in graph.nodes if is_compute(node)}
    order = Order(graph, single_units(graph, [], kinds))
    profit = Profit(HW, (), "legal")
    units = generated_units(order, generator, HW, profit, Refusals())
    rest = {n: kind for n, kind in kinds.items() if all(n not in u.nodes for u in units)}
    return merge_alike(units, Order(graph, single_units(graph, units, rest)), generator, HW)


class Counting:
    """The generator, and how often it was asked for a kernel."""

    supports_node = staticmethod(generator.supports_node)

    def __init__(self) -> None:
        self.asked = 0

    def fused_kernel(self, gm: Any, hw: Any) -> Any:
        self.asked += 1
        return generator.fused_kernel(gm, hw)


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.ones(3 + i % 2, 4) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "kernels"), [(LEAST - 1, LEAST - 1), (LEAST, 1), (MOST_TENSORS // 2 + 1, 2)]
)
def test_many_alike_are_few(count: int, kernels: int) -> None:
    units = merged(lambda *xs: [torch.relu(x) + 1 for x in xs], *tensors(count))
    assert len(units) == kernels
    assert sum(len(unit.nodes) for unit in units) == 2 * count


def test_what_waits_for_others_stays_behind_them() -> None:
    def two_rounds(*xs: torch.Tensor) -> list[torch.Tensor]:
        first = [torch.relu(x) for x in xs]
        total = torch.linalg.matrix_exp(torch.stack([f.sum() for f in first]).diag())
        return [torch.relu(f * total[0, 0]) for f in first]

    units = merged(two_rounds, *tensors(LEAST))
    sizes = sorted(len(unit.nodes) for unit in units)
    assert sizes[-1] >= LEAST
    assert len([size for size in sizes if size >= LEAST]) >= 2


def test_regions_of_one_form_are_generated_once_and_read_their_own_tensors() -> None:
    def function(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [torch.relu(x) * y for x, y in itertools.pairwise(xs)]

    inputs = [torch.ones(4, 4)] * 4 + [torch.ones(2, 4, 4)]
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    kinds = {node: "compute" for node in graph.nodes if is_compute(node)}
    asked, profit = Counting(), Profit(HW, (), "legal")
    order = Order(graph, single_units(graph, [], kinds))
    units = generated_units(order, asked, HW, profit, Refusals())
    assert len(units) == 4
    assert asked.asked == 2  # the last product has another shape
    for unit in units:
        assert isinstance(unit.payload, KernelMatch)
        assert tuple(unit.payload.bindings.values()) == inputs_of(unit.nodes)
