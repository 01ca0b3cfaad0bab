"""Legality: which kernels of the registry fit where. Biggest patterns first, from the outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from typing import Any

from torch import fx

from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.match import GraphMatch, Matcher, bindings_spec, matchers
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.profit import Profit
from trnx.nki_kernels.spec import Kernel
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware


def find_kernels(
    graph: fx.Graph,
    kernels: Iterable[Kernel],
    hardware: Hardware,
    profit: Profit,
    refusals: Refusals,
    barred: Set[fx.Node] = frozenset(),
) -> tuple[GraphMatch, ...]:
    """Matches that do not overlap in compute nodes; `barred` nodes may not be fused with others.

    Near misses, guards' rejections and kernels that do not pay go to `refusals`.
    """
    by_target: defaultdict[Any, list[fx.Node]] = defaultdict(list)
    for node in reversed(graph.nodes):
        if node.op == "call_function":
            by_target[node.target].append(node)
    claimed: set[fx.Node] = set()
    found: list[GraphMatch] = []
    for matcher in matchers(kernels):
        for node in by_target[matcher.root_target]:
            if node in claimed:
                continue
            match = _try(matcher, node, hardware, profit, claimed | barred if barred else claimed)
            if isinstance(match, Reject):
                refusals.add(node, match)
            elif match is not None:
                claimed.update(n for n in match.nodes if is_compute(n))
                found.append(match)
    return tuple(found)


def _try(
    matcher: Matcher, node: fx.Node, hardware: Hardware, profit: Profit, taken: Set[fx.Node]
) -> GraphMatch | Reject | None:
    match = matcher.match(node)
    if not isinstance(match, GraphMatch):
        return match
    if any(inner in taken for inner in match.nodes):
        return None
    reject = matcher.kernel.supports(bindings_spec(match.match), hardware)
    if reject is not None:
        name = matcher.kernel.name
        return Reject(f"kernel {name}: {reject.reason}", node, name)
    return profit.refuse(match.match, match.nodes) or match
