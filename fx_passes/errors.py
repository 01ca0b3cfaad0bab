"""Errors of the passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trnx.simulator.errors import TrnxError

if TYPE_CHECKING:
    from trnx.fx_passes.region import LedgerEntry


class PassOrderError(TrnxError):
    """A pass stands before one that ensures what it requires."""


class GraphInvariantError(TrnxError):
    """A pass left a graph, or a plan, that breaks an invariant of `verify.py`."""


class PatternError(TrnxError):
    """A pattern that the matcher cannot express: a bug of the kernel that declares it."""


class UnsupportedOpError(TrnxError):
    """No engine takes an op of the graph, whatever the policy."""

    def __init__(self, op: str, source: str, reasons: Sequence[str]) -> None:
        self.op = op
        why = "; ".join(reasons) or "no fallback engine is available"
        super().__init__(
            f"no engine runs {op} (called at {source}): {why}. "
            "Install the xla extra, allow fallback='eager', or move the op out of the function"
        )


class FallbackForbiddenError(TrnxError):
    """Policy `error`: some ops have no NKI kernel. `entries` lists them all."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self.entries = tuple(entries)
        lines = [
            f"  {e.op} at {e.source or 'unknown line'}: {e.reason} -> {e.advice}"
            for e in self.entries
        ]
        super().__init__(
            f"{len(self.entries)} op(s) have no NKI kernel and fallback='error' forbids others:\n"
            + "\n".join(lines)
            + "\nUse fallback='auto', register a kernel for these ops, or change the lines above."
        )
