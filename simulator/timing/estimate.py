"""Estimates of work in closed form, from the same costs as the schedule: no instructions needed.

For what has no Program: regions of the fallback, and kernels too long to trace while a model
compiles. Every engine runs without a gap and tiles are full-sized where the shape allows; nothing
waits, and the physical cores of a logical one (`Hardware.cores`) share the work evenly. Times are
seconds.
"""

from __future__ import annotations

import math

import torch

from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware

# Elements per partition of one instruction of VectorE or ScalarE; a bank of PSUM of float32.
_TILE = 512
_HALVES = (torch.bfloat16, torch.float16)


def product_seconds(
    chip: Hardware, batch: int, rows: int, inner: int, columns: int, dtype: torch.dtype
) -> float:
    """TensorE on `batch` products [rows, inner] x [inner, columns]: whole tiles of 128 x 128 x 512,
    at least 64 columns each.
    """
    if not batch * rows * inner * columns:
        return 0.0
    tiles = batch * math.ceil(inner / chip.partitions)
    # The operand with fewer rows is the stationary one; it is cut into 128 columns at most.
    still, moving = sorted((rows, columns))
    least = min(timing(chip).matmul_min_columns, still)
    blocks = math.ceil(still / chip.partitions)
    whole, rest = divmod(moving, _TILE)
    cycles = whole * _TILE + (max(least, rest) if rest else 0)
    busy = tiles * blocks * cycles * cycles_per_column(chip, dtype) / chip.pe_clock
    return busy / chip.cores


def cycles_per_column(chip: Hardware, dtype: torch.dtype) -> int:
    """Cycles of TensorE for a moving column."""
    return chip.fp32_cycles_per_column if dtype.itemsize >= 4 else 1


def flops_seconds(chip: Hardware, flops: float, dtype: torch.dtype) -> float:
    """TensorE on products of which only the FLOPs are known."""
    return flops * cycles_per_column(chip, dtype) / chip.peak_bf16_flops / chip.cores


def vector_seconds(chip: Hardware, elements: float, dtype: torch.dtype) -> float:
    """VectorE on `elements` spread over all partitions, in tiles of 512 columns."""
    columns = math.ceil(elements / chip.partitions)
    return rows_seconds(chip, 1, chip.partitions, columns, dtype)


def rows_seconds(chip: Hardware, batch: int, rows: int, columns: int, dtype: torch.dtype) -> float:
    """VectorE, once over `batch` matrices of which each row lies in a partition: one element a
    cycle, two of 2-byte types from trn2 on (its 2x mode), and the issue of each tile's instruction.
    """
    if not batch * rows * columns:
        return 0.0
    width = min(2, chip.vector_half_width) if dtype in _HALVES else 1
    issue = math.ceil(columns / _TILE) * timing(chip).vector_issue_cycles
    tiles = batch * math.ceil(rows / chip.partitions)
    return tiles * (columns / width + issue) / chip.vector_clock / chip.cores


def chain_seconds(chip: Hardware, passes: int, columns: int, products: int = 0) -> float:
    """`passes` instructions of VectorE on one tile of a result and `products` of TensorE, each of
    which needs the one before: no time is saved by other tiles.
    """
    constants = timing(chip)
    width = min(columns, _TILE)
    vector = (width + constants.vector_latency_cycles) / chip.vector_clock
    tensor = (width + constants.matmul_latency_cycles) / chip.pe_clock
    handoffs = (passes + products) * constants.handoff_ns * 1e-9
    return passes * vector + products * tensor + handoffs


def hbm_seconds(chip: Hardware, nbytes: float) -> float:
    """The DMA engines of the logical core, or its share of HBM."""
    return nbytes / chip.region_bytes_per_second
