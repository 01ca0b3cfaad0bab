"""Legality: which kernels of the registry fit where. Biggest patterns first, from the outputs.

A kernel that `fuses` what others do apart is taken only where it is predicted to be faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from typing import Any

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.match import Arguments, GraphMatch, Matcher, bindings_spec, matchers
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.profit import Profit
from trnx.fx_passes.split_matches import Refused, nothing
from trnx.nki_kernels.spec import Kernel
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

# Predicted seconds of the kernels that would run the nodes of a match without its own one; None
# where they do not run all of them.
Apart = Callable[[GraphMatch], float | None]


def find_kernels(
    graph: fx.Graph,
    kernels: Iterable[Kernel],
    hardware: Hardware,
    profit: Profit,
    refusals: Refusals,
    barred: Set[fx.Node],
    apart: Apart,
    refused: Refused = nothing,
) -> tuple[GraphMatch, ...]:
    """Matches that do not overlap in compute nodes; `barred` nodes may not be fused with others,
    and none is `refused`.

    Near misses, guards' rejections and kernels that do not pay go to `refusals`.
    """
    by_target: defaultdict[Any, list[fx.Node]] = defaultdict(list)
    for node in reversed(graph.nodes):
        if node.op == "call_function":
            by_target[node.target].append(node)
    claimed: set[fx.Node] = set()
    known: dict[fx.Node, Arguments] = {}
    found: list[GraphMatch] = []
    for rivals in _rivals(matchers(kernels)):
        for node in by_target[rivals[0].root_target]:
            if node in claimed:
                continue
            taken = claimed | barred if barred else claimed
            tries = [
                _try(matcher, matcher.match(node, known), hardware, profit, taken, apart, refused)
                for matcher in rivals
            ]
            fits = [match for match in tries if isinstance(match, GraphMatch)]
            fitting = {match.match.kernel.name for match in fits}
            for reject in tries:
                # Not where another pattern of the same kernel takes as much.
                if isinstance(reject, Reject) and reject.kernel not in fitting:
                    refusals.add(node, reject)
            if fits:
                chosen = _choose(fits, profit, refusals)
                claimed.update(n for n in chosen.nodes if is_compute(n))
                found.append(chosen)
    return tuple(found)


def _rivals(every: Iterable[Matcher]) -> list[list[Matcher]]:
    """Patterns of one size that end in the same operator, biggest first: ties are possible."""
    groups: defaultdict[tuple[int, Any], list[Matcher]] = defaultdict(list)
    for matcher in every:
        groups[matcher.size, matcher.root_target].append(matcher)
    return list(groups.values())


def _choose(fits: list[GraphMatch], profit: Profit, refusals: Refusals) -> GraphMatch:
    """The user's kernel before one of the package, then the faster one, then the first pattern."""
    if len({match.match.kernel.name for match in fits}) == 1:
        return fits[0]
    chosen = min(fits, key=lambda m: (_is_builtin(m), profit.nki_seconds(m.match)))
    winner = chosen.match.kernel.name
    for loser in fits:
        name = loser.match.kernel.name
        if name != winner:
            why = (
                "a user's kernel comes before one of the package"
                if _is_builtin(loser) != _is_builtin(chosen)
                else f"is predicted to take {profit.nki_seconds(chosen.match) * 1e6:.1f} us, "
                f"{name} {profit.nki_seconds(loser.match) * 1e6:.1f} us"
            )
            reason = f"kernel {name} matches as much as {winner}; {winner}: {why}"
            refusals.add(loser.root, Reject(reason, loser.root, name, advice.TIE))
    return chosen


def _is_builtin(match: GraphMatch) -> bool:
    return bool(getattr(match.match.kernel, "builtin", False))


def _try(
    matcher: Matcher,
    match: GraphMatch | Reject | None,
    hardware: Hardware,
    profit: Profit,
    taken: Set[fx.Node],
    apart: Apart,
    refused: Refused,
) -> GraphMatch | Reject | None:
    if not isinstance(match, GraphMatch):
        return match
    if refused(match) or not taken.isdisjoint(match.nodes):
        return None
    reject = matcher.kernel.supports(bindings_spec(match.match), hardware)
    if reject is not None:
        name = matcher.kernel.name
        todo = reject.advice or advice.LIMIT
        return Reject(f"kernel {name}: {reject.reason}", match.root, name, todo)
    return profit.refuse(match.match, match.nodes) or _slower(match, profit, apart) or match


def _slower(match: GraphMatch, profit: Profit, apart: Apart) -> Reject | None:
    """A Reject where a kernel that fuses takes longer than what it fuses."""
    kernel = match.match.kernel
    if profit.select == "legal" or not getattr(kernel, "fuses", False):
        return None
    others, own = apart(match), profit.nki_seconds(match.match)
    if others is None or own < others:
        return None
    reason = (
        f"kernel {kernel.name} is predicted to take {own * 1e6:.1f} us, "
        f"the kernels that it fuses {others * 1e6:.1f} us"
    )
    return Reject(reason, match.root, kernel.name, advice.PROFIT)
