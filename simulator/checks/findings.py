"""What becomes of a finding: an exception, or a warning where the user chose so.

Checks are chosen by name (`FindingError.check`). After some findings there is nothing to execute
(shapes that do not match, a view that does not exist): those are raised in any case.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

from trnx.simulator.errors import FindingError, FindingWarning, TrnxError

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
ALWAYS_WARNINGS = frozenset({DISPUTED, DISPUTED_ORDER})


def is_check(name: str) -> bool:
    """True for the name of a check."""
    from trnx.simulator.modules import nki_modules

    modules = nki_modules()
    return name in (CHECKS | ALWAYS_WARNINGS) or any(
        name in vars(modules[module]) for module in ("nki.isa", "nki.collectives")
    )


class UnknownCheckError(TrnxError, ValueError):
    """A name in `warn` that is no check."""


class Findings:
    """The choice of one trace, and the findings that it let pass."""

    def __init__(self, strict: bool = True, warn: Collection[str] = ()) -> None:
        self._strict = strict
        self._warn = frozenset([warn] if isinstance(warn, str) else warn)
        unknown = sorted(name for name in self._warn if not is_check(name))
        if unknown:
            raise UnknownCheckError(
                f"{', '.join(unknown)}: no such check; there are {', '.join(sorted(CHECKS))}, and "
                "the names of instructions"
            )
        self.passed: list[FindingError] = []

    @property
    def choice(self) -> tuple[bool, frozenset[str]]:
        """What was chosen: `strict` and `warn`."""
        return self._strict, self._warn

    def report(self, finding: FindingError) -> None:
        """Raise `finding`, or warn."""
        if self._strict and finding.check not in self._warn | ALWAYS_WARNINGS:
            raise finding
        self.passed.append(finding)
        warnings.warn(FindingWarning(str(finding)), stacklevel=2)
