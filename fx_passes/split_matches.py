"""Matches of several ops that take longer than the same ops, and those beside them, do in other
kernels.

A kernel that takes an op on its way takes it from the chain that ends in that op, or from the one
that begins behind it, or does in more time what one generated kernel would. Asked are kernels that
do not compare themselves with what they fuse (`KernelSpec.fuses`), once for each form. Where sizes
are symbols they stay, as in `leave_to_fusion.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.forms import form_of
from trnx.fx_passes.leave_to_fusion import compute_of, has_symbols, lowered_by
from trnx.fx_passes.match import GraphMatch
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.region import Generator
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

# Whether a match is not to be taken.
Refused = Callable[[GraphMatch], bool]
# Predicted seconds of a group of nodes that hands these results on; None where kernels do not run
# all of them.
Seconds = Callable[[Sequence[fx.Node], Sequence[fx.Node], Refused], float | None]


def nothing(match: GraphMatch) -> bool:
    """Refuses no match."""
    del match
    return False


def takes_several(match: GraphMatch) -> bool:
    """Whether a match has more than one op."""
    return len(compute_of(match)) > 1


def slower_matches(
    matches: Sequence[GraphMatch], generator: Generator, hardware: Hardware, seconds: Seconds
) -> dict[tuple[str, fx.Node], Reject]:
    """By kernel and root, the matches of several ops that take longer than what would run without
    them, and why they are refused."""
    lowered = lowered_by(generator, hardware)
    claimed = {
        node
        for match in matches
        if takes_several(match) or not all(map(lowered, compute_of(match)))
        for node in match.nodes
    }
    known: dict[Hashable, tuple[float | None, float | None]] = {}
    found: dict[tuple[str, fx.Node], Reject] = {}
    for match in matches:
        kernel = match.match.kernel
        if getattr(kernel, "fuses", False) or not takes_several(match) or has_symbols(match):
            continue
        after = list(_readers(match, claimed, lowered))
        beside = [*_beside(match, claimed, lowered), *after]
        if not beside and not all(map(lowered, compute_of(match))):
            continue
        nodes = sorted({*beside, *match.nodes})  # in the order of the graph
        results = _used_outside([*_results(match), *after], nodes)
        form = (id(kernel), form_of(nodes, results))
        if form not in known:
            own = seconds(nodes, results, nothing)
            known[form] = own, seconds(nodes, results, _several_of(kernel))
        taken, without = known[form]
        if taken is not None and without is not None and without < taken:
            reason = (
                f"kernel {kernel.name} and ops beside it are predicted to take {taken * 1e6:.1f} "
                f"us, other kernels {without * 1e6:.1f} us"
            )
            place = (kernel.name, match.root)
            found[place] = Reject(reason, match.root, kernel.name, advice.PROFIT)
    return found


def refused_at(places: Iterable[tuple[str, fx.Node]]) -> Refused:
    """Refuses matches of several ops by these kernels at these roots."""
    every = frozenset(places)
    return lambda match: (match.match.kernel.name, match.root) in every and takes_several(match)


def _several_of(kernel: object) -> Refused:
    return lambda match: match.match.kernel is kernel and takes_several(match)


def _results(match: GraphMatch) -> list[fx.Node]:
    return [node for node in match.match.results if node is not None]


def _used_outside(candidates: Iterable[fx.Node], nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Those that other than `nodes` read, in the order of the graph."""
    inside = set(nodes)
    found = {node for node in candidates if any(user not in inside for user in node.users)}
    return sorted(found)


def _readers(
    match: GraphMatch, claimed: set[fx.Node], lowered: Callable[[fx.Node], bool]
) -> Iterator[fx.Node]:
    """The ops that read what the match gives and that generated kernels run; no match has them with
    others, and nothing else that they read follows from the match."""
    results = _results(match)
    inside = set(match.nodes)
    for user in dict.fromkeys(user for node in results for user in node.users):
        is_free = is_compute(user) and user not in claimed and lowered(user)
        others = (source for source in user.all_input_nodes if source not in inside)
        if is_free and all(other < min(results) for other in others):
            yield user


def _beside(
    match: GraphMatch, claimed: set[fx.Node], lowered: Callable[[fx.Node], bool]
) -> Iterator[fx.Node]:
    """The ops that only the match reads, and that generated kernels run, as they do what reads
    them; no match has them with others."""
    inside = set(match.nodes)
    for op in filter(lowered, compute_of(match)):
        for source in op.all_input_nodes:
            is_free = is_compute(source) and source not in claimed and lowered(source)
            if is_free and all(user in inside for user in source.users):
                yield source
