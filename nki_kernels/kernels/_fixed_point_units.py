"""The small instructions of `_fixed_point_sums.py`: units of chunks, and the sums before them.

They have two tiles each: those of one tile run in a fast mode of VectorE, for which the bus that
GpSimd uses must be free (trainium2_arch.rst).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._fixed_point_plan import Chunk

_PARTITIONS = 128
_PROBED = 8  # elements that give a unit where no bound is a number
_JUNK = 2048  # the longest piece

# Magnitudes are added times 2^-16: no sum of finite ones of two epochs is infinite.
_SCALE = 2.0**-16
# Exponents of float32 as bits: multiples of 2^23, which VectorE's float32 holds.
_STEP = 2**23
_EXPONENTS = 255 * _STEP  # all bits of the exponent: of what is no number, too
_UNIT = 6  # a unit is 2^-6 times the power of two below the bound, 2^-22 times that of the sums
_LEAST = _UNIT + 1  # the exponent of the least bound, whose unit has an inverse
_MOST = _UNIT + 104 + 127  # all finite sums are 2^24 units of 2^104 at the most
_HELD = 2.0**24 - 1  # units that float32 holds exactly
# Without a bound: a unit of which 2^31, at which integers saturate, is a number.
_MOST_GUESSED = _UNIT + 95 + 127
_BY_FIRST, _BY_BEFORE = 10, 1  # exponents that sums may grow by, where these give the unit


class Constants(NamedTuple):
    """Columns of zeros, and of what exponents are combined with; and where ScalarE puts what nobody
    reads."""

    zero: nl.NkiTensor
    from_first: nl.NkiTensor
    from_before: nl.NkiTensor
    to_inverse: nl.NkiTensor
    to_unit: nl.NkiTensor
    ceiling: nl.NkiTensor
    mask: nl.NkiTensor
    junk: nl.NkiTensor


class Scales(NamedTuple):
    """Of a chunk, columns. Of magnitudes: the sum since the epoch began, and that of the probed
    elements of a row's first chunk. As bits: the exponent of the bound, one that the chunk before
    or the probed elements give, and the one chosen. The inverse of the unit and the unit, and the
    sum before the chunk, exact, and in units."""

    bound: nl.NkiTensor
    probe: nl.NkiTensor
    exponent: nl.NkiTensor
    instead: nl.NkiTensor
    chosen: nl.NkiTensor
    inverse: nl.NkiTensor
    unit: nl.NkiTensor
    before: nl.NkiTensor
    multiple: nl.NkiTensor


class Sums(NamedTuple):
    """Of a chunk, behind every second element: the multiples of units, which begin with the sum
    before; and what is left, between two of which is what the results between two others need."""

    units: nl.NkiTensor
    left: nl.NkiTensor


def constants() -> Constants:
    """For all chunks."""
    mask = nl.ndarray((_PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=mask, value=_EXPONENTS)
    return Constants(
        zero=_filled(0.0),
        from_first=_filled(float((_BY_FIRST - _MOST) * _STEP)),
        from_before=_filled(float((_BY_BEFORE - _MOST) * _STEP)),
        to_inverse=_filled(float((254 + _UNIT) * _STEP)),
        to_unit=_filled(float(_UNIT * _STEP)),
        ceiling=_filled(_HELD),
        mask=mask,
        junk=nl.ndarray((_PARTITIONS, _JUNK), dtype=nl.bfloat16, buffer=nl.sbuf),
    )


def _filled(value: float) -> nl.NkiTensor:
    column = nl.ndarray((_PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=column, value=value)
    return column


def scales_of(p: int) -> Scales:
    """The columns of a chunk on `p` partitions."""
    return Scales(
        bound=_column(p, nl.float32),
        probe=_column(p, nl.float32),
        exponent=_column(p, nl.int32),
        instead=_column(p, nl.float32),
        chosen=_column(p, nl.int32),
        inverse=_column(p, nl.int32),
        unit=_column(p, nl.int32),
        before=_column(p, nl.float32),
        multiple=_column(p, nl.int32),
    )


def _column(p: int, dtype: str) -> nl.NkiTensor:
    return nl.ndarray((p, 1), dtype=dtype, buffer=nl.sbuf)


def probe(scales: Scales, data: nl.NkiTensor, given: Constants) -> None:
    """Magnitudes of the first elements of a row, on ScalarE."""
    p, count = data.shape
    size = min(count, _PROBED)
    nisa.activation(
        dst=given.junk[0:p, 0:size], op=nl.abs, data=data[:, 0:size], scale=_SCALE,
        reduce_op=nl.add, reduce_res=scales.probe, reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip


def bound(
    scales: Scales, data: nl.NkiTensor, given: Constants, is_first: bool, is_last: bool
) -> None:
    """Magnitudes of a piece, `is_first` of its epoch or `is_last` of its chunk."""
    p, count = data.shape
    commands = nisa.reduce_cmd
    nisa.activation(
        dst=given.junk[0:p, 0:count], op=nl.abs, data=data, scale=_SCALE, reduce_op=nl.add,
        reduce_res=scales.bound if is_last else None,
        reduce_cmd=commands.reset_reduce if is_first else commands.reduce,
    )  # fmt: skip


def unit_step(
    step: int, chunk: Chunk, scales: list[Any], sums: list[Any], c: int, given: Constants
) -> None:
    """One of `UNIT_STEPS`; the unit of chunk `c` is complete behind the last one."""
    own = scales[c]
    p = own.bound.shape[0]
    if step == 0:
        _exponents(chunk, scales, sums, c, given)
    elif step == 1:
        other, margin, grown = own.instead, given.from_first, _BY_FIRST
        if chunk.number > 0:
            other, margin, grown = scales[c - 1].chosen, given.from_before, _BY_BEFORE
        else:
            other = own.probe.view(nl.int32)
        nisa.scalar_tensor_tensor(
            dst=own.instead, data=other, op0=nl.minimum,
            operand0=float((_MOST_GUESSED - grown) * _STEP), op1=nl.add, operand1=margin[0:p],
        )  # fmt: skip
    elif step == 2:  # nothing but where the exponent is that of no number
        nisa.scalar_tensor_tensor(
            dst=own.instead, data=own.exponent, op0=nl.equal, operand0=float(_EXPONENTS),
            op1=nl.multiply, operand1=own.instead,
        )  # fmt: skip
    elif step == 3:
        nisa.scalar_tensor_tensor(
            dst=own.chosen, data=own.exponent, op0=nl.minimum, operand0=float(_MOST * _STEP),
            op1=nl.add, operand1=own.instead,
        )  # fmt: skip
    else:
        is_inverse = step == 4
        nisa.scalar_tensor_tensor(
            dst=own.inverse if is_inverse else own.unit, data=own.chosen, op0=nl.maximum,
            operand0=float(_LEAST * _STEP), op1=nl.subtract,
            operand1=(given.to_inverse if is_inverse else given.to_unit)[0:p], reverse1=is_inverse,
        )  # fmt: skip


def _exponents(chunk: Chunk, scales: list[Any], sums: list[Any], c: int, given: Constants) -> None:
    """Of the bound of the sums in a chunk: magnitudes of its epoch and the one before, and the sum
    before these."""
    own = scales[c]
    p = own.bound.shape[0]
    total = own.bound
    if chunk.before >= 0:
        total = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        last = scales[chunk.before].bound
        nisa.tensor_tensor(dst=total, data1=own.bound, data2=last, op=nl.add)
    if chunk.long_before >= 0:
        sum_ = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        magnitude = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        before, unit = last_of(sums[chunk.long_before].units), scales[chunk.long_before].unit
        nisa.tensor_tensor(dst=sum_, data1=before, data2=unit.view(nl.float32), op=nl.multiply)
        nisa.scalar_tensor_tensor(
            dst=magnitude, data=sum_, op0=nl.multiply, operand0=-1.0, op1=nl.maximum, operand1=sum_
        )
        nisa.scalar_tensor_tensor(
            dst=total, data=magnitude, op0=nl.multiply, operand0=_SCALE, op1=nl.add, operand1=total
        )
    mask = given.mask[0:p]
    nisa.tensor_tensor(dst=own.exponent, data1=total.view(nl.int32), data2=mask, op=nl.bitwise_and)
    if chunk.number == 0:
        bits = own.probe.view(nl.int32)
        nisa.tensor_tensor(dst=bits, data1=bits, data2=mask, op=nl.bitwise_and)


def start_step(
    step: int, chunk: Chunk, scales: list[Any], sums: list[Any], c: int, given: Constants
) -> None:
    """One of `START_STEPS`: how many units the sum before chunk `c` is, with what was left two
    chunks ago, so that it stays little; and what the grid does not hold of the sum before."""
    own, unit = scales[c], scales[c].unit.view(nl.float32)
    p = own.bound.shape[0]
    start, left = sums[c].units[:, 0:1], sums[c].left[:, 0:1]
    if step == 0:
        before, scale = last_of(sums[c - 1].units), scales[c - 1].unit.view(nl.float32)
        nisa.tensor_tensor(dst=own.before, data1=before, data2=scale, op=nl.multiply)
    elif step == 1:
        # In every second chunk: two chunks in a row would both move what the first one did.
        moved = last_of(sums[c - 2].left) if chunk.number % 2 == 0 else given.zero[0:p]
        nisa.scalar_tensor_tensor(
            dst=own.multiple, data=moved, op0=nl.add, operand0=own.before, op1=nl.multiply,
            operand1=own.inverse.view(nl.float32),
        )  # fmt: skip
    elif step == 2:  # at most what float32 holds exactly, and finite, so that it can be subtracted
        nisa.scalar_tensor_tensor(
            dst=start, data=own.multiple, op0=nl.maximum, operand0=-_HELD, op1=nl.minimum,
            operand1=given.ceiling[0:p],
        )  # fmt: skip
    elif step == 3:
        nisa.scalar_tensor_tensor(
            dst=left, data=start, op0=nl.multiply, operand0=unit, op1=nl.subtract,
            operand1=own.before, reverse1=True,
        )  # fmt: skip
    else:
        nisa.tensor_tensor(dst=left, data1=left, data2=last_of(sums[c - 1].left), op=nl.add)


def start_with_nothing(sums: Sums, given: Constants) -> None:
    """Before a row's first chunk; on ScalarE."""
    zero = given.zero[0 : sums.units.shape[0]]
    nisa.activation(dst=sums.units[:, 0:1], op=nl.copy, data=zero)
    nisa.activation(dst=sums.left[:, 0:1], op=nl.copy, data=zero)


def last_of(tile: nl.NkiTensor) -> nl.NkiTensor:
    """Its last column."""
    return tile[:, tile.shape[1] - 1 : tile.shape[1]]
