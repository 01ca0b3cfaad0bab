"""The small instructions of `_fixed_point_sums.py`: grids of chunks, and the sums before them."""

from __future__ import annotations

from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._fixed_point_steps import Chunk, moves

_JUNK = 2048  # the longest piece
# `lift` is `_SCALE` times a bound of the sums: 24 bits hold any sum on the grid, with room for what
# rounding adds.
_SCALE = 2.125
_EXPONENT = 255 * 2**23  # the bits of the exponent of float32
_SIGN = -(2**31)
_LARGEST = 2.0**127  # of lifts to which such sums can be added


class Constants(NamedTuple):
    """A column of zeros; where ScalarE puts what nobody reads; and the scaled bounds of all chunks,
    `[128, chunks]`."""

    zero: nl.NkiTensor
    junk: nl.NkiTensor
    bounds: nl.NkiTensor


class Scales(NamedTuple):
    """Of a chunk, columns: the scaled sum of magnitudes since the epoch began; the bound of the
    sums, scaled; what is added is rounded by `lift`: that or, in long rows, which need the finer
    grid, its power of two, negated (`lifts` has it twice); and `lift` or, where what was left is
    moved, with it."""

    magnitudes: nl.NkiTensor
    bound: nl.NkiTensor
    lifts: Any
    lift: nl.NkiTensor
    moved: nl.NkiTensor


class Sums(NamedTuple):
    """Of a chunk, behind every second element: the sums of rounded elements, which begin with the
    one before; and what is left, between two of which is what the results between two others
    need."""

    rounded: nl.NkiTensor
    left: nl.NkiTensor


def constants(chunks: int) -> Constants:
    """For so many chunks."""
    pmax = nl.tile_size.pmax
    zero = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    bounds = nl.ndarray((pmax, chunks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    nisa.memset(dst=bounds, value=0.0, engine=nisa.engine.gpsimd)
    return Constants(zero, nl.ndarray((pmax, _JUNK), dtype=nl.bfloat16, buffer=nl.sbuf), bounds)


def scales_of(p: int, c: int, chunk: Chunk, given: Constants) -> Scales:
    """The columns of chunk `c` on `p` partitions."""
    bound = given.bounds[0:p, c : c + 1]
    lift, lifts, magnitudes = bound, None, bound
    if chunk.in_powers == 1:
        lifts = nl.ndarray((p, 2), dtype=nl.int32, buffer=nl.sbuf)
        lift = lifts[:, 0:1].view(nl.float32)
        magnitudes = bound if chunk.before < 0 else _column(p)
    return Scales(
        magnitudes=magnitudes,
        bound=bound,
        lifts=lifts,
        lift=lift,
        moved=_column(p) if moves(chunk) else lift,
    )


def _column(p: int) -> nl.NkiTensor:
    return nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)


def bound(
    scales: Scales, data: nl.NkiTensor, given: Constants, is_first: bool, is_last: bool
) -> None:
    """Magnitudes of a piece, `is_first` of its epoch or `is_last` of its chunk."""
    p, count = data.shape
    commands = nisa.reduce_cmd
    nisa.activation(
        dst=given.junk[0:p, 0:count], op=nl.abs, data=data, scale=_SCALE, reduce_op=nl.add,
        reduce_res=scales.magnitudes if is_last else None,
        reduce_cmd=commands.reset_reduce if is_first else commands.reduce,
    )  # fmt: skip


def bound_all(chunk: Chunk, scales: list[Any], sums: list[Any], c: int) -> None:
    """What chunk `c` rounds by, where that is a power of two: that of the bound of its sums, the
    magnitudes of its epoch and the one before, and the sum before these."""
    own = scales[c]
    if chunk.before >= 0:
        last = scales[chunk.before].magnitudes
        nisa.tensor_tensor(dst=own.bound, data1=own.magnitudes, data2=last, op=nl.add)
    if chunk.long_before >= 0:
        before = last_of(sums[chunk.long_before].rounded)
        magnitude = _column(own.bound.shape[0])
        nisa.scalar_tensor_tensor(
            dst=magnitude, data=before, op0=nl.multiply, operand0=-1.0, op1=nl.maximum,
            operand1=before,
        )  # fmt: skip
        nisa.scalar_tensor_tensor(
            dst=own.bound, data=magnitude, op0=nl.multiply, operand0=_SCALE, op1=nl.add,
            operand1=own.bound,
        )  # fmt: skip
    twice = own.bound.view(nl.int32).broadcast(1, 2)  # no fast mode: GpSimd may have the bus
    nisa.tensor_scalar(
        dst=own.lifts, data=twice, op0=nl.bitwise_and, operand0=_EXPONENT, op1=nl.bitwise_or,
        operand1=_SIGN,
    )  # fmt: skip


def good_ones(given: Constants) -> nl.NkiTensor:
    """1 where a bound is small enough, else 0, in bfloat16."""
    good = nl.ndarray(given.bounds.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=good, data=given.bounds, op0=nl.less, operand0=_LARGEST)
    return good


def move(scales: list[Any], sums: list[Any], c: int) -> None:
    """What the chunk before last left, without what the last one moved of it, on the grid of chunk
    `c`."""
    own, last, left = scales[c], scales[c - 1], last_of(sums[c - 2].left)
    rest = _column(left.shape[0])
    nisa.scalar_tensor_tensor(
        dst=rest, data=left, op0=nl.subtract, operand0=last.moved, op1=nl.add,
        operand1=last.lift,
    )  # fmt: skip
    nisa.tensor_tensor(dst=own.moved, data1=rest, data2=own.lift, op=nl.add)


def start(scales: list[Any], sums: list[Any], c: int) -> None:
    """The sum before chunk `c`, with what is moved, on the chunk's grid."""
    nisa.scalar_tensor_tensor(
        dst=sums[c].rounded[:, 0:1], data=last_of(sums[c - 1].rounded), op0=nl.add,
        operand0=scales[c].moved, op1=nl.subtract, operand1=scales[c].lift,
    )  # fmt: skip


def start_left(sums: list[Any], c: int) -> None:
    """What the chunk's start lacks of the sum before it."""
    own, last = sums[c], sums[c - 1]
    nisa.scalar_tensor_tensor(
        dst=own.left[:, 0:1], data=last_of(last.rounded), op0=nl.subtract,
        operand0=own.rounded[:, 0:1], op1=nl.add, operand1=last_of(last.left),
    )  # fmt: skip


def start_with_nothing(sums: Sums, given: Constants) -> None:
    """Before a row's first chunk; on ScalarE."""
    zero = given.zero[0 : sums.rounded.shape[0]]
    nisa.activation(dst=sums.rounded[:, 0:1], op=nl.copy, data=zero)
    nisa.activation(dst=sums.left[:, 0:1], op=nl.copy, data=zero)


def last_of(tile: nl.NkiTensor) -> nl.NkiTensor:
    """Its last column."""
    return tile[:, tile.shape[1] - 1 : tile.shape[1]]
