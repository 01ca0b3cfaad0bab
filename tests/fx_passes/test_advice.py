"""Every refusal ends in what to do, and the user guide explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes import advice
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.partition import partition
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware

GUIDE = (Path(__file__).parents[2] / "docs" / "user_guide.md").read_text()
ADVICES = {name: text for name, text in vars(advice).items() if name.isupper()}


@pytest.mark.parametrize("name", ADVICES)
def test_the_user_guide_explains_it(name: str) -> None:
    assert f"| {ADVICES[name]}" in GUIDE


def _node() -> fx.Node:
    gm = make_fx(lambda x: x.exp(), tracing_mode="fake")(torch.ones(2))
    return next(node for node in gm.graph.nodes if node.op == "call_function")


def test_reasons_and_advices_are_told_once_each_in_order() -> None:
    refusals, node = Refusals(), _node()
    refusals.add(node, Reject("a", node, "one", advice.LIMIT))
    refusals.add(node, Reject("b", node, "two", advice.LIMIT))
    refusals.note(node, "c", advice.RANDOM)
    refusals.note(node, "c", advice.DATA)

    entry = refusals.entry(node, "eager")
    assert (entry.reason, entry.advice) == ("a; b; c", f"{advice.LIMIT}; {advice.RANDOM}")
    assert str(entry).endswith(f": a; b; c -> {advice.LIMIT}; {advice.RANDOM}")
    miss = refusals.near_miss(node)
    assert miss is not None
    assert (miss.engine, miss.reason, miss.advice) == ("nki", "a; b", advice.LIMIT)


def test_what_nobody_refused_needs_a_kernel() -> None:
    refusals, node = Refusals(), _node()
    assert refusals.near_miss(node) is None
    assert refusals.entry(node, "xla").reason == "no kernel has a pattern for it"
    assert refusals.entry(node, "xla").advice == advice.OWN_KERNEL


def test_every_entry_of_a_plan_has_one(trnx: Any) -> None:
    def exp(x: torch.Tensor) -> Any:
        return torch.ops.aten.exp.default(x)

    gm = make_fx(lambda x: (x.exp().sin(), x.cumsum(0)), tracing_mode="fake")(torch.ones(3, 2))
    plan = partition(
        gm,
        kernels=[trnx.FakeKernel("exp", exp, refuse=lambda _: Reject("too odd"))],
        hardware=hardware("trn2"),
        engines=[trnx.FakeEngine()],
        select="legal",
    )
    assert {entry.op: entry.advice for entry in plan.ledger} == {
        "aten.exp.default": advice.LIMIT,
        "aten.sin.default": advice.OWN_KERNEL,
        "aten.cumsum.default": advice.OWN_KERNEL,
    }
