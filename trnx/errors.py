"""All named errors of trnx; every one derives from `TrnxError`."""

from trnx.backend.errors import (
    BackendError,
    CoverageError,
    DemoDependencyError,
    ExampleError,
    InvalidOptionError,
    KernelFailedError,
    KernelRefusedError,
    OptionError,
    UnknownOptionError,
    UnsupportedDeviceError,
    UnsupportedModeError,
    UnsupportedVersionError,
)
from trnx.eks.errors import (
    EksError,
    JobRefusedError,
    MissingExtraError,
    SchemaFolderError,
    YamlError,
)
from trnx.fallback.errors import FallbackError
from trnx.fx_passes.errors import FallbackForbiddenError, UnsupportedOpError
from trnx.nki_kernels.errors import DuplicateKernelError
from trnx.simulator.errors import (
    CapacityError,
    FindingError,
    IllegalInstructionError,
    KernelSubsetError,
    Location,
    OutOfBoundsError,
    Reject,
    TrnxError,
    UninitialisedReadError,
    UnknownTargetError,
)

__all__ = [
    "BackendError",
    "CapacityError",
    "CoverageError",
    "DemoDependencyError",
    "DuplicateKernelError",
    "EksError",
    "ExampleError",
    "FallbackError",
    "FallbackForbiddenError",
    "FindingError",
    "IllegalInstructionError",
    "InvalidOptionError",
    "JobRefusedError",
    "KernelFailedError",
    "KernelRefusedError",
    "KernelSubsetError",
    "Location",
    "MissingExtraError",
    "OptionError",
    "OutOfBoundsError",
    "Reject",
    "SchemaFolderError",
    "TrnxError",
    "UninitialisedReadError",
    "UnknownOptionError",
    "UnknownTargetError",
    "UnsupportedDeviceError",
    "UnsupportedModeError",
    "UnsupportedOpError",
    "UnsupportedVersionError",
    "YamlError",
]
