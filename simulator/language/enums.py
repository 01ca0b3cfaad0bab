"""The enumerations of `nki.isa`; kernels see them under the lower-case names of `EXPORTS`."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any


class Engine(Enum):
    """Engines of a NeuronCore."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6

    # Members are singletons; Enum's own hash runs Python code at every look-up.
    __hash__ = object.__hash__


class ReduceCmd(Enum):
    """What an instruction does with the accumulator registers of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class DgeMode(Enum):
    """Who generates DMA descriptors; kernels also pass the plain numbers."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class OobMode(Enum):
    """What an indirect DMA does with an index out of bounds."""

    error = 0
    skip = 1


class MatmulPerfMode(Enum):
    """FP8 double performance mode; kernels also pass the plain strings."""

    none = "none"
    double_row = "double_row"


class NcVersion(IntEnum):
    """NeuronCore generation; ordered, and comparable with numbers."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class DmaEngine(Enum):
    """Which DMA serves `sendrecv`."""

    dma = 1
    gpsimd_dma = 2


EXPORTS: dict[str, Any] = {
    "engine": Engine,
    "reduce_cmd": ReduceCmd,
    "dge_mode": DgeMode,
    "oob_mode": OobMode,
    "matmul_perf_mode": MatmulPerfMode,
    "nc_version": NcVersion,
    "dma_engine": DmaEngine,
    "tensor_engine": Engine.tensor,
    "vector_engine": Engine.vector,
    "scalar_engine": Engine.scalar,
    "gpsimd_engine": Engine.gpsimd,
    "unknown_engine": Engine.unknown,
}
