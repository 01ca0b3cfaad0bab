"""The ledger: every op that does not run on NKI, with the reason and the user's line."""

from __future__ import annotations

from torch import fx

from trnx.fx_passes.nodes import op_name
from trnx.fx_passes.region import Engine, LedgerEntry
from trnx.fx_passes.source import source_line
from trnx.simulator.errors import Reject


def entry(node: fx.Node, engine: Engine, reason: str) -> LedgerEntry:
    """One line of the ledger."""
    return LedgerEntry(op_name(node), node.name, engine, reason, source_line(node))


class Refusals:
    """Why nodes were not taken, collected while partition tries."""

    def __init__(self) -> None:
        # Of each node the reasons, with the kernel that each is about.
        self._reasons: dict[fx.Node, dict[str, str]] = {}

    def add(self, node: fx.Node, reject: Reject) -> None:
        """Remember one reason for `node`."""
        self._reasons.setdefault(node, {}).setdefault(reject.reason, reject.kernel)

    def reason(self, node: fx.Node) -> str:
        """All reasons for `node` as one line."""
        return "; ".join(self._reasons.get(node, ())) or "no kernel has a pattern for it"

    def note(self, node: fx.Node, reason: str) -> None:
        """Remember why an engine before the chosen one refused `node`."""
        self.add(node, Reject(reason, node))

    def near_misses(self, node: fx.Node) -> str:
        """Why bigger or other kernels were not taken for a node that runs on NKI."""
        reasons = self._reasons.get(node, {})
        return "; ".join(reason for reason, kernel in reasons.items() if kernel)

    def nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that something refused."""
        return tuple(self._reasons)
