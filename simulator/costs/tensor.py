"""TensorE: matrix products and transposes. One moving column per cycle, float32 in two passes of
two cycles; costs do not depend on how many rows and columns of the array are used, but products
with `tile_position` leave the rest of the array to others.
"""

from __future__ import annotations

import dataclasses

from trnx.simulator.costs.attributes import ProductAttributes, ProductMode
from trnx.simulator.costs.constants import Timing
from trnx.simulator.costs.cost import TENSOR, Cost, EngineCost, Workload, cycles_ps
from trnx.simulator.hardware import Hardware
from trnx.simulator.language.enums import Engine

# Products take no integers; a broadcast of 4-byte ones is assumed to be one of float32.
_WIDE = ("float32", "int32", "uint32")
# Products that are two instructions of the ISA, each half of the columns' time.
FP32_PASSES = 2
PARTITIONS = 128
_SQUARE = 32


def tensor_cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    """A product: `max(min(64, stationary columns), moving columns)` cycles, times 4 for float32."""
    if not instruction.reads:
        once = cycles_ps(1, hardware.pe_clock)
        return Cost(TENSOR, once, once)
    columns = instruction.reads[0].free_size
    moving = instruction.reads[1].free_size if len(instruction.reads) > 1 else columns
    mode = instruction.attributes_of(ProductAttributes).mode
    if mode is ProductMode.double_row:
        columns, moving = columns // 2, moving // 2
    return _array_cost(hardware, constants, instruction, columns, moving, mode)


def _transpose_cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    """The partitions of the operand are what moves."""
    data = instruction.reads[0]
    mode = ProductMode.transpose
    return _array_cost(hardware, constants, instruction, data.free_size, data.partitions, mode)


on_tensor_transposed = EngineCost(Engine.tensor, _transpose_cost)


def _broadcast_cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    """A product of ones, a column for each partition, with the row.

    The ones stay loaded: TensorE is busy for 1,534 to 1,563 us in mamba_v2 of Jerry2423/kda-for-
    trainium, whether it makes 448 of them or 1,792 (w1024, w256).
    """
    row, out = instruction.reads[0], instruction.writes[0]
    mode = ProductMode.plain
    cost = _array_cost(hardware, constants, instruction, out.partitions, row.free_size, mode)
    return dataclasses.replace(cost, weights=0)


on_tensor_broadcast = EngineCost(Engine.tensor, _broadcast_cost)


def _array_cost(
    hardware: Hardware,
    constants: Timing,
    instruction: Workload,
    columns: int,
    moving: int,
    mode: ProductMode,
) -> Cost:
    is_wide = instruction.reads[0].dtype in _WIDE
    weights = columns * (
        constants.weights_fp32_cycles * FP32_PASSES if is_wide else constants.weights_cycles
    )
    per_column = _cycles_per_column(hardware, mode) if is_wide else 1
    cycles = max(min(constants.matmul_min_columns, columns), moving) * per_column
    if mode is not ProductMode.transpose:
        # Loading the next weights hides behind a product that takes as long.
        cycles = max(cycles, weights)
    drain = constants.matmul_latency_cycles + columns * constants.matmul_column_cycles
    latency = cycles + drain
    squares = _squares(instruction)
    # Tiles work side by side; products start 64 cycles apart at least (MM_INIT_LATENCY).
    taken = min(cycles, constants.matmul_min_columns) if squares else cycles
    return Cost(
        TENSOR,
        cycles_ps(taken, hardware.pe_clock),
        cycles_ps(latency, hardware.pe_clock),
        pe_tiles=squares,
        pe_tiles_ps=cycles_ps(cycles, hardware.pe_clock),
        # Hidden behind the product before it, unless the engine had to wait.
        weights=cycles_ps(weights, hardware.pe_clock),
        rows=PARTITIONS if squares else min(PARTITIONS, instruction.reads[0].partitions),
    )


def _cycles_per_column(hardware: Hardware, mode: ProductMode) -> float:
    """Of float32."""
    is_transpose = mode is ProductMode.transpose
    # "fp32 transpose 2x faster" (trainium2_arch.rst); onezero: "up to 2x faster" (nki.isa).
    if (is_transpose and hardware.generation >= 3) or mode is ProductMode.onezero:
        return hardware.fp32_cycles_per_column / 2
    return hardware.fp32_cycles_per_column


def _squares(instruction: Workload) -> int:
    """The 32 x 32 squares of the array that a product with `tile_position` uses, as bits."""
    tile = instruction.attributes_of(ProductAttributes).tile
    if tile is None:
        return 0
    row, column, rows, columns = (number // _SQUARE for number in tile)
    side = PARTITIONS // _SQUARE
    if rows == columns == side:
        return 0
    return sum(
        1 << (r * side + c) for r in range(row, row + rows) for c in range(column, column + columns)
    )


def weights_cost(hardware: Hardware, constants: Timing, columns: int, is_wide: bool) -> int:
    """ps of one LDWEIGHTS by itself (one pass), for calibration."""
    per_column = constants.weights_fp32_cycles if is_wide else constants.weights_cycles
    cycles = constants.weights_latency_cycles + columns * per_column
    return cycles_ps(cycles, hardware.pe_clock)
