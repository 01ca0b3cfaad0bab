"""Invariants of graphs and plans, which the pipeline checks between canonicalise, partition and the
executable: a graph that breaks one must not run.

A graph: every call has a fake value, nodes stand after what they read, nothing is dead, nothing
writes but the epilogue that updates graph inputs. A plan: each compute node is in one region, every
step reads only what is there before it, and regions run in an order in which none waits for itself
(so they are convex). Collectives run in the order of the graph, which is that of all ranks.
"""

from __future__ import annotations

from torch import fx

from trnx.fx_passes.canonicalise.remove_dead import is_dead
from trnx.fx_passes.errors import GraphInvariantError
from trnx.fx_passes.nodes import (
    is_assertion,
    is_call,
    is_collective,
    is_compute,
    is_glue,
    is_input_write,
    is_mutation,
    is_wait,
)
from trnx.fx_passes.region import Plan, Region


def _fail(stage: str, node: fx.Node, what: str) -> GraphInvariantError:
    return GraphInvariantError(
        f"after {stage}: node {node.format_node() or node.name} {what}; this is a bug of that pass"
    )


def verify_graph(gm: fx.GraphModule, stage: str) -> None:
    """Raise GraphInvariantError where `gm` breaks an invariant; `stage` names the last pass."""
    seen: set[fx.Node] = set()
    for node in gm.graph.nodes:
        for argument in node.all_input_nodes:
            if argument not in seen:
                raise _fail(stage, node, f"reads {argument.name}, which stands after it")
        seen.add(node)
        if not is_call(node):
            continue
        if "val" not in node.meta and not is_assertion(node):
            raise _fail(stage, node, "has no fake value")
        if is_dead(node):
            raise _fail(stage, node, "is used by nobody")


def verify_functional(gm: fx.GraphModule, stage: str) -> None:
    """Raise GraphInvariantError where something but the epilogue writes in place."""
    for node in gm.graph.nodes:
        if is_mutation(node) and not is_input_write(node):
            raise _fail(stage, node, "writes in place")


def verify_plan(plan: Plan) -> None:
    """Raise GraphInvariantError where `plan` cannot be run as it stands."""
    nodes = plan.graph_module.graph.nodes
    there = {node for node in nodes if not is_call(node)}
    computed: set[fx.Node] = set()
    for step in plan.steps:
        if isinstance(step, Region):
            _verify_region(step, there, computed)
            there.update(step.outputs)
        else:
            _require(step, step.all_input_nodes, there)
            if not (is_glue(step) or is_wait(step)):
                raise _fail("partition", step, "is a step but no glue")
            there.add(step)
    for node in nodes:
        if is_compute(node) and node not in computed:
            raise _fail("partition", node, "is in no region")
        if node.op == "output":
            _require(node, node.all_input_nodes, there)
    _verify_collectives(plan)


def _verify_collectives(plan: Plan) -> None:
    wanted = [node for node in plan.graph_module.graph.nodes if is_collective(node)]
    found = [node for region in plan.regions for node in region.nodes if is_collective(node)]
    for node, other in zip(wanted, found, strict=False):
        if node is not other:
            raise _fail("partition", other, f"would run before {node.name}, on this rank alone")
    for node in wanted[len(found) :] + found[len(wanted) :]:
        raise _fail("partition", node, "is a collective that does not run once")
    for region in plan.regions:
        between = sum(map(is_collective, region.nodes))
        computes = any(map(is_compute, region.nodes))
        if between != (region.engine == "collective") or (between and computes):
            raise _fail("partition", region.nodes[0], "is in a region of another engine")


def _verify_region(region: Region, there: set[fx.Node], computed: set[fx.Node]) -> None:
    inside = set(region.inputs)
    for node in region.inputs:
        if node not in there:
            raise _fail("partition", node, f"is read by {region.name} before it is there")
    for node in region.nodes:
        _require(node, node.all_input_nodes, inside)
        if is_compute(node):
            if node in computed:
                raise _fail("partition", node, f"is in {region.name} and in another region")
            computed.add(node)
        inside.add(node)
    for node in region.outputs:
        if node not in inside or is_glue(node):
            raise _fail("partition", node, f"is no value that {region.name} computes")


def _require(node: fx.Node, wanted: list[fx.Node], there: set[fx.Node]) -> None:
    for argument in wanted:
        if argument not in there:
            raise _fail("partition", node, f"reads {argument.name} before it is there")
