"""The ledger: every op that does not run on NKI, with the reason and the user's line."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.nodes import op_name
from trnx.fx_passes.region import Engine, LedgerEntry
from trnx.fx_passes.source import source_line
from trnx.simulator.errors import Reject


def entry(node: fx.Node, engine: Engine, reason: str, what_to_do: str) -> LedgerEntry:
    """One line of the ledger."""
    return LedgerEntry(op_name(node), node.name, engine, reason, source_line(node), what_to_do)


class Refusals:
    """Why nodes were not taken, collected while partition tries."""

    def __init__(self) -> None:
        # Of each node the refusals, by reason.
        self._rejects: dict[fx.Node, dict[str, Reject]] = {}

    def add(self, node: fx.Node, reject: Reject) -> None:
        """Remember one reason for `node`."""
        self._rejects.setdefault(node, {}).setdefault(reject.reason, reject)

    def note(self, node: fx.Node, reason: str, advice: str) -> None:
        """Remember a reason that is not about a kernel."""
        self.add(node, Reject(reason, node, advice=advice))

    def entry(self, node: fx.Node, engine: Engine) -> LedgerEntry:
        """All reasons why `node` runs on `engine`."""
        found = tuple(self._rejects.get(node, {}).values())
        return _entry(node, engine, found or (Reject("no kernel has a pattern for it", node),))

    def near_miss(self, node: fx.Node) -> LedgerEntry | None:
        """Why bigger or other kernels were not taken for a node that runs on NKI."""
        found = tuple(one for one in self._rejects.get(node, {}).values() if one.kernel)
        return _entry(node, "nki", found) if found else None


def _entry(node: fx.Node, engine: Engine, rejects: Sequence[Reject]) -> LedgerEntry:
    advices = dict.fromkeys(one.advice for one in rejects if one.advice)
    reason = "; ".join(one.reason for one in rejects)
    return entry(node, engine, reason, "; ".join(advices) or advice.OWN_KERNEL)
