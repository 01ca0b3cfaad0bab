"""The verifier finds what it is there to find; so does the check of the passes' order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.canonicalise import CANONICAL, CANONICALISE
from trnx.fx_passes.errors import GraphInvariantError, PassOrderError
from trnx.fx_passes.partition import partition
from trnx.fx_passes.passes import Pass, check_order
from trnx.fx_passes.source import source_line
from trnx.fx_passes.verify import verify_functional, verify_graph, verify_plan
from trnx.simulator.hardware import hardware

X = torch.randn(4, 6)


def _graph() -> fx.GraphModule:
    return make_fx(lambda x: (torch.cumsum(x.exp(), 0),), tracing_mode="fake")(X)


def _call(gm: fx.GraphModule) -> fx.Node:
    return next(node for node in gm.graph.nodes if node.op == "call_function")


def test_a_sound_graph_passes() -> None:
    gm = _graph()
    verify_graph(gm, "tracing")
    verify_functional(gm, "tracing")

    assert _call(gm).name == "exp"


def test_a_node_without_a_value() -> None:
    gm = _graph()
    del _call(gm).meta["val"]

    with pytest.raises(GraphInvariantError, match=r"after fold: .* has no fake value"):
        verify_graph(gm, "fold")


def test_a_dead_node() -> None:
    gm = _graph()
    node = _call(gm)
    with gm.graph.inserting_after(node):
        gm.graph.node_copy(node, lambda n: n)

    with pytest.raises(GraphInvariantError, match="is used by nobody"):
        verify_graph(gm, "fold")


def test_a_node_before_its_argument() -> None:
    gm = _graph()
    first = _call(gm)
    next(iter(first.users)).append(first)

    with pytest.raises(GraphInvariantError, match="which stands after it"):
        verify_graph(gm, "fold")


def test_a_write_in_place() -> None:
    gm = make_fx(lambda x: x.exp().add_(1), tracing_mode="fake")(X)

    with pytest.raises(GraphInvariantError, match="writes in place"):
        verify_functional(gm, "fold")


def _plan(trnx: Any) -> Any:
    def exp(x: torch.Tensor) -> Any:
        return torch.ops.aten.exp.default(x)

    return partition(
        _graph(),
        kernels=[trnx.FakeKernel("exp", exp)],
        hardware=hardware("trn2"),
        engines=[trnx.FakeEngine()],
        select="legal",
    )


def test_a_plan_in_the_wrong_order(trnx: Any) -> None:
    plan = _plan(trnx)

    with pytest.raises(GraphInvariantError, match="before it is there"):
        verify_plan(dataclasses.replace(plan, steps=plan.steps[::-1]))


def test_a_plan_that_computes_twice(trnx: Any) -> None:
    plan = _plan(trnx)

    with pytest.raises(GraphInvariantError, match="and in another region"):
        verify_plan(dataclasses.replace(plan, steps=(plan.steps[0], *plan.steps)))


def test_a_plan_that_forgets_a_node(trnx: Any) -> None:
    plan = _plan(trnx)

    with pytest.raises(GraphInvariantError, match="is in no region"):
        verify_plan(dataclasses.replace(plan, steps=plan.steps[:1]))


def test_the_order_of_passes_is_checked() -> None:
    early = Pass("early", lambda gm: gm, requires=("sorted",))
    late = Pass("late", lambda gm: gm, ensures=("sorted",))

    assert check_order([late, early]) == {"sorted"}
    with pytest.raises(PassOrderError, match="'early' requires sorted"):
        check_order([early, late])


def test_a_property_that_a_pass_breaks_does_not_hold() -> None:
    sort = Pass("sort", lambda gm: gm, ensures=("sorted", "no_dead_nodes"))
    shuffle = Pass("shuffle", lambda gm: gm, breaks=("sorted",))
    search = Pass("search", lambda gm: gm, requires=("sorted",))

    assert check_order([shuffle, sort, search]) == {"sorted"}, "any pass may leave dead nodes"
    with pytest.raises(PassOrderError, match=r"'search' requires sorted, .* one has broken since"):
        check_order([sort, shuffle, search])
    with pytest.raises(PassOrderError, match="what follows the passes requires no_dead_nodes"):
        check_order([sort, search], wanted={"sorted", "no_dead_nodes"})


def test_the_canonical_order_is_sound() -> None:
    assert "no_dead_nodes" in check_order(CANONICALISE)
    assert check_order(CANONICALISE, wanted=CANONICAL) == CANONICAL


@pytest.mark.parametrize("place", range(len(CANONICALISE)))
def test_every_pass_is_needed_where_it_stands(place: int) -> None:
    without = (*CANONICALISE[:place], *CANONICALISE[place + 1 :])

    with pytest.raises(PassOrderError):
        check_order(without, wanted=CANONICAL)


def test_the_source_line_prefers_the_users_code() -> None:
    node = _call(_graph())
    node.meta["stack_trace"] = (
        '  File "/home/me/model.py", line 12, in forward\n    return self.norm(x)\n'
        f'  File "{torch.__file__}", line 3, in rms_norm\n    return torch.rms_norm(x)\n'
    )

    assert source_line(node) == "/home/me/model.py:12 in forward"


def test_the_source_line_of_installed_code() -> None:
    """Whoever has the innermost line outside of torch, where no line is in a user's own file."""
    packages = Path(torch.__file__).parents[1]
    node = _call(_graph())
    node.meta["stack_trace"] = (
        f'  File "{packages}/their_model/model.py", line 12, in forward\n    return self.norm(x)\n'
        f'  File "{packages}/torchvision/ops.py", line 7, in norm\n    return rms_norm(x)\n'
        f'  File "{torch.__file__}", line 3, in rms_norm\n    return torch.rms_norm(x)\n'
    )
    assert source_line(node) == f"{packages}/torchvision/ops.py:7 in norm"

    node.meta["stack_trace"] = (
        '  File "/home/me/run.py", line 2, in step\n    return model(x)\n'
        f"{node.meta['stack_trace']}"
    )
    assert source_line(node) == "/home/me/run.py:2 in step"


def test_without_a_line_the_module_is_named() -> None:
    node = _call(_graph())
    node.meta["stack_trace"] = ""
    node.meta["nn_module_stack"] = {"1": ("L['fn'].1", torch.nn.BatchNorm1d)}

    assert source_line(node) == "module 1 (BatchNorm1d)"
    del node.meta["nn_module_stack"]
    assert source_line(node) == ""
