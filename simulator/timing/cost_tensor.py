"""TensorE: matrix products and transposes. One moving column per cycle, float32 in two passes of
two cycles; costs do not depend on how many rows and columns of the array are used, but products
with `tile_position` leave the rest of the array to others.
"""

from __future__ import annotations

from trnx.simulator.attributes import ProductAttributes, ProductMode
from trnx.simulator.hardware import Hardware
from trnx.simulator.timing.constants import Timing
from trnx.simulator.timing.cost import TENSOR, Cost, Instruction, cycles_ps

_WIDE = ("float32",)
# Products that are two instructions of the ISA, each half of the columns' time.
FP32_PASSES = 2
PARTITIONS = 128
_SQUARE = 32


def tensor_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    """`max(min(64, stationary columns), moving columns)` cycles, times 4 for float32."""
    if not instruction.reads:
        once = cycles_ps(1, hardware.pe_clock)
        return Cost(TENSOR, once, once)
    stationary = instruction.reads[0]
    is_wide = stationary.dtype in _WIDE
    columns = stationary.free_size
    if instruction.opcode == "nc_transpose":
        moving = stationary.partitions
    else:
        moving = instruction.reads[1].free_size if len(instruction.reads) > 1 else columns
        if _mode(instruction) is ProductMode.double_row:
            columns, moving = columns // 2, moving // 2
    weights = columns * (
        constants.weights_fp32_cycles * FP32_PASSES if is_wide else constants.weights_cycles
    )
    per_column = _cycles_per_column(hardware, instruction, is_wide)
    cycles = max(min(constants.matmul_min_columns, columns), moving) * per_column
    if not _is_transpose(instruction):
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
        squares=squares,
        squares_ps=cycles_ps(cycles, hardware.pe_clock),
        # Hidden behind the product before it, unless the engine had to wait.
        weights=cycles_ps(weights, hardware.pe_clock),
    )


def _cycles_per_column(hardware: Hardware, instruction: Instruction, is_wide: bool) -> float:
    if not is_wide:
        return 1
    is_transpose = _is_transpose(instruction)
    # "fp32 transpose 2x faster" (trainium2_arch.rst); onezero: "up to 2x faster" (nki.isa).
    if (is_transpose and hardware.generation >= 3) or _mode(instruction) is ProductMode.onezero:
        return hardware.fp32_cycles_per_column / 2
    return hardware.fp32_cycles_per_column


def _is_transpose(instruction: Instruction) -> bool:
    return instruction.opcode == "nc_transpose" or _mode(instruction) is ProductMode.transpose


def _mode(instruction: Instruction) -> ProductMode:
    return instruction.attributes_of(ProductAttributes).mode


def _squares(instruction: Instruction) -> int:
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
