"""What the model says for each kind of point: latency, interval, transfer, whole kernels (ns).

Every measure takes a `Chip`, so that constants can be replaced by others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.costs.constants import Timing, timing
from trnx.simulator.costs.cost import Cost
from trnx.simulator.costs.tensor import FP32_PASSES, weights_cost
from trnx.simulator.hardware import Hardware, hardware
from trnx.simulator.timing.model import CostModel
from trnx.simulator.timing.scheduler import schedule

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SHAPE = (4096, 8192, 8192)


@dataclass(frozen=True)
class Chip:
    """A generation with its constants."""

    hardware: Hardware
    constants: Timing

    @classmethod
    def of(cls, target: str) -> Chip:
        """The model as it is."""
        return cls(hardware(target), timing(hardware(target)))

    def with_constant(self, name: str, value: float) -> Chip:
        """The model with another value of one constant."""
        return Chip(self.hardware, dataclasses.replace(self.constants, **{name: value}))


@functools.cache
def _kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("kernels.py"))


@functools.cache
def _traced(kernel: str, target: str, tensors: tuple[Any, ...], *rest: Any) -> Program:
    specs = [TensorSpec.dense(shape, _DTYPES[dtype]) for dtype, shape in tensors]
    return trace(getattr(_kernels(), kernel), [*specs, *rest], target=target)


def _costs(program: Program, chip: Chip, engines: tuple[str, ...]) -> list[Cost]:
    model = CostModel(chip.hardware, program.rows, chip.constants)
    return [model.of(row.index) for row in program.rows if row.engine in engines]


def _instruction(
    chip: Chip, kind: str, size: int, dtype: str, from_psum: bool = False, partitions: int = 128
) -> Program:
    tensors = ((dtype, (partitions, size)),)
    return _traced("instruction", chip.hardware.target, tensors, kind, from_psum)


def latency(chip: Chip, *arguments: Any) -> float:
    """Start to visible result of one instruction, its table loaded."""
    return _costs(_instruction(chip, *arguments), chip, ("vector", "scalar"))[-1].latency / 1000


def interval(chip: Chip, *arguments: Any) -> float:
    """From one instruction to the next."""
    return _costs(_instruction(chip, *arguments), chip, ("vector", "scalar"))[-1].interval / 1000


def spacing(chip: Chip, *arguments: Any) -> float:
    """From one instruction to the next, which reads its result."""
    program = _instruction(chip, *arguments)
    result = schedule(program.rows, chip.hardware, constants=chip.constants)
    starts = [
        result.start[position]
        for position, row in enumerate(result.order)
        if program.rows[row].engine in ("vector", "scalar")
    ]
    return (starts[-1] - starts[-2]) / 1000


def with_table(chip: Chip, *arguments: Any) -> float:
    """Latency of a ScalarE instruction that finds another table."""
    return latency(chip, *arguments) + table(chip)


def table(chip: Chip) -> float:
    """Loading a table of ScalarE."""
    return chip.constants.scalar_table_ns


def semaphore(chip: Chip) -> float:
    """An instruction of SyncE."""
    return chip.constants.semaphore_ns


def _product(chip: Chip, dtype: str, columns: int, moving: int) -> Cost:
    tensors = ((dtype, (128, columns)), (dtype, (128, moving)))
    program = _traced("product", chip.hardware.target, tensors)
    return _costs(program, chip, ("tensor",))[0]


def product_interval(chip: Chip, dtype: str, columns: int, moving: int) -> float:
    """From one pass of a product to the next."""
    passes = FP32_PASSES if dtype == "float32" else 1
    return _product(chip, dtype, columns, moving).interval / 1000 / passes


def product(chip: Chip, dtype: str, columns: int, moving: int) -> float:
    """One pass of a product, start to end."""
    cost = _product(chip, dtype, columns, moving)
    return product_interval(chip, dtype, columns, moving) + (cost.latency - cost.interval) / 1000


def weights(chip: Chip, columns: int, is_wide: bool) -> float:
    """Loading weights."""
    return weights_cost(chip.hardware, chip.constants, columns, is_wide) / 1000


def _load(chip: Chip, partitions: int, size: int) -> Cost:
    tensors = (("bfloat16", (partitions, size)),)
    program = _traced("load_and_store", chip.hardware.target, tensors)
    return _costs(program, chip, ("dma",))[0]


def transfer(chip: Chip, partitions: int, size: int) -> float:
    """The part of one DMA engine, first byte to last."""
    return _load(chip, partitions, size).transfer / 1000


def window(chip: Chip, partitions: int, size: int) -> float:
    """All engines of one transfer, first byte to last."""
    cost = _load(chip, partitions, size)
    return cost.transfer / 1000 + (cost.dma_engines - 1) * chip.constants.dma_stagger_ns


def matmul(chip: Chip, dtype: str, kernel: str, *blocks: int) -> float:
    """A whole kernel."""
    m, k, n = _SHAPE
    tensors = ((dtype, (k, m)), (dtype, (k, n)))
    program = _traced(kernel, chip.hardware.target, tensors, *blocks)
    return schedule(program.rows, chip.hardware, constants=chip.constants).total_ps / 1000


MEASURES: dict[str, Callable[..., float]] = {
    function.__name__: function
    for function in (
        latency, interval, spacing, with_table, table, semaphore, product, product_interval,
        weights, transfer, window, matmul,
    )
}  # fmt: skip
