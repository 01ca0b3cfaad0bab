"""The blocks of a convolution of one channel a group by products, and how long they take (host
side); see `_depthwise_product.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._geometry import bank_of, input_bytes, result_bytes
from trnx.nki_kernels.kernels.convolution._sharing import Sharing
from trnx.nki_kernels.kernels.convolution._windows import Problem, Window, trivial
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Columns of the smallest tile of the array.
TILE = 32
# Tiles of the array, and cycles between two products of different ones (MM_INIT_LATENCY,
# trainium_inferentia2_arch.rst).
_TILES, LEAST_CYCLES = 16, 64
# Bytes of a partition for the input of a block, and for its outputs.
_INPUT_BYTES, _OUTPUT_BYTES = 6144, 8192
# Times that all tiles of the array are filled, so that loads, products and stores overlap.
_ROUNDS = 5
# Elements that the start of an instruction of VectorE takes the time of.
_START = 73
# Where VectorE, ScalarE and GpSimdE multiply and add: their time against VectorE's alone.
_SHARED = 0.7
# Outputs of one of its instructions, at most.
_MOST_OUTPUTS = 1024
# Times that the inputs are loaded where two kernel rows are a product, and the most time of DMA, of
# that of products, for them not to wait for it.
_LOADED, _MOST_TRANSFERS = 1.25, 1.1
# Of a channel of an image, at most: three tensors, of which outputs come in two blocks.
_DESCRIPTORS = 6
# For the first load and the check of all sums.
_ENDS_SECONDS = 2e-6


def problem_of(b: Bindings, windows: list[Window], hw: Hardware) -> Problem:
    """Of 32 channels of the images of a core."""
    images = trivial(-(-b.x.shape[0] // hw.cores))
    columns = windows[1] if len(windows) > 1 else trivial(1)
    has_residual = b.residual is not None
    return Problem(TILE, TILE, b.x.dtype.itemsize, images, windows[0], columns, has_residual)


def bank_for(b: Bindings, problem: Problem, hw: Hardware) -> tuple[int, int, int]:
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
    cycles = cycles_of(b.groups, math.prod(half), 2 * TILE, hw)
    products = cycles * _banks(problem, half) * problem.taps / hw.pe_clock
    inputs = problem.planes.size * problem.rows.size * problem.columns.size * problem.itemsize
    return half if products <= b.groups * inputs / hw.dma_bytes_per_second else bank


def _banks(problem: Problem, bank: tuple[int, int, int]) -> int:
    """Parts of a phase that share a bank."""
    axes = (problem.planes, problem.rows, problem.columns)
    outputs = (-(-axis.out // axis.step) for axis in axes)
    return math.prod(-(-count // size) for count, size in zip(outputs, bank, strict=True))


def cycles_of(channels: int, size: int, tile: int, hw: Hardware) -> float:
    """Of TensorE, for a kernel position of a bank of all channels."""
    return -(-channels // tile) * max(LEAST_CYCLES, size / (hw.partitions // tile) ** 2)


def product_seconds(
    b: Bindings, problem: Problem, bank: tuple[int, int, int], shift: int, hw: Hardware
) -> float:
    """TensorE's time, or VectorE's for the check of the sums."""
    quadrants = -(-b.groups // TILE)
    banks = _banks(problem, bank)
    size = math.prod(bank)
    cycles = max(LEAST_CYCLES, size / min(_TILES, quadrants * banks))
    taps = problem.taps
    if shift > 0:
        taps = taps // problem.rows.kernel * -(-problem.rows.kernel // 2)
        cycles = max(LEAST_CYCLES, 2 * size / min(_TILES, 2 * quadrants * banks))
    tensor = quadrants * banks * taps * cycles / hw.pe_clock
    phases = problem.rows.step * problem.columns.step
    vector = -(-quadrants * banks // 4) * phases * (size + _START) / hw.vector_clock
    return float(max(tensor, vector) + _ENDS_SECONDS)


def vector_seconds(b: Bindings, problem: Problem, hw: Hardware) -> float:
    """The time of the other way."""
    rows = -(-b.groups * problem.planes.out // hw.partitions)
    outputs = -(-problem.rows.out // problem.rows.step) * -(
        -problem.columns.out // problem.columns.step
    )
    starts = _START * max(1.0, outputs / _MOST_OUTPUTS)
    return float(_SHARED * rows * (outputs + starts) * problem.taps / hw.vector_clock)


def block_of(
    b: Bindings, problem: Problem, bank: tuple[int, int, int], how: tuple[int, int], hw: Hardware
) -> tuple[int, int]:
    """Planes and rows of outputs of a phase whose input is loaded at once: the most of those that
    leave enough rounds and let the array idle least. `how`: columns of a tile, and the shift.
    """
    quadrants = -(-b.groups // TILE)
    tiles = _TILES // 2 if how[1] > 0 else _TILES
    possible = [(bank[0], bank[1])]
    for planes, rows in _sizes(problem, bank):
        needed = input_bytes(problem, planes, rows, 1, hw)
        if needed > _INPUT_BYTES or result_bytes(problem, [planes, rows]) > _OUTPUT_BYTES:
            continue
        blocks = -(-problem.planes.out // planes) * -(-outputs_of_phase(problem.rows) // rows)
        if quadrants * blocks >= _ROUNDS * tiles:
            possible.append((planes, rows))

    def turns(block: tuple[int, int]) -> int:
        return turns_of(b, problem, bank, block, how, hw)

    best = min(reversed(possible), key=turns)
    if how[1] > 0 and turns(possible[0]) == turns(best):
        # The first copies of a small block take less time, but it has more rows that others load.
        products = product_seconds(b, problem, bank, how[1], hw)
        if _transfer_seconds(b, problem, possible[0], hw) <= _MOST_TRANSFERS * products:
            return possible[0]
    return best


def turns_of(
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
    left = -(-rest // tile)  # cells of a block beside those that fill sides
    turns = 0
    for planes, some in pieces_of(problem.planes.out, block[0]):
        for rows, more in pieces_of(outputs_of_phase(problem.rows), block[1]):
            blocks = some * more
            sides = full * blocks + -(-left * blocks // streams)
            turns += -(-sides // count) * -(-planes // bank[0]) * -(-rows // bank[1])
    return turns


def _transfer_seconds(b: Bindings, problem: Problem, block: tuple[int, int], hw: Hardware) -> float:
    """Of the DMA engines of a core, where some of the inputs are loaded twice."""
    blocks = -(-problem.planes.out // block[0]) * -(-outputs_of_phase(problem.rows) // block[1])
    loads = _LOADED * blocks * input_bytes(problem, *block, 1, hw)
    nbytes = b.groups * (loads + problem.outputs * problem.itemsize)
    return float(nbytes / hw.dma_bytes_per_second)


def full_rows(problem: Problem, planes: int, columns: int, hw: Hardware) -> int:
    """Rows of outputs that a bank has room for beside so many planes and columns."""
    return min(outputs_of_phase(problem.rows), float32_per_bank(hw) // (planes * columns))


def pieces_of(outputs: int, size: int) -> Iterator[tuple[int, int]]:
    """Sizes of the pieces of an axis, and how many have that."""
    if outputs >= size:
        yield size, outputs // size
    if outputs % size > 0:
        yield outputs % size, 1


def _sizes(problem: Problem, bank: tuple[int, int, int]) -> Iterator[tuple[int, int]]:
    """Planes and rows of blocks, the smallest first: rows in even pieces, then whole images."""
    rows = outputs_of_phase(problem.rows)
    parts = -(-rows // bank[1])
    for pieces in range(parts, 0, -1):
        yield bank[0], min(rows, -(-parts // pieces) * bank[1])
    for planes in range(2 * bank[0], problem.planes.out + 1, bank[0]):
        yield planes, rows


def outputs_of_phase(window: Window) -> int:
    return -(-window.out // window.step)


def bytes_of(b: Bindings, problem: Problem, block: tuple[int, int], hw: Hardware) -> int:
    """Of a partition, for the inputs and results of two rounds, and for the filters."""
    results = result_bytes(problem, list(block)) * (2 if problem.has_residual else 1)
    filters = -(-b.groups // (2 * TILE)) + 2
    return int(
        8 * (input_bytes(problem, *block, 1, hw) + results)
        + filters * problem.taps * 2 * TILE * problem.itemsize
    )
