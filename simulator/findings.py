"""What becomes of a finding: an exception, or a warning where the user chose so.

Checks are chosen by name (`FindingError.check`). After some findings there is nothing to execute
(shapes that do not match, a view that does not exist): those are raised in any case.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

from trnx.simulator.errors import FindingError, FindingWarning

# What `FindingError.check` may be, besides the names of instructions and collectives.
CHECKS = frozenset(
    {
        "address",
        "address-overlap",
        "buffer",
        "capacity",
        "deadlock",
        "dtype",
        "engine",
        "gather-index",
        "kernel-purity",
        "kernel-subset",
        "launch-grid",
        "legality",
        "matmul-accumulate",
        "out-of-bounds",
        "partitions",
        "psum-bank",
        "result",
        "scatter-index",
        "shared-hbm-order",
        "start-partition",
        "tile",
        "uninitialised-read",
        "uninitialised-result",
        "view",
    }
)
# Rules on which the sources disagree, or that they leave open, are warnings, whatever was chosen.
DISPUTED = "kernel-subset-disputed"
DISPUTED_ORDER = "shared-hbm-order-disputed"
DISPUTED_LEGALITY = "legality-disputed"
# Inputs for which the documentation calls results invalid: a warning, as they depend on values; of
# functions whose results kernels repair, on request.
ACTIVATION_RANGE = "activation-range"
ALWAYS_WARNINGS = frozenset({DISPUTED, DISPUTED_ORDER, DISPUTED_LEGALITY, ACTIVATION_RANGE})
# What is right in many kernels and a mistake in others: a warning, where it was asked for.
CLIPPED_SLICE = "clipped-slice"
ON_REQUEST = frozenset({CLIPPED_SLICE})


class Findings:
    """The choice of one trace, and the findings that it let pass."""

    def __init__(self, strict: bool = True, warn: Collection[str] = ()) -> None:
        self._strict = strict
        self._warn = frozenset(warn)
        self.passed: list[FindingError] = []

    def is_requested(self, check: str) -> bool:
        """True where a warning was asked for by its name."""
        return check in self._warn

    def report(self, finding: FindingError) -> None:
        """Raise `finding`, or warn; nothing for one on request that nobody asked for."""
        if finding.check in ON_REQUEST - self._warn:
            return
        if self._strict and finding.check not in self._warn | ALWAYS_WARNINGS:
            raise finding
        self.passed.append(finding)
        warnings.warn(FindingWarning(str(finding), finding), stacklevel=2)
