"""`Pass`: a small frozen object; the order of passes is data that `check_order` checks.

A property of the graph is a name: one pass ensures it, others require it or may break it.

A pass takes a graph module and returns it, changed in place or new. It keeps `meta` of what it
keeps, gives every node that it makes a fake value, and the user's stack trace of the node that it
replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from trnx.fx_passes.errors import PassOrderError
from trnx.fx_passes.metadata import fake_results_known

# What any edit of a graph may break.
TIDY = frozenset({"no_common_subexpressions", "no_dead_nodes"})


@dataclass(frozen=True)
class Pass:
    """What a pass requires of the graph, what it ensures, and what that held it may break."""

    name: str
    run: Callable[[fx.GraphModule], fx.GraphModule]
    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()

    def after(self, holds: frozenset[str]) -> frozenset[str]:
        """The properties that hold after the pass, where `holds` held before."""
        return (holds - TIDY - set(self.breaks)) | set(self.ensures)


def check_order(
    passes: Sequence[Pass], given: Iterable[str] = (), wanted: Collection[str] = ()
) -> frozenset[str]:
    """The properties that hold after `passes`, where those in `given` hold before.

    Raises PassOrderError where a pass requires, or in the end somebody wants, what no pass before
    ensures, or what one has broken since.
    """
    holds = frozenset(given)
    for one in passes:
        _require(holds, f"pass {one.name!r} requires", one.requires)
        holds = one.after(holds)
    _require(holds, "what follows the passes requires", wanted)
    return holds


def _require(holds: frozenset[str], who: str, wanted: Collection[str]) -> None:
    if missing := sorted(set(wanted) - holds):
        raise PassOrderError(
            f"{who} {', '.join(missing)}, which no pass before it ensures, or one has broken since"
        )


def run_passes(gm: fx.GraphModule, passes: Sequence[Pass]) -> fx.GraphModule:
    """Run `passes` in order. They edit the graph; its code is generated once, here."""
    with fake_results_known():
        for one in passes:
            gm = one.run(gm)
    gm.recompile()
    return gm
