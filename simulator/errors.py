"""Errors of trnx: the root of every named exception, and `Reject`, the value a guard returns.

Every exception says what happened, where (the user's or the kernel's source line) and how to fix
it. Every room to the right defines its own exceptions in its own `errors.py`, on top of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Characters of a finding's message; a kernel's values and names may be of any size.
_LONGEST = 10_000


def shortened(value: object, limit: int = 80) -> str:
    """The representation of a value for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


class TrnxError(Exception):
    """Root of all exceptions that trnx raises on purpose."""


@dataclass(frozen=True)
class Location:
    """A line of source code: of a user's model or of a kernel."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True)
class Reject:
    """Why a kernel, pass or fallback does not take something. Never a bare False.

    `reason` is one sentence that names the limit and the value that broke it.
    `node` is what was refused (an `fx.Node` where there is a graph); its user line goes to the
    ledger. `kernel` is the kernel that would have taken it, where it is about one. `advice` is what
    the user can do about it, where the reason does not say.
    """

    reason: str
    node: Any = None
    kernel: str = ""
    advice: str = ""

    def __str__(self) -> str:
        return self.reason


class UnknownTargetError(TrnxError):
    """A target that is not a Trainium generation known to trnx."""


class FindingError(TrnxError):
    """A check of the simulator failed: a kernel broke a rule of the device.

    `check` is the name of the check, `location` the kernel's source line.
    """

    def __init__(self, check: str, message: str, location: Location | None = None) -> None:
        self.check = check
        self.location = location
        where = f"\n  at {location}" if location else ""
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]} ... ({len(message) - _LONGEST} more characters)"
        super().__init__(f"[{check}] {message}{where}")


class UninitialisedReadError(FindingError):
    """An instruction reads elements that nothing has written."""


class OutOfBoundsError(FindingError):
    """An access pattern leaves its storage."""


class CapacityError(FindingError):
    """SBUF or PSUM does not hold what is live."""


class IllegalInstructionError(FindingError):
    """Operands that the instruction or the generation does not take."""


class UnknownDTypeError(FindingError, TypeError):
    """Something that is no NKI data type."""


class AllocationOverlapError(FindingError):
    """A tensor with an address is read after another one at the same place was written."""


class UnorderedAccessError(FindingError):
    """Two programs use the same elements of shared HBM in no defined order; one of them writes."""


class DeadlockError(FindingError):
    """Programs wait for each other forever."""


class KernelSubsetError(FindingError):
    """Kernel source that is not in NKI's Python subset."""


class UnknownNkiNameError(TrnxError, AttributeError):
    """A name that a module of NKI does not have."""


class FindingWarning(UserWarning):
    """A finding that was asked to be a warning: `finding` as it would have been raised."""

    def __init__(self, message: str, finding: FindingError | None = None) -> None:
        super().__init__(message)
        self.finding = finding
