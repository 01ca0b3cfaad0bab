"""Running sums of long rows of float32 with one rounding: two scans, in fixed point and in float32.

A row is cut into chunks. Each gets a unit, a power of two, from a bound of its sums: what is
multiples of the unit is added without a rounding, since 24 bits hold it, and what is left, half a
unit an element at the most, is added in float32 (S. M. Rump, T. Ogita, S. Oishi, "Accurate
floating-point summation", SISC 31, 2008, splits so). Where a later chunk has a coarser unit, what
its grid does not hold of the sum so far goes to the other sum.

The bound is the sum of magnitudes of the row's last `_EPOCH` to `2 * _EPOCH` chunks and the sum
before these. An infinity or NaN leaves none: the unit is then by that of the chunk before, or by
the first elements of the row. Whatever the unit is, no sum is wrong, since an element that the
first scan does not hold is left to the second one; with one that does not suit the row, or where
the row's sums are below 2^-104 and need one below 2^-126, its sums have an error like those of
float32.

Both scans take two elements a step, `(element + sum) + next element`, and give the sums behind
every second one: half of the steps. Those between are `sum + (rest + element)`, which rounds twice,
by at most half a unit in the last place of the element and of the sum.

VectorE scans and adds, ScalarE bounds and rounds, GpSimd subtracts and adds. A chunk goes through
stages, each some chunks behind the one before, so that no engine waits for another one. The small
instructions on VectorE are those of three chunks in turn: none waits for the result of the one
before it. They have two tiles each: those of one tile run in a fast mode, for which the bus that
GpSimd uses must be free (trainium2_arch.rst).
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._scans import lanes, places, tiles_of

SHORTEST = 513  # rows of which a partition has no two
_EPOCH = 8  # chunks whose magnitudes are added
_PARTITIONS = 128
_PROBED = 8  # elements that give a unit where no bound is a number
# Steps that a stage is behind the load of a chunk.
_BOUNDED, _SCALED, _SPLIT, _SUMMED, _CORRECTED, _ADDED, _FINISHED = 1, 2, 3, 4, 5, 6, 7

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
# The columns of `_constants`.
_ZERO, _FROM_FIRST, _FROM_BEFORE, _TO_INVERSE, _TO_UNIT, _CEILING, _MASK = range(7)
_BY_FIRST, _BY_BEFORE = 10, 1  # exponents that sums may grow by, where these give the unit


def chunk_of(positions: int) -> int:
    """The elements of a chunk, where a core goes along so many positions in all: large ones have
    less overhead, small ones less to wait for before the first and behind the last."""
    if positions > 16384:
        return 2048
    return 1024 if positions >= 4096 else 512


@nki.jit
def fixed_point_sums_kernel(
    x: nl.NkiTensor,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    groups: tuple[Any, ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """The sums of float32 `x` along its last dimension; `sizes` are length, 1 and chunk, `groups`
    those of `cut`, one row a partition; `cores` share their tiles."""
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    length, chunk = sizes[0], sizes[2]
    work = []  # type: list[Any]
    for group, tile in tiles_of(groups, cores):
        for first in range(0, length, chunk):
            count = min(chunk, length - first)
            work.append((group, tile, first, count, first // chunk))
    constants = _constants()
    data = []  # type: list[nl.NkiTensor]
    words = []  # type: list[nl.NkiTensor]
    bounds = []  # type: list[list[nl.NkiTensor]]
    units = []  # type: list[list[nl.NkiTensor]]
    lefts = []  # type: list[nl.NkiTensor]
    sums = []  # type: list[nl.NkiTensor]
    rests = []  # type: list[nl.NkiTensor]
    added = []  # type: list[nl.NkiTensor]
    end = len(work)
    for step in range(end + _FINISHED):
        if step < end:
            data.append(_load(x, work[step], sizes))
        _prepare(work, bounds, units, words, sums, rests, constants, step)
        i = step - _SUMMED
        if i >= 0 and i < end:
            _scan_pairs(sums[i], words[i].view(nl.float32))
        i = step - _CORRECTED
        if i >= 0 and i < end:
            _scan_pairs(rests[i], lefts[i])
        i = step - _ADDED
        if i >= 0 and i < end:
            _add_second(words[i], sums[i], rests[i])
        i = step - _FINISHED
        if i >= 0:
            _finish(out, work[i], words[i], sums[i], added[i], sizes)
        i = step - _ADDED
        if i >= 0 and i < end:
            added.append(_add_left(data[i], rests[i]))
        i = step - _SPLIT
        if i >= 0 and i < end:
            nisa.activation(dst=words[i], op=nl.copy, data=data[i], scale=units[i][1])
        i = step - _BOUNDED
        if i >= 0 and i < end:
            words.append(nl.ndarray(data[i].shape, dtype=nl.int32, buffer=nl.sbuf))
            bounds.append(_bound(data[i], words[i], work[i][4]))
        i = step - _SPLIT
        if i >= 0 and i < end:
            lefts.append(_split(data[i], words[i], units[i]))
    return out


def _constants() -> list[nl.NkiTensor]:
    """Columns: of zeros, and of what `_unit` combines with exponents."""
    values = (
        0.0,
        float((_BY_FIRST - _MOST) * _STEP),
        float((_BY_BEFORE - _MOST) * _STEP),
        float((254 + _UNIT) * _STEP),
        float(_UNIT * _STEP),
        _HELD,
    )
    columns = []  # type: list[nl.NkiTensor]
    for value in values:
        column = nl.ndarray((_PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=column, value=value)
        columns.append(column)
    mask = nl.ndarray((_PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=mask, value=_EXPONENTS)
    columns.append(mask)
    return columns


def _load(x: nl.NkiTensor, item: tuple[Any, ...], sizes: tuple[int, ...]) -> nl.NkiTensor:
    """A chunk, with a zero behind an odd number of elements."""
    group, tile, first, count, _ = item
    pattern, offset = places(group, tile, first, count, (sizes[0], 1), 1)
    data = nl.ndarray((lanes(group), count + count % 2), dtype=nl.float32, buffer=nl.sbuf)
    if count % 2 == 1:
        nisa.memset(dst=data[:, count : count + 1], value=0.0)
    nisa.dma_copy(dst=data[:, 0:count], src=x.ap(pattern=pattern, offset=offset))
    return data


def _column(partitions: int, dtype: str) -> nl.NkiTensor:
    return nl.ndarray((partitions, 1), dtype=dtype, buffer=nl.sbuf)


def _bound(data: nl.NkiTensor, words: nl.NkiTensor, chunk: int) -> list[nl.NkiTensor]:
    """The sum of magnitudes since the epoch began; of a row's first chunk also that of the probed
    elements. `words` is where ScalarE puts what nobody reads."""
    p, count = data.shape
    found = []  # type: list[nl.NkiTensor]
    sizes = (count, min(count, _PROBED)) if chunk == 0 else (count,)
    for size in sizes[::-1]:
        total = _column(p, nl.float32)
        is_first = chunk % _EPOCH == 0
        nisa.activation(
            dst=words[:, 0:size].view(nl.float32),
            op=nl.abs,
            data=data[:, 0:size],
            scale=_SCALE,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce if is_first else nisa.reduce_cmd.reduce,
        )
        found.append(total)
    return found


def _prepare(
    work: list[Any],
    bounds: list[Any],
    units: list[Any],
    words: list[Any],
    sums: list[Any],
    rests: list[Any],
    constants: Any,
    step: int,
) -> None:
    """The small instructions of a step: of the unit of one chunk, of the sum before another one,
    and of what is left of it before a third one, in turn."""
    end = len(work)
    scaled, summed, corrected = step - _SCALED, step - _SUMMED, step - _CORRECTED
    is_scaled = scaled >= 0 and scaled < end
    is_summed = summed >= 0 and summed < end
    is_corrected = corrected >= 0 and corrected < end
    unit = []  # type: list[nl.NkiTensor]
    multiple = []  # type: list[nl.NkiTensor]
    if is_scaled:
        unit = _exponents(work, bounds, units, sums, constants, scaled)
    if is_summed:
        multiple = _multiple(work, units, sums, rests, constants, summed)
    if is_corrected:
        rests.append(_not_held(work, sums, constants, corrected))
    if is_scaled:
        _keep_for_no_number(unit)
    if is_summed:
        _hold(multiple, constants)
    if is_corrected and work[corrected][4] > 0:
        start = rests[corrected][:, 0:1]
        nisa.tensor_tensor(dst=start, data1=start, data2=_last(rests[corrected - 1]), op=nl.add)
    if is_scaled:
        unit = [_chosen(unit)]
    if is_summed:
        sums.append(_start(words[summed], units[summed], multiple, constants))
    if is_scaled:
        units.append(_unit(unit[0], constants))


def _exponents(
    work: list[Any], bounds: list[Any], units: list[Any], sums: list[Any], constants: Any, i: int
) -> list[nl.NkiTensor]:
    """The exponent of a chunk's bound as bits, and one that the chunk before or the probed elements
    give."""
    chunk = work[i][4]
    total = _whole_bound(bounds, sums, chunk, i)
    p = total.shape[0]
    mask = constants[_MASK][0:p]
    exponent, instead = _column(p, nl.int32), _column(p, nl.float32)
    nisa.tensor_tensor(dst=exponent, data1=total.view(nl.int32), data2=mask, op=nl.bitwise_and)
    if chunk == 0:
        other, margin, grown = _column(p, nl.int32), constants[_FROM_FIRST][0:p], _BY_FIRST
        probe = bounds[i][0].view(nl.int32)
        nisa.tensor_tensor(dst=other, data1=probe, data2=mask, op=nl.bitwise_and)
    else:
        other, margin, grown = units[i - 1][0], constants[_FROM_BEFORE][0:p], _BY_BEFORE
    nisa.scalar_tensor_tensor(
        dst=instead, data=other, op0=nl.minimum,
        operand0=float((_MOST_GUESSED - grown) * _STEP), op1=nl.add, operand1=margin,
    )  # fmt: skip
    return [exponent, instead]


def _keep_for_no_number(exponents: list[nl.NkiTensor]) -> None:
    """The second exponent becomes 0 but where the first one is that of no number."""
    exponent, instead = exponents
    nisa.scalar_tensor_tensor(
        dst=instead, data=exponent, op0=nl.equal, operand0=float(_EXPONENTS), op1=nl.multiply,
        operand1=instead,
    )  # fmt: skip


def _chosen(exponents: list[nl.NkiTensor]) -> nl.NkiTensor:
    exponent, instead = exponents
    chosen = _column(exponent.shape[0], nl.int32)
    nisa.scalar_tensor_tensor(
        dst=chosen, data=exponent, op0=nl.minimum, operand0=float(_MOST * _STEP), op1=nl.add,
        operand1=instead,
    )  # fmt: skip
    return chosen


def _unit(chosen: nl.NkiTensor, constants: Any) -> list[nl.NkiTensor]:
    """The exponent of a chunk's bound as bits; the inverse of its unit and the unit, as float32."""
    p = chosen.shape[0]
    inverse, unit = _column(p, nl.int32), _column(p, nl.int32)
    nisa.scalar_tensor_tensor(
        dst=inverse, data=chosen, op0=nl.maximum, operand0=float(_LEAST * _STEP), op1=nl.subtract,
        operand1=constants[_TO_INVERSE][0:p], reverse1=True,
    )  # fmt: skip
    nisa.scalar_tensor_tensor(
        dst=unit, data=chosen, op0=nl.maximum, operand0=float(_LEAST * _STEP), op1=nl.subtract,
        operand1=constants[_TO_UNIT][0:p],
    )  # fmt: skip
    return [chosen, inverse.view(nl.float32), unit.view(nl.float32)]


def _whole_bound(bounds: list[Any], sums: list[Any], chunk: int, i: int) -> nl.NkiTensor:
    """Of the sums in a chunk: magnitudes of its epoch and the one before, and the sum before."""
    total = bounds[i][-1]
    if chunk < _EPOCH:
        return total
    last = i - chunk % _EPOCH - 1  # the last chunk of the epoch before
    p = total.shape[0]
    whole = _column(p, nl.float32)
    nisa.tensor_tensor(dst=whole, data1=total, data2=bounds[last][-1], op=nl.add)
    if chunk >= 2 * _EPOCH:
        before, magnitude = _last(sums[last - _EPOCH]), _column(p, nl.float32)
        nisa.scalar_tensor_tensor(
            dst=magnitude, data=before, op0=nl.multiply, operand0=-1.0, op1=nl.maximum,
            operand1=before,
        )  # fmt: skip
        nisa.scalar_tensor_tensor(
            dst=whole, data=magnitude, op0=nl.multiply, operand0=_SCALE, op1=nl.add, operand1=whole
        )
    return whole


def _split(data: nl.NkiTensor, words: nl.NkiTensor, unit: list[nl.NkiTensor]) -> nl.NkiTensor:
    """Integers in `words` become multiples of the unit, as float32. Gives what is left of `data`:
    of an infinity itself, since no multiple of the unit is one (integers saturate)."""
    multiples = words.view(nl.float32)
    nisa.activation(dst=multiples, op=nl.copy, data=words, scale=unit[2])
    left = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=left, data1=data, data2=multiples, op=nl.subtract, engine=nisa.engine.gpsimd
    )
    return left


def _multiple(
    work: list[Any], units: list[Any], sums: list[Any], rests: list[Any], constants: Any, i: int
) -> list[nl.NkiTensor]:
    """How many units the sum before a chunk is, with what was left two chunks ago, so that it stays
    little; nothing for a row's first chunk."""
    if work[i][4] == 0:
        return []
    p = units[i][0].shape[0]
    # In every second chunk: two chunks in a row would both move what the first one did.
    moved = _last(rests[i - 2]) if work[i][4] % 2 == 0 else constants[_ZERO][0:p]
    multiple = _column(p, nl.int32)
    nisa.scalar_tensor_tensor(
        dst=multiple, data=moved, op0=nl.add, operand0=_last(sums[i - 1]), op1=nl.multiply,
        operand1=units[i][1],
    )  # fmt: skip
    return [multiple]


def _hold(multiples: list[nl.NkiTensor], constants: Any) -> None:
    """At most what float32 holds exactly, and finite, so that it can be subtracted."""
    for multiple in multiples:
        nisa.scalar_tensor_tensor(
            dst=multiple, data=multiple, op0=nl.maximum, operand0=-_HELD, op1=nl.minimum,
            operand1=constants[_CEILING][0 : multiple.shape[0]],
        )  # fmt: skip


def _start(
    words: nl.NkiTensor, unit: list[nl.NkiTensor], multiples: list[nl.NkiTensor], constants: Any
) -> nl.NkiTensor:
    """A tile for the sums of the multiples of units, exact; the first column is the one before."""
    p, count = words.shape
    sum_ = nl.ndarray((p, count // 2 + 1), dtype=nl.float32, buffer=nl.sbuf)
    start = sum_[:, 0:1]
    zeros = constants[_ZERO][0:p]
    if len(multiples) == 0:
        nisa.tensor_tensor(dst=start, data1=zeros, data2=zeros, op=nl.add)
    else:
        nisa.tensor_tensor(dst=start, data1=multiples[0], data2=unit[2], op=nl.multiply)
    return sum_


def _not_held(work: list[Any], sums: list[Any], constants: Any, i: int) -> nl.NkiTensor:
    """A tile for the sums in float32 of what is left; the first column is what the grid did not
    hold of the sum before."""
    p, columns = sums[i].shape
    rest = nl.ndarray((p, columns), dtype=nl.float32, buffer=nl.sbuf)
    start, zeros = rest[:, 0:1], constants[_ZERO][0:p]
    if work[i][4] == 0:
        nisa.tensor_tensor(dst=start, data1=zeros, data2=zeros, op=nl.add)
    else:
        before = _last(sums[i - 1])
        nisa.tensor_tensor(dst=start, data1=before, data2=sums[i][:, 0:1], op=nl.subtract)
    return rest


def _scan_pairs(sums: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """The sums behind every second element, which go on from the first column of `sums`."""
    nisa.tensor_tensor_scan(
        dst=sums[:, 1 : sums.shape[1]], data0=_first(data), data1=_second(data),
        initial=sums[:, 0:1], op0=nl.add, op1=nl.add,
    )  # fmt: skip


def _first(data: nl.NkiTensor) -> nl.NkiTensor:
    """Of each pair of columns."""
    return data[:, 0 : data.shape[1] : 2]


def _second(data: nl.NkiTensor) -> nl.NkiTensor:
    return data[:, 1 : data.shape[1] : 2]


def _last(tile: nl.NkiTensor) -> nl.NkiTensor:
    return tile[:, tile.shape[1] - 1 : tile.shape[1]]


def _add_second(words: nl.NkiTensor, sum_: nl.NkiTensor, rest: nl.NkiTensor) -> None:
    """Results behind every second element, in the place of the multiples of units."""
    columns = sum_.shape[1]
    result = _second(words.view(nl.float32))
    nisa.tensor_tensor(dst=result, data1=sum_[:, 1:columns], data2=rest[:, 1:columns], op=nl.add)


def _add_left(data: nl.NkiTensor, rest: nl.NkiTensor) -> nl.NkiTensor:
    """What was left before the first element of each pair, and that element."""
    p, columns = rest.shape
    added = nl.ndarray((p, columns - 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=added, data1=rest[:, 0 : columns - 1], data2=_first(data), op=nl.add,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip
    return added


def _finish(
    out: nl.NkiTensor,
    item: tuple[Any, ...],
    words: nl.NkiTensor,
    sum_: nl.NkiTensor,
    added: nl.NkiTensor,
    sizes: tuple[int, ...],
) -> None:
    """The other results, and store all."""
    group, tile, first, count, _ = item
    result = words.view(nl.float32)
    before = sum_[:, 0 : sum_.shape[1] - 1]
    nisa.tensor_tensor(dst=_first(result), data1=before, data2=added, op=nl.add)
    pattern, offset = places(group, tile, first, count, (sizes[0], 1), 1)
    nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=result[:, 0:count])
