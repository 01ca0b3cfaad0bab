"""Errors of the kernel library."""

from __future__ import annotations

from trnx.simulator.errors import TrnxError


class DuplicateKernelError(TrnxError):
    """Two kernels claim one name or one pattern."""


class KernelSpecError(TrnxError):
    """The parts of a kernel's spec do not fit together, or break its contract."""


class GeneratorError(TrnxError):
    """The generator cannot express a region that it was given."""


class KernelCheckError(TrnxError):
    """There is nothing to check."""
