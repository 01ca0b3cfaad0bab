"""When a convolution of one channel a group is done by products, and in which order (host side);
see `_depthwise_product.py`. Its blocks: `_depthwise_blocks.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from trnx.nki_kernels.kernels.convolution._depthwise_blocks import (
    LEAST_CYCLES,
    TILE,
    bank_for,
    block_of,
    bytes_of,
    cycles_of,
    full_rows,
    outputs_of_phase,
    pieces_of,
    problem_of,
    product_seconds,
    turns_of,
    vector_seconds,
)
from trnx.nki_kernels.kernels.convolution._depthwise_plan import is_depthwise
from trnx.nki_kernels.kernels.convolution._geometry import axis_numbers, input_bytes
from trnx.nki_kernels.kernels.convolution._sharing import PARTITIONS_PER_ENGINE
from trnx.nki_kernels.kernels.convolution._windows import Problem, Window, trivial
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

# The fields of the kernel's axes.
Plan = tuple[tuple[object, ...], ...]

# Share of the cycles with small tiles that those with large ones take at most to be taken.
_WORTH = 0.85
# Times that the inputs are loaded where half of them are loaded twice.
_DOUBLED = 1.5
# Banks in turn that are enough for some of them to be smaller than others.
_FEW_TURNS = 4
# Of the kernel positions that are multiplied while the input of a side is loaded.
_AHEAD = 2 / 3
# The share of a partition of SBUF that two rounds may fill.
_SHARE = 0.7


def products_plan(b: Bindings, windows: list[Window], hw: Hardware) -> Plan | None:
    """None where VectorE is faster, or alone possible: NeuronCore-v2 has tiles of 64, and products
    of float32 take four times as long.
    """
    if not is_depthwise(b) or hw.generation < 3 or b.x.dtype.itemsize != 2 or len(windows) > 2:
        return None
    if b.weight.shape[:2] != (b.groups, 1) or b.groups < TILE:
        return None
    problem = problem_of(b, windows, hw)
    bank = bank_for(b, problem, hw)
    shift = products_shift(b, windows, hw)
    if product_seconds(b, problem, bank, shift, hw) > vector_seconds(b, problem, hw):
        return None
    block = block_of(b, problem, bank, (tile_of(b, windows, hw), shift), hw)
    return _plan_of(b, problem, block, bank, hw)


def doubled_plan(b: Bindings, windows: list[Window], hw: Hardware) -> Plan | None:
    """The one in whose place `products_plan` is, for inputs half of which are loaded twice; None
    where that is not faster."""
    if not _doubles_loads(b, windows, hw):
        return None
    problem = problem_of(b, windows, hw)
    planes, _, columns = bank_for(b, problem, hw)
    rows = full_rows(problem, planes, columns, hw)
    return _plan_of(b, problem, (planes, rows), (planes, rows, columns), hw)


def _plan_of(
    b: Bindings, problem: Problem, block: tuple[int, int], bank: tuple[int, int, int], hw: Hardware
) -> Plan | None:
    """Of planes and rows of a block, and planes, rows and columns of a bank; None where that does
    not fit in SBUF."""
    if bytes_of(b, problem, block, hw) > _SHARE * hw.sbuf_partition_bytes:
        return None
    return (
        axis_numbers(trivial(b.x.shape[0]), 1, block[0], bank[0]),
        axis_numbers(problem.rows, 1, block[1], bank[1]),
        axis_numbers(problem.columns, 1, problem.columns.out, bank[2]),
    )


def products_of_core(
    b: Bindings, windows: list[Window], has_images: bool, hw: Hardware
) -> tuple[Bindings, Hardware, bool]:
    """What is planned: the channels of a core as on one core where that takes less time, or all of
    them, whose images cores share; and whether it is channels. `has_images`: what is done again has
    these as an axis.
    """
    if hw.cores == 1 or b.x.ndim != 4 or not is_depthwise(b) or not has_images:
        return b, hw, False
    groups = -(-b.groups // (2 * TILE * hw.cores)) * 2 * TILE
    if b.groups <= groups or b.weight.shape[:2] != (b.groups, 1):
        return b, hw, False
    its: dict[str, Any] = {**b, "groups": groups}
    for name in ("x", "residual"):
        if b[name] is not None:
            shape = (b[name].shape[0], groups, *b[name].shape[2:])
            its[name] = TensorSpec.dense(shape, b[name].dtype)
    its["weight"] = TensorSpec.dense((groups, *b.weight.shape[1:]), b.weight.dtype)
    some, one = Bindings(its), replace(hw, cores=1)
    is_less = _seconds(some, windows, one) < _seconds(b, windows, hw)
    return (some, one, True) if is_less else (b, hw, False)


def _seconds(b: Bindings, windows: list[Window], hw: Hardware) -> float:
    """Of the products of a core."""
    problem = problem_of(b, windows, hw)
    bank = bank_for(b, problem, hw)
    return product_seconds(b, problem, bank, products_shift(b, windows, hw), hw)


def products_shift(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Input rows between two kernel rows that a product takes together, or 0: where strides or
    phases skip rows, as copies of all of them would take longer than is saved; and where a bank has
    whole images, as zeros of the padding would lie between what is loaded.
    """
    problem = problem_of(b, windows, hw)
    rows = problem.rows
    is_possible = rows.kernel > 1 and rows.stride == 1 and rows.dilation < rows.size
    return rows.dilation if is_possible and bank_for(b, problem, hw)[0] == 1 else 0


def products_skew(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Kernel positions that a side is ahead of the next one, so that products follow loads: most of
    those that are multiplied while the input of a side is loaded. None where the products of a
    round take longer than its loads, or copies of kernel rows come between.
    """
    if products_shift(b, windows, hw) > 0:
        return 0
    problem, tile = problem_of(b, windows, hw), tile_of(b, windows, hw)
    bank = bank_for(b, problem, hw)
    block = block_of(b, problem, bank, (tile, 0), hw)
    nbytes = PARTITIONS_PER_ENGINE * input_bytes(problem, *block, 1, hw)
    load = nbytes / hw.dma_engine_rate * hw.pe_clock
    size, count = math.prod(bank), hw.partitions // tile

    def cycles(sides: int) -> int:
        """Of a kernel position of so many sides."""
        return max(LEAST_CYCLES * sides * count, size)

    spare = count * load - problem.taps * cycles(count)
    if spare < 0:
        return 0
    # While not all sides have products, at first and at last, tiles of the array idle.
    idle = 2 * sum(cycles(sides) for sides in range(1, count)) - (count - 1) * cycles(count)
    most = _AHEAD * load / size
    # Small products of one side start as far apart as those of all: no tile idles.
    return int(most if idle == 0 else min(most, spare / idle))


def tile_of(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Columns of a tile of the array: 64 where sixteen tiles of 32 would be done before products of
    others may start.
    """
    if products_shift(b, windows, hw) > 0:
        return TILE
    size = math.prod(bank_for(b, problem_of(b, windows, hw), hw))
    small, large = (cycles_of(b.groups, size, tile, hw) for tile in (TILE, 2 * TILE))
    return 2 * TILE if large <= _WORTH * small else TILE


def _doubles_loads(b: Bindings, windows: list[Window], hw: Hardware) -> bool:
    """Whether blocks of one bank fill it, but for the last ones, not as evenly as possible, and
    half of the inputs are loaded twice, not a quarter, if triggers take no time: VectorE would take
    as long to copy them as products take. Products of eight tiles start 64 cycles apart, in which
    each is done with a full bank; small blocks are the first, whose loads take less time, and the
    last, whose stores do. Not where some of the channels, which do not fill a tile, have few DMA
    engines, rounds are few, or DMA would take longer than products.
    """
    shift = products_shift(b, windows, hw)
    if shift == 0 or b.groups % TILE > 0:
        return False
    problem = problem_of(b, windows, hw)
    bank = bank_for(b, problem, hw)

    def turns(rows: int) -> int:
        one = (bank[0], rows, bank[2])
        return turns_of(b, problem, one, (bank[0], rows), (TILE, shift), hw)

    rows = block_of(b, problem, bank, (TILE, shift), hw)[1]
    full = full_rows(problem, bank[0], bank[2], hw)
    if not bank[1] == rows < full or turns(rows) < max(_FEW_TURNS, turns(full)):
        return False
    loads = 0
    for size, count in pieces_of(outputs_of_phase(problem.rows), full):
        loads += count * input_bytes(problem, bank[0], size, 1, hw)
    outputs = problem.outputs * problem.itemsize
    nbytes = b.groups * (_DOUBLED * problem.planes.out * loads + outputs)
    products = product_seconds(b, problem, bank, shift, hw)
    return bool(nbytes / hw.dma_bytes_per_second <= products)
