"""Errors of the backend: what a user can do wrong, and what a machine can lack."""

from __future__ import annotations

from collections.abc import Iterable

from trnx.simulator.errors import TrnxError


class BackendError(TrnxError):
    """Root of the backend's errors."""


class UnsupportedVersionError(BackendError):
    """A Python or torch that trnx is not tested with."""


class OptionError(BackendError):
    """Something is wrong with `options=` or a `TRNX_*` variable."""


class UnknownOptionError(OptionError):
    """A key that is no option; the message lists the valid ones."""

    def __init__(self, unknown: Iterable[str], valid: Iterable[str]) -> None:
        self.unknown = tuple(unknown)
        super().__init__(
            f"unknown option(s) {', '.join(map(repr, self.unknown))} for backend 'trnx'; "
            f"valid options are {', '.join(valid)}"
        )


class InvalidOptionError(OptionError):
    """A value that an option does not take."""

    def __init__(self, where: str, value: object, valid: Iterable[str]) -> None:
        super().__init__(f"{where}={value!r} is not valid; choose one of {', '.join(valid)}")


class UnsupportedModeError(OptionError):
    """`torch.compile(mode=...)` other than the default."""

    def __init__(self, mode: object) -> None:
        super().__init__(
            f"backend 'trnx' has no mode {mode!r}; leave `mode` out and use `options={{...}}`"
        )


class UnsupportedDeviceError(BackendError):
    """An input that does not live in host memory."""


class UnreadableInputError(BackendError):
    """A tensor given to a compiled graph has no memory that holds its elements."""


class InputChangedError(BackendError):
    """A tensor given to a compiled graph has another dtype or shape than it was compiled for."""


class KernelRefusedError(BackendError):
    """A kernel does not take the sizes of this call, and `fallback="error"` forbids others."""


class SharedResultError(BackendError):
    """Several programs would run a kernel that reads its results, and knows of one program."""


class KernelFailedError(BackendError):
    """A kernel failed when it was traced or run, and `fallback="error"` forbids others."""


class RegionDiffersError(BackendError):
    """The values of a region are not those of its ops (option `check`)."""


class ReproError(BackendError):
    """The folder for stand-alone programs cannot be used."""


class CoverageError(BackendError):
    """Less of the work runs on NKI than `fail_under` asks for."""


class DemoDependencyError(BackendError):
    """The demo's optional dependencies are not installed."""


class ExampleError(BackendError):
    """What was given to explain cannot be called, or nothing is captured of it."""
