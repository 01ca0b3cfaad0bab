"""Collectives in a plan: their order, what overlaps, what runs ahead, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import trnx
from trnx.backend import compiler
from trnx.backend.cache.plans import _Reader
from trnx.backend.collectives import collective_of
from trnx.backend.exported.errors import ExportError
from trnx.backend.exported.plan_json import region_json
from trnx.backend.plan.cluster import interconnect
from trnx.backend.plan.collectives import Group, all_gather, all_reduce
from trnx.fx_passes.aliasing import storage_root
from trnx.fx_passes.errors import GraphInvariantError
from trnx.fx_passes.nodes import is_collective, is_wait
from trnx.fx_passes.order import effect_edges
from trnx.fx_passes.region import Plan, Region
from trnx.fx_passes.verify import verify_plan
from trnx.nki_kernels.registry import kernels
from trnx.simulator.hardware import hardware

ops = torch.ops._c10d_functional
RANKS = 4


@pytest.fixture(autouse=True)
def _ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


def _sum(x: torch.Tensor) -> torch.Tensor:
    return ops.all_reduce(x, "sum", _world())  # type: ignore[no-any-return]


def _gather(x: torch.Tensor) -> torch.Tensor:
    return ops.wait_tensor(ops.all_gather_into_tensor(x, RANKS, _world()))  # type: ignore[no-any-return]


def _world() -> str:
    return str(dist.group.WORLD.group_name)


def planned(
    function: Callable[..., Any], *args: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[Plan, Any]:
    """The plan of a graph, and its report."""
    plans: list[Plan] = []
    original = compiler.plan_graph

    def keeping(*given: Any) -> Plan:
        plans.append(original(*given))
        return plans[-1]

    monkeypatch.setattr(compiler, "plan_graph", keeping)
    with torch.no_grad():
        explanation = trnx.explain(function, *args, options={"select": "legal"})
    [plan] = plans
    return plan, explanation.reports[0]


def kinds(plan: Plan) -> list[str]:
    """The steps: the engine of a region, `wait` for a wait."""
    found = []
    for step in plan.steps:
        if isinstance(step, Region):
            found.append(step.engine)
        elif is_wait(step):
            found.append("wait")
    return found


def test_what_does_not_need_a_collective_runs_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        beside = x @ w.t()
        begun = _sum(x * 2)
        return ops.wait_tensor(begun) + 1, beside

    x = torch.ones(512, 512)
    plan, report = planned(function, x, x, monkeypatch=monkeypatch)
    assert kinds(plan) == ["nki", "collective", "nki", "wait", "nki"]
    [entry] = report.collectives
    links = interconnect(hardware("trn2"), RANKS)
    assert entry.nbytes == 512 * 512 * 4
    assert entry.group_size == RANKS
    assert entry.seconds == pytest.approx(all_reduce(links, Group(RANKS, 1), entry.nbytes))
    beside = next(r for r in report.regions if r.kernel == "linear").predicted_seconds
    assert entry.exposed_seconds == pytest.approx(max(0.0, entry.seconds - beside))
    # The graph takes as long as its regions and what is not hidden.
    own = [r for r in report.regions if r.engine != "collective"]
    total = sum(r.predicted_seconds for r in own) + entry.exposed_seconds + report.launch_seconds
    assert report.predicted_seconds == pytest.approx(total)
    assert report.compute_nodes == report.nki_nodes == 3
    assert str(entry) in str(report)


def test_collectives_use_the_links_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> Any:
        begun = [_sum(x), _sum(x)]
        return [ops.wait_tensor(one) for one in begun]

    plan, report = planned(function, torch.ones(1024, 1024), monkeypatch=monkeypatch)
    assert kinds(plan) == ["collective", "collective", "wait", "wait"]
    first, second = report.collectives
    assert first.exposed_seconds == pytest.approx(first.seconds)
    assert second.exposed_seconds == pytest.approx(second.seconds)


def test_weights_are_gathered_a_few_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, *shards: torch.Tensor) -> torch.Tensor:
        for shard in shards:
            x = torch.relu(x @ _gather(shard).t())
        return x

    shards = [torch.ones(32, 128) for _ in range(8)]
    plan, report = planned(function, torch.ones(128, 128), *shards, monkeypatch=monkeypatch)
    under_way, most = 0, 0
    for kind in kinds(plan):
        under_way += {"collective": 1, "wait": -1}.get(kind, 0)
        most = max(most, under_way)
    assert most == 4
    assert report.stretches <= len(report.collectives) + 1
    links = interconnect(hardware("trn2"), RANKS)
    wanted = all_gather(links, Group(RANKS, 1), 128 * 128 * 4)
    assert [entry.seconds for entry in report.collectives] == pytest.approx([wanted] * 8)


def test_a_write_waits_for_what_a_collective_reads() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    begun = graph.call_function(ops.all_reduce.default, (x, "sum", _world()))
    wait = graph.call_function(ops.wait_tensor.default, (begun,))
    write = graph.call_function(torch.ops.aten.copy_.default, (x, y))
    late = graph.call_function(torch.ops.aten.view.default, (begun, [-1]))
    graph.output((wait, write, late))
    edges = effect_edges(graph)
    assert wait in edges[write]
    # What reads the result after the wait stays behind it, whatever it names it by.
    assert wait in edges[late]
    assert storage_root(wait) is storage_root(late) is begun


def test_plans_with_another_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ops.wait_tensor(_sum(x)), ops.wait_tensor(_sum(y))

    x = torch.ones(8, 8)
    plan, _ = planned(function, x, x + 1, monkeypatch=monkeypatch)
    verify_plan(plan)
    first, second, *rest = plan.steps
    turned = replace(plan, steps=(second, first, *rest), regions=(plan.regions[1], plan.regions[0]))
    with pytest.raises(GraphInvariantError, match="on this rank alone"):
        verify_plan(turned)
    left_out = replace(plan, regions=plan.regions[:1])
    with pytest.raises(GraphInvariantError, match="does not run once"):
        verify_plan(left_out)


def test_plans_come_back_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> Any:
        pair = ops.all_reduce_coalesced([x * 2, x + 1], "sum", _world())
        return [ops.wait_tensor(one) * 2 for one in pair]

    plan, _ = planned(function, torch.ones(8, 8), monkeypatch=monkeypatch)
    reader = _Reader(plan.graph_module, kernels(), ("xla", "eager"))
    given = reader.encode(plan)
    assert given is not None
    assert kinds(reader.decode(given)) == kinds(plan)
    [region] = [r for r in plan.regions if r.engine == "collective"]
    assert len(region.outputs) == 2
    with pytest.raises(ExportError, match="before it is sharded"):
        region_json(region, hardware("trn2"))


def test_equal_ones_are_made_twice_and_unused_ones_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        ops.wait_tensor(_sum(torch.ones(8, 8)))
        return ops.wait_tensor(_sum(x)) + ops.wait_tensor(_sum(x))  # type: ignore[no-any-return]

    plan, report = planned(function, torch.ones(8, 8), monkeypatch=monkeypatch)
    nodes = [node for node in plan.graph_module.graph.nodes if is_collective(node)]
    assert len(nodes) == len(report.collectives) == 3
    assert {collective_of(node).ranks for node in nodes} == {tuple(range(RANKS))}


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_more_ranks_never_take_less(target: str) -> None:
    seconds = [
        all_reduce(interconnect(hardware(target), size), Group(size, 1), 1e8)
        for size in (2, 4, 8, 16, 64, 256)
    ]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
