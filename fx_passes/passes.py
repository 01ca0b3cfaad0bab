"""`Pass`: a small frozen object; the order of passes is data that `check_order` checks.

A pass takes a graph module and returns it, changed in place or new. It keeps `meta` of what it
keeps, gives every node that it makes a fake value, and the user's stack trace of the node that it
replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from trnx.fx_passes.errors import PassOrderError


@dataclass(frozen=True)
class Pass:
    """`requires` and `ensures` are names of properties of the graph."""

    name: str
    run: Callable[[fx.GraphModule], fx.GraphModule]
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset()


def check_order(passes: Sequence[Pass], given: Iterable[str] = ()) -> frozenset[str]:
    """The properties that hold after `passes`, where those in `given` hold before.

    Raises PassOrderError where a pass requires what nothing before it ensures.
    """
    holds = set(given)
    for one in passes:
        if missing := sorted(one.requires - holds):
            raise PassOrderError(
                f"pass {one.name!r} requires {', '.join(missing)}, which no pass before it ensures"
            )
        holds |= one.ensures
    return frozenset(holds)


def run_passes(
    gm: fx.GraphModule,
    passes: Sequence[Pass],
    after_each: Callable[[fx.GraphModule, str], None] | None = None,
) -> fx.GraphModule:
    """Run `passes` in order; `after_each(gm, name)` is the verification between them.

    Passes edit the graph; its code is generated once, here.
    """
    for one in passes:
        gm = one.run(gm)
        if after_each is not None:
            after_each(gm, one.name)
    gm.recompile()
    return gm
