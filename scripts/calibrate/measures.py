"""What the model says for each kind of point: latency, interval, transfer, whole kernels (ns)."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.constants import timing
from trnx.simulator.timing.cost import Cost
from trnx.simulator.timing.cost_tensor import FP32_PASSES, weights_cost
from trnx.simulator.timing.model import CostModel
from trnx.simulator.timing.scheduler import schedule

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SHAPE = (4096, 8192, 8192)


@functools.cache
def _kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("kernels.py"))


def _costs(program: Program, target: str, engines: tuple[str, ...]) -> list[Cost]:
    model = CostModel(hardware(target), program.rows)
    return [model.of(row.index) for row in program.rows if row.engine in engines]


def _instruction(
    target: str, kind: str, size: int, dtype: str, from_psum: bool = False, partitions: int = 128
) -> Program:
    x = TensorSpec.dense((partitions, size), _DTYPES[dtype])
    return trace(_kernels().instruction, [x, kind, from_psum], target=target)


def latency(target: str, *arguments: Any) -> float:
    """Start to visible result of one instruction, its table loaded."""
    return _costs(_instruction(target, *arguments), target, ("vector", "scalar"))[-1].latency / 1000


def interval(target: str, *arguments: Any) -> float:
    """From one instruction to the next."""
    return _costs(_instruction(target, *arguments), target, ("vector", "scalar"))[-1].interval / 1000


def spacing(target: str, *arguments: Any) -> float:
    """From one instruction to the next, which reads its result."""
    program = _instruction(target, *arguments)
    result = schedule(program.rows, hardware(target))
    starts = [
        result.start[position]
        for position, row in enumerate(result.order)
        if program.rows[row].engine in ("vector", "scalar")
    ]
    return (starts[-1] - starts[-2]) / 1000


def with_table(target: str, *arguments: Any) -> float:
    """Latency of a ScalarE instruction that finds another table."""
    return latency(target, *arguments) + table(target)


def table(target: str) -> float:
    """Loading a table of ScalarE."""
    return timing(hardware(target)).scalar_table_ns


def _product(target: str, dtype: str, columns: int, moving: int) -> Cost:
    shapes = ((128, columns), (128, moving))
    specs = [TensorSpec.dense(shape, _DTYPES[dtype]) for shape in shapes]
    return _costs(trace(_kernels().product, specs, target=target), target, ("tensor",))[0]


def product_interval(target: str, dtype: str, columns: int, moving: int) -> float:
    """From one pass of a product to the next."""
    passes = FP32_PASSES if dtype == "float32" else 1
    return _product(target, dtype, columns, moving).interval / 1000 / passes


def product(target: str, dtype: str, columns: int, moving: int) -> float:
    """One pass of a product, start to end."""
    cost = _product(target, dtype, columns, moving)
    return product_interval(target, dtype, columns, moving) + (cost.latency - cost.interval) / 1000


def weights(target: str, columns: int, is_wide: bool) -> float:
    """Loading weights."""
    chip = hardware(target)
    return weights_cost(chip, timing(chip), columns, is_wide) / 1000


def _load(target: str, partitions: int, size: int) -> Cost:
    x = TensorSpec.dense((partitions, size), torch.bfloat16)
    return _costs(trace(_kernels().load_and_store, [x], target=target), target, ("dma",))[0]


def transfer(target: str, partitions: int, size: int) -> float:
    """The part of one DMA engine, first byte to last."""
    return _load(target, partitions, size).transfer / 1000


def window(target: str, partitions: int, size: int) -> float:
    """All engines of one transfer, first byte to last."""
    cost = _load(target, partitions, size)
    return cost.transfer / 1000 + (cost.lanes - 1) * timing(hardware(target)).dma_stagger_ns


def matmul(target: str, dtype: str, kernel: str, *blocks: int) -> float:
    """A whole kernel."""
    m, k, n = _SHAPE
    specs = [TensorSpec.dense(shape, _DTYPES[dtype]) for shape in ((k, m), (k, n))]
    program = trace(getattr(_kernels(), kernel), [*specs, *blocks], target=target)
    return schedule(program.rows, hardware(target)).total_ps / 1000


MEASURES = {
    function.__name__: function
    for function in (
        latency, interval, spacing, with_table, table, product, product_interval, weights,
        transfer, window, matmul,
    )
}  # fmt: skip
