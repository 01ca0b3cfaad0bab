"""When a convolution of one channel a group is done by products, and how it is blocked then (host
side); see `_depthwise_product.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._depthwise_plan import is_depthwise
from trnx.nki_kernels.kernels.convolution._geometry import (
    axis_numbers,
    bank_of,
    input_bytes,
    result_bytes,
)
from trnx.nki_kernels.kernels.convolution._sharing import PARTITIONS_PER_ENGINE, Sharing
from trnx.nki_kernels.kernels.convolution._windows import Problem, Window, trivial
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

# Bytes of a partition for the input of a block, and for its outputs.
_INPUT_BYTES, _OUTPUT_BYTES = 6144, 8192
# Times that all tiles of the array are filled, so that loads, products and stores overlap.
_ROUNDS = 5
# Columns of the smallest tile of the array.
_TILE = 32
# Share of the cycles with small tiles that those with large ones take at most to be taken.
_WORTH = 0.85
# Tiles of the array, and cycles between two products of different ones (MM_INIT_LATENCY,
# trainium_inferentia2_arch.rst).
_TILES, _LEAST_CYCLES = 16, 64
# Elements that the start of an instruction of VectorE takes the time of.
_START = 73
# Where VectorE, ScalarE and GpSimdE multiply and add: their time against VectorE's alone.
_SHARED = 0.7
# Outputs of one of its instructions, at most.
_MOST_OUTPUTS = 1024
# Times that the inputs are loaded where two kernel rows are a product, and the most time of DMA, of
# that of products, for them not to wait for it.
_LOADED, _MOST_TRANSFERS = 1.25, 1.1
_DOUBLED = 1.5  # times where half of them are loaded twice
# Of the kernel positions that are multiplied while the input of a side is loaded.
_AHEAD = 2 / 3
# Of a channel of an image, at most: three tensors, of which outputs come in two blocks.
_DESCRIPTORS = 6
# Banks in turn that are enough for some of them to be smaller than others.
_FEW_TURNS = 4
# The share of a partition of SBUF that two rounds may fill.
_SHARE = 0.7
# For the first load and the check of all sums.
_ENDS_SECONDS = 2e-6


def products_plan(
    b: Bindings, windows: list[Window], hw: Hardware, doubles: bool
) -> tuple[tuple[object, ...], ...] | None:
    """The fields of the kernel's axes; `doubles`: see `doubles_loads`. None where VectorE is
    faster, or alone possible: NeuronCore-v2 has tiles of 64, and products of float32 take four
    times as long.
    """
    if not is_depthwise(b) or hw.generation < 3 or b.x.dtype.itemsize != 2 or len(windows) > 2:
        return None
    if b.weight.shape[:2] != (b.groups, 1) or b.groups < _TILE:
        return None
    problem = _problem(b, windows, hw)
    bank = _bank(b, problem, hw)
    shift = products_shift(b, windows, hw)
    if _product_seconds(b, problem, bank, shift, hw) > _vector_seconds(b, problem, hw):
        return None
    planes, rows = _block(b, problem, bank, (tile_of(b, windows, hw), shift), hw)
    if doubles:
        rows = _full_rows(problem, bank, hw)
        bank = (bank[0], rows, bank[2])
    images = trivial(b.x.shape[0])
    if _bytes(b, problem, (planes, rows), hw) > _SHARE * hw.sbuf_partition_bytes:
        return None
    return (
        axis_numbers(images, 1, planes, bank[0]),
        axis_numbers(problem.rows, 1, rows, bank[1]),
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
    groups = -(-b.groups // (2 * _TILE * hw.cores)) * 2 * _TILE
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
    problem = _problem(b, windows, hw)
    bank = _bank(b, problem, hw)
    return _product_seconds(b, problem, bank, products_shift(b, windows, hw), hw)


def products_shift(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Input rows between two kernel rows that a product takes together, or 0: where strides or
    phases skip rows, as copies of all of them would take longer than is saved; and where a bank has
    whole images, as zeros of the padding would lie between what is loaded.
    """
    problem = _problem(b, windows, hw)
    rows = problem.rows
    is_possible = rows.kernel > 1 and rows.stride == 1 and rows.dilation < rows.size
    return rows.dilation if is_possible and _bank(b, problem, hw)[0] == 1 else 0


def products_skew(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Kernel positions that a side is ahead of the next one, so that products follow loads: most of
    those that are multiplied while the input of a side is loaded. None where the products of a
    round take longer than its loads, or copies of kernel rows come between.
    """
    if products_shift(b, windows, hw) > 0:
        return 0
    problem, tile = _problem(b, windows, hw), tile_of(b, windows, hw)
    bank = _bank(b, problem, hw)
    block = _block(b, problem, bank, (tile, 0), hw)
    nbytes = PARTITIONS_PER_ENGINE * input_bytes(problem, *block, 1, hw)
    load = nbytes / hw.dma_engine_rate * hw.pe_clock
    size, count = math.prod(bank), hw.partitions // tile

    def cycles(sides: int) -> int:
        """Of a kernel position of so many sides."""
        return max(_LEAST_CYCLES * sides * count, size)

    spare = count * load - problem.taps * cycles(count)
    if spare < 0:
        return 0
    # While not all sides have products, at first and at last, tiles of the array idle.
    idle = 2 * sum(cycles(sides) for sides in range(1, count)) - (count - 1) * cycles(count)
    return int(min(_AHEAD * load / size, spare / idle))


def tile_of(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Columns of a tile of the array: 64 where sixteen tiles of 32 would be done before products of
    others may start.
    """
    if products_shift(b, windows, hw) > 0:
        return _TILE
    size = math.prod(_bank(b, _problem(b, windows, hw), hw))
    small, large = (_cycles(b.groups, size, tile, hw) for tile in (_TILE, 2 * _TILE))
    return 2 * _TILE if large <= _WORTH * small else _TILE


def _cycles(channels: int, size: int, tile: int, hw: Hardware) -> float:
    """Of TensorE, for a kernel position of a bank of all channels."""
    return -(-channels // tile) * max(_LEAST_CYCLES, size / (hw.partitions // tile) ** 2)


def _bank(b: Bindings, problem: Problem, hw: Hardware) -> tuple[int, int, int]:
    """Planes, rows and columns of a phase in one PSUM bank: half of the images where all would fit,
    strides skip rows and products still take less time than loads, so that they follow these; if
    these are few, so that triggers take no time (`_descriptors.py`).
    """
    bank = bank_of(problem, Sharing(1, 1, hw.partitions, 1, hw.partitions), hw)
    is_few = _DESCRIPTORS * b.x.shape[0] * b.groups <= MOST_DESCRIPTORS
    if problem.rows.stride == 1 or problem.rows.transposed or not is_few:
        return bank
    if bank[0] == 1 or bank[0] < problem.planes.out:
        return bank
    half = (-(-bank[0] // 2), bank[1], bank[2])
    cycles = _cycles(b.groups, math.prod(half), 2 * _TILE, hw)
    products = cycles * _banks(problem, half) * problem.taps / hw.pe_clock
    inputs = problem.planes.size * problem.rows.size * problem.columns.size * problem.itemsize
    return half if products <= b.groups * inputs / hw.dma_bytes_per_second else bank


def _problem(b: Bindings, windows: list[Window], hw: Hardware) -> Problem:
    """Of 32 channels of the images of a core."""
    images = trivial(-(-b.x.shape[0] // hw.cores))
    columns = windows[1] if len(windows) > 1 else trivial(1)
    has_residual = b.residual is not None
    return Problem(_TILE, _TILE, b.x.dtype.itemsize, images, windows[0], columns, has_residual)


def _banks(problem: Problem, bank: tuple[int, int, int]) -> int:
    """Parts of a phase that share a bank."""
    axes = (problem.planes, problem.rows, problem.columns)
    outputs = (-(-axis.out // axis.step) for axis in axes)
    return math.prod(-(-count // size) for count, size in zip(outputs, bank, strict=True))


def _product_seconds(
    b: Bindings, problem: Problem, bank: tuple[int, int, int], shift: int, hw: Hardware
) -> float:
    """TensorE's time, or VectorE's for the check of the sums."""
    quadrants = -(-b.groups // _TILE)
    banks = _banks(problem, bank)
    size = math.prod(bank)
    cycles = max(_LEAST_CYCLES, size / min(_TILES, quadrants * banks))
    taps = problem.taps
    if shift > 0:
        taps = taps // problem.rows.kernel * -(-problem.rows.kernel // 2)
        cycles = max(_LEAST_CYCLES, 2 * size / min(_TILES, 2 * quadrants * banks))
    tensor = quadrants * banks * taps * cycles / hw.pe_clock
    phases = problem.rows.step * problem.columns.step
    vector = -(-quadrants * banks // 4) * phases * (size + _START) / hw.vector_clock
    return float(max(tensor, vector) + _ENDS_SECONDS)


def _vector_seconds(b: Bindings, problem: Problem, hw: Hardware) -> float:
    """The time of the other way."""
    rows = -(-b.groups * problem.planes.out // hw.partitions)
    outputs = -(-problem.rows.out // problem.rows.step) * -(
        -problem.columns.out // problem.columns.step
    )
    starts = _START * max(1.0, outputs / _MOST_OUTPUTS)
    return float(_SHARED * rows * (outputs + starts) * problem.taps / hw.vector_clock)


def _block(
    b: Bindings, problem: Problem, bank: tuple[int, int, int], how: tuple[int, int], hw: Hardware
) -> tuple[int, int]:
    """Planes and rows of outputs of a phase whose input is loaded at once: the most of those that
    leave enough rounds and let the array idle least. `how`: columns of a tile, and the shift.
    """
    quadrants = -(-b.groups // _TILE)
    tiles = _TILES // 2 if how[1] > 0 else _TILES
    possible = [(bank[0], bank[1])]
    for planes, rows in _sizes(problem, bank):
        needed = input_bytes(problem, planes, rows, 1, hw)
        if needed > _INPUT_BYTES or result_bytes(problem, [planes, rows]) > _OUTPUT_BYTES:
            continue
        blocks = -(-problem.planes.out // planes) * -(-_outputs(problem.rows) // rows)
        if quadrants * blocks >= _ROUNDS * tiles:
            possible.append((planes, rows))

    def turns(block: tuple[int, int]) -> int:
        return _turns(b, problem, bank, block, how, hw)

    best = min(reversed(possible), key=turns)
    if how[1] > 0 and turns(possible[0]) == turns(best):
        # The first copies of a small block take less time, but it has more rows that others load.
        products = _product_seconds(b, problem, bank, how[1], hw)
        if _transfer_seconds(b, problem, possible[0], hw) <= _MOST_TRANSFERS * products:
            return possible[0]
    return best


def doubles_loads(b: Bindings, windows: list[Window], hw: Hardware) -> bool:
    """Whether blocks of one bank fill it, but for the last ones, not as evenly as possible, and
    half of the inputs are loaded twice, not a quarter, if triggers take no time: VectorE would take
    as long to copy them as products take. Products of eight tiles start 64 cycles apart, in which
    each is done with a full bank; small blocks are the first, whose loads take less time, and the
    last, whose stores do. Not where some of the channels, which do not fill a tile, have few DMA
    engines, rounds are few, or DMA would take longer than products.
    """
    shift = products_shift(b, windows, hw)
    if shift == 0 or b.groups % _TILE > 0:
        return False
    problem = _problem(b, windows, hw)
    bank = _bank(b, problem, hw)

    def turns(rows: int) -> int:
        one = (bank[0], rows, bank[2])
        return _turns(b, problem, one, (bank[0], rows), (_TILE, shift), hw)

    rows = _block(b, problem, bank, (_TILE, shift), hw)[1]
    full = _full_rows(problem, bank, hw)
    if not bank[1] == rows < full or turns(rows) < max(_FEW_TURNS, turns(full)):
        return False
    loads = 0
    for size, count in _pieces(_outputs(problem.rows), full):
        loads += count * input_bytes(problem, bank[0], size, 1, hw)
    outputs = problem.outputs * problem.itemsize
    nbytes = b.groups * (_DOUBLED * problem.planes.out * loads + outputs)
    products = _product_seconds(b, problem, bank, shift, hw)
    return bool(nbytes / hw.dma_bytes_per_second <= products)


def _full_rows(problem: Problem, bank: tuple[int, int, int], hw: Hardware) -> int:
    """Rows of outputs that a bank has room for."""
    return min(_outputs(problem.rows), float32_per_bank(hw) // (bank[0] * bank[2]))


def _transfer_seconds(b: Bindings, problem: Problem, block: tuple[int, int], hw: Hardware) -> float:
    """Of the DMA engines of a core, where some of the inputs are loaded twice."""
    blocks = -(-problem.planes.out // block[0]) * -(-_outputs(problem.rows) // block[1])
    loads = _LOADED * blocks * input_bytes(problem, *block, 1, hw)
    nbytes = b.groups * (loads + problem.outputs * problem.itemsize)
    return float(nbytes / hw.dma_bytes_per_second)


def _turns(
    b: Bindings,
    problem: Problem,
    bank: tuple[int, int, int],
    block: tuple[int, int],
    how: tuple[int, int],
    hw: Hardware,
) -> int:
    """Banks that one tile of the array has in turn, as the kernel forms its rounds: of blocks of
    one size, the last of which may leave tiles idle.
    """
    tile, shift = how
    count = hw.partitions // tile
    streams = count // 2 if shift > 0 else count
    full, rest = divmod(b.groups, streams * tile)
    turns = 0
    for planes, some in _pieces(problem.planes.out, block[0]):
        for rows, more in _pieces(_outputs(problem.rows), block[1]):
            blocks = some * more
            sides = full * blocks - (-(-rest // tile) * blocks // streams)
            turns += -(-sides // count) * -(-planes // bank[0]) * -(-rows // bank[1])
    return turns


def _pieces(outputs: int, size: int) -> Iterator[tuple[int, int]]:
    """Sizes of the pieces of an axis, and how many have that."""
    if outputs >= size:
        yield size, outputs // size
    if outputs % size > 0:
        yield outputs % size, 1


def _sizes(problem: Problem, bank: tuple[int, int, int]) -> Iterator[tuple[int, int]]:
    """Planes and rows of blocks, the smallest first: rows in even pieces, then whole images."""
    rows = _outputs(problem.rows)
    parts = -(-rows // bank[1])
    for pieces in range(parts, 0, -1):
        yield bank[0], min(rows, -(-parts // pieces) * bank[1])
    for planes in range(2 * bank[0], problem.planes.out + 1, bank[0]):
        yield planes, rows


def _outputs(window: Window) -> int:
    return -(-window.out // window.step)


def _bytes(b: Bindings, problem: Problem, block: tuple[int, int], hw: Hardware) -> int:
    """Of a partition, for the inputs and results of two rounds, and for the filters."""
    results = result_bytes(problem, list(block)) * (2 if problem.has_residual else 1)
    filters = -(-b.groups // (2 * _TILE)) + 2
    return int(
        8 * (input_bytes(problem, *block, 1, hw) + results)
        + filters * problem.taps * 2 * _TILE * problem.itemsize
    )
