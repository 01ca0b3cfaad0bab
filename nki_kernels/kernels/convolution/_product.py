"""NKI helpers of convolutions: the implicit product.

Input channels lie on the partitions. The input of a block of outputs is loaded once, as it is in
memory; every kernel position is an access pattern on it, and all positions and chunks of 128
channels add up in PSUM, whose partitions are the output channels. Padding is never loaded: at the
border a position adds to those outputs alone that it reaches. Few channels share the partitions
with kernel rows (`fold`): part j of the partitions holds the input shifted by j rows. There padded
rows before the input are zeros in SBUF, and so are their weights, which need not be finite. Where
that still leaves rows of TensorE's array free, several blocks of outputs (`streams`) are computed
side by side, each on `array_rows` rows of its own. Where output channels are few, several such
groups (`sides`) have `array_columns` columns of the array, and so partitions of a bank, each: what
leaves PSUM for one of them takes as long as for all.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, finish, lanes_of
from trnx.nki_kernels.kernels.convolution._loads import Inputs, comes_at_once
from trnx.nki_kernels.kernels.convolution._parts import (
    BankPart,
    Position,
    banks_along,
    first_banks,
    last_banks,
    outputs_along,
    parts_of_block,
    positions_of,
    slices_of,
    where_of,
)
from trnx.nki_kernels.kernels.convolution._plan import (
    Block,
    Plan,
)

# Turns of `finish` in which these engines copy.
_ON_SCALAR, _ON_VECTOR = 0, 1


class Weights(NamedTuple):
    """A tile `[channels, chunks, kernel positions, out channels]`, its number of channels, and for
    each mask of the plan the part of its kernel row, `[channels, 1, positions, out channels]`.
    """

    tile: nl.NkiTensor
    channels: int
    masked: list[nl.NkiTensor]


class Job(NamedTuple):
    """A block: its side, which one of those it is, and its parts that share a bank."""

    side: int
    place: int
    block: Block
    parts: list[BankPart]


class Product(NamedTuple):
    """Part `number` of a block, and the kernel positions that reach it."""

    job: Job
    number: int
    positions: list[Position | None]


class Sums(NamedTuple):
    """The banks of part `number` of each block, one for each stream; output channels of a side."""

    banks: list[nl.NkiTensor]
    number: int
    width: int


def _multiply(
    bank: nl.NkiTensor,
    inputs: Inputs,
    weights: Weights,
    plan: Plan,
    job: Job,
    number: int,
    position: Position,
    chunk: int,
) -> None:
    """The product of one kernel position and chunk of channels for part `number` of a block."""
    taps, clips = position
    slot = (taps[0][0] * plan.rows.slots + taps[1][0]) * plan.columns.slots + taps[2][0]
    left_tile = weights.tile
    if taps[1][4] > 0:
        left_tile = weights.masked[taps[1][4] - 1]
        slot = taps[0][0] * plan.columns.slots + taps[2][0]
    slices = slices_of(job.block, job.parts[number], position)
    target = bank[
        :, clips[0][0] : clips[0][1], clips[1][0] : clips[1][1], clips[2][0] : clips[2][1]
    ]
    left = weights.channels * taps[1][3]
    first = (inputs.place + job.place) * plan.array_rows
    rows = plan.array_rows
    if plan.rest_rows < nl.tile_size.pmax and chunk == weights.tile.shape[1] - 1:
        first, rows = inputs.rest, plan.rest_rows
        if plan.is_paired:
            first = number % 2 * rows
    where: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    if rows < nl.tile_size.pmax or plan.sides > 1:
        where = (first, job.side * plan.array_columns)
        size = (rows, plan.array_columns)
    parts = nl.ds(first, rows if plan.is_filled else min(plan.depth, left - chunk * plan.depth))
    nisa.nc_matmul(
        dst=target,
        stationary=left_tile[parts, chunk, slot, :],
        moving=inputs.tile[parts, chunk, slices[0], slices[1], slices[2]],
        tile_position=where,
        tile_size=size,
    )


def zero(bank: nl.NkiTensor, dtype: object, where: tuple[int, ...], size: tuple[int, ...]) -> None:
    """A product of zeros, so that locations which no kernel position reaches at first are 0."""
    columns = bank.shape[1] * bank.shape[2] * bank.shape[3]
    zeros = nl.ndarray((1, bank.shape[0] + columns), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    zero_by(zeros, bank, where, size)


def zero_by(
    zeros: nl.NkiTensor, bank: nl.NkiTensor, where: tuple[int, ...], size: tuple[int, ...]
) -> None:
    """The same of given `zeros[1, partitions + columns of the bank]`."""
    nisa.nc_matmul(
        dst=bank,
        stationary=zeros[:, 0 : bank.shape[0]],
        moving=zeros[:, bank.shape[0] :],
        tile_position=where,
        tile_size=size,
    )


def _zero(bank: nl.NkiTensor, dtype: object, side: int, plan: Plan) -> None:
    """The same on the part of the array that a side has."""
    where: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    if plan.streams * plan.sides > 1:
        where = (0, side * plan.array_columns)
        size = (plan.array_rows, plan.array_columns)
    zero(bank, dtype, where, size)


def _reached(parts: list[BankPart]) -> list[BankPart]:
    """Those that a kernel position may reach: a stride beyond the kernel leaves out others."""
    found = []
    for part in parts:
        if len(part[0][0][2]) > 0 and len(part[1][0][2]) > 0 and len(part[2][0][2]) > 0:
            found.append(part)
    return found


def _zero_unreached(result: nl.NkiTensor, plan: Plan, block: Block) -> None:
    """Zeros in the outputs of a block that belong to a phase without kernel positions."""
    axes = (plan.planes, plan.rows, plan.columns)
    firsts = (block.plane, block.row, 0)
    for i in range(3):
        axis = axes[i]
        for phase in axis.phases:
            count = min(firsts[i] + axis.block, phase[1]) - firsts[i]
            if len(phase[2]) == 0 and count > 0:
                where = outputs_along(axis, (phase, firsts[i], count), firsts[i] * axis.step)
                if i == 0:
                    part = result[:, where]
                elif i == 1:
                    part = result[:, :, where]
                else:
                    part = result[:, :, :, where]
                nisa.memset(dst=part, value=0.0, engine=nisa.engine.gpsimd)


def convolve_blocks(
    results: list[nl.NkiTensor],
    added: list[nl.NkiTensor | None],
    sides: list[Inputs],
    weights: Weights,
    plan: Plan,
    then: Epilogue,
    turn: int,
    halves: tuple[bool, bool],
) -> int:
    """Blocks side by side: for each of the streams `results[out channels of all sides, planes,
    rows, columns]` in SBUF. `turn` counts the banks that were copied out; returns it after these.
    `halves`: whether two engines copy half of the first bank each, and of the last one.
    """
    is_first, is_last = halves
    jobs: list[Job] = []
    longest = 0
    is_plain = then.scale is None and then.shift is None and then.activation == "none"
    width = weights.tile.shape[3]
    for side in range(len(sides)):
        for index in range(len(sides[side].blocks)):
            block = sides[side].blocks[index]
            lanes = nl.ds(side * plan.array_columns, width)
            every = parts_of_block(plan, block)
            if is_first:
                every = first_banks(every, plan)
            if is_last:
                every = last_banks(every, plan)
            reached = _reached(every)
            if is_plain and added[index] is None and 0 < len(reached) < len(every):
                _zero_unreached(results[index][lanes], plan, block)
                every = reached
            jobs.append(Job(side, index, block, every))
            longest = max(longest, len(every))
    # Before the first ones, TensorE waits for weights.
    waits = is_last and turn > 0 and _come_side_by_side(sides, weights)
    number = 0
    while number < longest:
        # Two banks at once where their last chunks of channels have a half of the array each.
        # Halves take a chunk both before the next one, which may still be on its way.
        by_side = waits and number >= longest - 2
        are_two = plan.is_paired or (is_first and number == 0) or by_side
        end = min(number + 2, longest) if are_two else number + 1
        banks: list[list[nl.NkiTensor]] = []
        for part in range(number, end):
            banks.append(_banks_of(jobs, part, width, plan, len(results)))
        together = 1 if by_side else len(jobs)
        for begin in range(0, len(jobs), together):
            some = jobs[begin : begin + together]
            _multiply_banks(some, number, sides, weights, plan, banks)
        for part in range(number, end):
            its = Sums(banks[part - number], part, width)
            forced = None
            if is_first and part < 2:
                forced = _ON_SCALAR if part == 0 else _ON_VECTOR
            if is_last and longest > 1 and part >= longest - 2:
                # ScalarE takes longer until its result is there.
                forced = _ON_VECTOR if part == longest - 1 else _ON_SCALAR
            after = _finish_banks(results, added, its, jobs, plan, then, (turn, forced))
            if not is_first or part > 0 or longest == 1:  # halves are one turn
                turn = after
        number = end
    return turn


def _come_side_by_side(sides: list[Inputs], weights: Weights) -> bool:
    """Whether inputs come side by side, and the products of a side take little time: few of them
    are left then behind the inputs of the last one.
    """
    return weights.tile.shape[2] == 1 and len(sides) > 1 and comes_at_once(sides[0].tile)


def _finish_banks(
    results: list[nl.NkiTensor],
    added: list[nl.NkiTensor | None],
    sums: Sums,
    jobs: list[Job],
    plan: Plan,
    then: Epilogue,
    turns: tuple[int, int | None],
) -> int:
    """The epilogue of a part of each block; `turns`: as `turn` above, and that to be taken instead,
    or None.
    """
    turn, forced = turns
    number = sums.number
    columns = len(banks_along(plan.columns, 0))
    for index in range(len(results)):
        its = []
        is_same = True
        for job in jobs:
            if job.place == index:
                is_same = is_same and number < len(job.parts)
                if number < len(job.parts):
                    its.append(job)
        for job in its:
            is_same = is_same and _where(job, number, plan) == _where(its[0], number, plan)
        if is_same and len(its) > 0:
            # All of them at once, which takes as long as one of them.
            its = its[0:1]
        for job in its:
            start, end = 0, results[index].shape[0]
            if not is_same:
                start = job.side * plan.array_columns
                end = start + sums.width
            p, r, q = _where(job, number, plan)
            other = added[index]
            more = None if other is None else other[start:end, p, r, q]
            part = job.parts[number]
            bank = sums.banks[index][start:end, 0 : part[0][2], 0 : part[1][2], 0 : part[2][2]]
            its_turn = turn if forced is None else forced
            finish(
                results[index][start:end, p, r, q], bank, more, lanes_of(then, start, end), its_turn
            )
            # Column phases lie between each other's outputs, so one engine takes all of them:
            # else either waits for what the other one has written.
            if len(plan.columns.phases) == 1 or (number + 1) % columns == 0:
                turn = turn + 1
    return turn


def _banks_of(
    jobs: list[Job], number: int, width: int, plan: Plan, streams: int
) -> list[nl.NkiTensor]:
    """For part `number` of each block: a bank for each stream, with all sides."""
    banks = []
    for index in range(streams):
        size = [0, 1, 1, 1]
        for job in jobs:
            if job.place == index:
                size[0] = job.side * plan.array_columns + width
                for axis in range(3):
                    part = job.parts[min(number, len(job.parts) - 1)]
                    size[axis + 1] = max(size[axis + 1], part[axis][2])
        shape = (size[0], size[1], size[2], size[3])
        banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    return banks


def _multiply_banks(
    jobs: list[Job],
    first: int,
    sides: list[Inputs],
    weights: Weights,
    plan: Plan,
    banks: list[list[nl.NkiTensor]],
) -> None:
    """The sums of parts `first ..` of each block, for each of them one of `banks`."""
    width = weights.tile.shape[3]
    products: list[Product] = []
    most = 0
    for number in range(first, first + len(banks)):
        for job in jobs:
            if number < len(job.parts):
                part = job.parts[number]
                its = positions_of(plan, part, (width, part[0][2], part[1][2], part[2][2]))
                products.append(Product(job, number, its))
                most = max(most, len(its))
    # Neighbours use different parts of the array, so that none waits for the one before it; a chunk
    # is used up before the next one, which may still be on its way.
    chunks = weights.tile.shape[1]
    for chunk in range(chunks):
        together = len(jobs)
        if plan.is_paired and chunk == chunks - 1:
            together = len(products)
        for begin in range(0, len(products), together):
            for turn in range(most):
                for product in products[begin : begin + together]:
                    if turn < len(product.positions):
                        _multiply_one(product, first, sides, weights, plan, banks, (turn, chunk))


def _multiply_one(
    product: Product,
    first: int,
    sides: list[Inputs],
    weights: Weights,
    plan: Plan,
    banks: list[list[nl.NkiTensor]],
    which: tuple[int, int],
) -> None:
    """Kernel position and chunk `which` of a part; `banks` as above."""
    job, number, positions = product
    turn, chunk = which
    part = job.parts[number]
    lanes = nl.ds(job.side * plan.array_columns, weights.tile.shape[3])
    bank = banks[number - first][job.place]
    bank = bank[lanes, 0 : part[0][2], 0 : part[1][2], 0 : part[2][2]]
    position = positions[turn]
    if position is not None:
        _multiply(bank, sides[job.side], weights, plan, job, number, position, chunk)
    elif chunk == 0:
        _zero(bank, weights.tile.dtype, job.side, plan)


def _where(job: Job, number: int, plan: Plan) -> tuple[slice, slice, slice]:
    """Where part `number` lies in the result of its block."""
    return where_of(plan, job.block, job.parts[number])
