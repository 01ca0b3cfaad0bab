"""Running sums of long rows of float32 with one rounding: two scans, in fixed point and in float32.

A row is cut into chunks. Each gets a grid from a bound of its sums, the multiples of a power of
two: elements are rounded to it by `lift`, 2.125 times the bound, so large that float32 holds
nothing finer of the difference, `lift - (lift + element)`, which is negative and exact, as both are
within twice of each other. Sums of what is on the grid lose nothing: it is that of float32 from 1.1
times the bound on, so 24 bits hold them. In rows of more than 4,096 elements `lift` is the power of
two below that, negated, of which 24 bits hold more than the bound. What is left, half a step of the
grid an element at the most, is added in float32 (S. M. Rump, T. Ogita, S. Oishi, "Accurate
floating-point summation", SISC 31, 2008, splits so). Where a later chunk has a coarser grid, what
that does not hold of the sum so far goes to the other sum. Roundings of that sum grow with the
length where what is left has one sign: rows of up to 16,384 equal elements keep to twice eager's
error (`test_scans.py`), longer ones may not.

The bound is the sum of magnitudes of the row's last `EPOCH` to `2 * EPOCH` elements and the sum
before these. Where it is not finite, because an element is not or because sums may be beyond 2^125,
there is no grid: a core computes all of its rows once more, tile after tile (`_tile_sums.py`).

Both scans take two elements a step, `(element + sum) + next element`, and give the sums behind
every second one: half of the steps. Those between are `sum + (rest + element)`, which rounds twice,
by at most half a unit in the last place of the element and of the sum: where elements are larger
than all sums, errors were up to 2.9 times eager's. Both kinds are one instruction: the sums on the
grid are read twice each, beside what is left behind every second element and, between two of these,
what is added behind the others.

VectorE scans and adds, ScalarE bounds and rounds, GpSimd finds what is left, and adds. VectorE
helps with some elements, so that all three have as much to do, and TensorE with every second one:
products with the identity add an element and its rounded negative in PSUM, exactly, as no sum on
the way has more than 24 bits. Of some pieces TensorE adds up the results, too, with the same
roundings, and ScalarE copies them. `_fixed_point_plan.py` says how rows are cut,
`_fixed_point_order.py` in which order, `_fixed_point_units.py` has the small instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._fixed_point_steps import (
    ADD,
    ADD_ON_TENSOR,
    BOUND,
    BOUND_ALL,
    COPY,
    FINISH,
    FINISH_ON_GPSIMD,
    LEFT,
    LEFT_ON_TENSOR,
    LEFT_ON_VECTOR,
    LIFT,
    LOAD,
    MOVE,
    NOTHING,
    ROUND,
    ROUND_ON_VECTOR,
    START,
    SUM,
    SUM_LEFT,
    Chunk,
    Piece,
    Plan,
)
from trnx.nki_kernels.kernels._fixed_point_units import (
    Constants,
    Sums,
    bound,
    bound_all,
    constants,
    good_ones,
    move,
    scales_of,
    start,
    start_left,
    start_with_nothing,
)
from trnx.nki_kernels.kernels._identity import identity_of
from trnx.nki_kernels.kernels._repairs import column_of_ones, repairs_of
from trnx.nki_kernels.kernels._scans import lanes, places, tiles_of
from trnx.nki_kernels.kernels._tile_sums import sum_tile
from trnx.nki_kernels.kernels._warm_up import warm_up

SHORTEST = 513  # rows of which a partition has no two


class _Work(NamedTuple):
    """A core's part; lists by chunk or piece. `even` is what TensorE finds left, and
    `totals` are the results that it adds up, or None; `finished` is how many results there are."""

    x: nl.NkiTensor
    out: nl.NkiTensor
    length: int
    tiles: list[Any]
    chunks: list[Chunk]
    pieces: list[Piece]
    given: Constants
    scales: list[Any]
    sums: list[Any]
    data: list[Any]
    rounded: list[Any]
    left: list[Any]
    even: list[Any]
    totals: list[Any]
    finished: list[int]
    identity: nl.NkiTensor


@nki.jit
def fixed_point_sums_kernel(
    x: nl.NkiTensor,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    plans: tuple[Plan, ...],
    groups: tuple[Any, ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """The sums of float32 `x` along its last dimension; `sizes` and `groups` are those of `cut`,
    one row a partition; `cores` share their tiles, and have a plan for as many as each has."""
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = tiles_of(groups, cores)
    for count, products, chunks, pieces, order in plans:
        if count == len(tiles):
            if products > 0:
                warm_up(products)
            given = _follow(x, out, sizes[0], tiles, chunks, pieces, order)
            for _ in nl.dynamic_range(repairs_of(good_ones(given), column_of_ones())):
                for group, tile in tiles:
                    sum_tile(out, x, group, tile, sizes)
    return out


def _follow(
    x: nl.NkiTensor,
    out: nl.NkiTensor,
    length: int,
    tiles: list[Any],
    chunks: tuple[Any, ...],
    pieces: tuple[Any, ...],
    order: tuple[tuple[int, int], ...],
) -> Constants:
    """All instructions of a plan; what holds the bounds of all chunks."""
    identity = identity_of(nl.float32)
    given = constants(len(chunks))
    work = _Work(x, out, length, tiles, [], [], given, [], [], [], [], [], [], [], [], identity)
    for numbers in chunks:
        tile, first, size, number, first_piece, last_piece, begins, before, long_before, powers = (
            numbers
        )
        chunk = Chunk(
            tile,
            first,
            size,
            number,
            first_piece,
            last_piece,
            begins,
            before,
            long_before,
            powers,
        )
        p, half = lanes(tiles[chunk.tile][0]), (chunk.size + 1) // 2
        work.scales.append(scales_of(p, len(work.chunks), chunk, work.given))
        work.chunks.append(chunk)
        rounded = nl.ndarray((p, half + 1), dtype=nl.float32, buffer=nl.sbuf)
        left = nl.ndarray((p, 2 * half + 1), dtype=nl.float32, buffer=nl.sbuf)
        work.sums.append(Sums(rounded, left))
    for numbers in pieces:
        c, first, size, rounds, on_vector, adds, on_tensor, finishes, in_psum = numbers
        piece = Piece(c, first, size, rounds, on_vector, adds, on_tensor, finishes, in_psum)
        work.pieces.append(piece)
        p = lanes(tiles[work.chunks[piece.chunk].tile][0])
        form = (p, piece.size + piece.size % 2)
        work.data.append(nl.ndarray(form, dtype=nl.float32, buffer=nl.sbuf))
        work.rounded.append(nl.ndarray(form, dtype=nl.float32, buffer=nl.sbuf))
        work.left.append(nl.ndarray(form, dtype=nl.float32, buffer=nl.sbuf))
        work.even.append(None)
        work.totals.append(None)
        work.finished.append(0)
    for kind, i in order:
        if kind >= NOTHING:
            _on_chunk(work, kind, i)
        else:
            _on_piece(work, kind, i)
    return work.given


def _on_chunk(work: _Work, kind: int, c: int) -> None:
    """An instruction of chunk `c`."""
    if kind == NOTHING:
        start_with_nothing(work.sums[c], work.given)
    elif kind == BOUND_ALL:
        bound_all(work.chunks[c], work.scales, work.sums, c)
    elif kind == MOVE:
        move(work.scales, work.sums, c)
    elif kind == START:
        start(work.scales, work.sums, c)
    else:
        start_left(work.sums, c)


def _on_piece(work: _Work, kind: int, i: int) -> None:
    """An instruction of piece `i`."""
    piece = work.pieces[i]
    data, rounded, left = work.data[i], work.rounded[i], work.left[i]
    chunk, scales, sums = (
        work.chunks[piece.chunk], work.scales[piece.chunk], work.sums[piece.chunk],
    )  # fmt: skip
    first, end = piece.first // 2, (piece.first + data.shape[1]) // 2
    on_vector, count, lift = piece.on_vector, data.shape[1], scales.lift
    if kind == LOAD:
        _load(work, i)
    elif kind == BOUND:
        is_first = chunk.begins_epoch == 1 and i == chunk.first_piece
        bound(scales, data, work.given, is_first, i == chunk.last_piece)
    elif kind in (LIFT, ROUND):
        some = rounded[:, piece.rounds : count]
        source = data[:, piece.rounds : count] if kind == LIFT else some
        scale = 1.0 if kind == LIFT else -1.0
        nisa.activation(dst=some, op=nl.copy, data=source, scale=scale, bias=lift)
    elif kind == ROUND_ON_VECTOR:
        nisa.tensor_scalar(
            dst=rounded[:, 0 : piece.rounds], data=data[:, 0 : piece.rounds], op0=nl.add,
            operand0=lift, op1=nl.subtract, operand1=lift, reverse1=True,
        )  # fmt: skip
    elif kind == LEFT:
        step = 2 if piece.on_tensor == 1 else 1
        nisa.tensor_tensor(
            dst=left[:, on_vector + step - 1 : count : step],
            data1=data[:, on_vector + step - 1 : count : step],
            data2=rounded[:, on_vector + step - 1 : count : step],
            op=nl.add, engine=nisa.engine.gpsimd,
        )  # fmt: skip
    elif kind == LEFT_ON_VECTOR:
        step = 2 if piece.on_tensor == 1 else 1
        nisa.tensor_tensor(
            dst=left[:, step - 1 : on_vector : step], data1=data[:, step - 1 : on_vector : step],
            data2=rounded[:, step - 1 : on_vector : step], op=nl.add,
        )  # fmt: skip
    elif kind == LEFT_ON_TENSOR:
        work.even[i] = nl.ndarray((data.shape[0], count // 2), dtype=nl.float32, buffer=nl.psum)
        parts = [data[:, 0:count:2], rounded[:, 0:count:2]]
        _add_on_tensor(work.even[i], parts, work.identity)
    elif kind == SUM:
        some = sums.rounded[:, first : end + 1]
        nisa.tensor_tensor_scan(
            dst=some[:, 1 : end - first + 1], data0=rounded[:, 0:count:2],
            data1=rounded[:, 1:count:2], initial=some[:, 0:1], op0=nl.subtract, op1=nl.subtract,
            reverse0=True,
        )  # fmt: skip
    elif kind == SUM_LEFT:
        some = sums.left[:, 2 * first : 2 * end + 1]
        even = left[:, 0:count:2] if piece.on_tensor == 0 else work.even[i]
        nisa.tensor_tensor_scan(
            dst=some[:, 2 : 2 * (end - first) + 1 : 2], data0=even, data1=left[:, 1:count:2],
            initial=some[:, 0:1], op0=nl.add, op1=nl.add,
        )  # fmt: skip
    elif kind == ADD:
        some = sums.left[:, 2 * first : 2 * end]
        nisa.tensor_tensor(
            dst=some[:, 1:count:2], data1=some[:, 0:count:2], data2=data[:, 0:count:2], op=nl.add,
            engine=nisa.engine.vector if piece.adds == 1 else nisa.engine.gpsimd,
        )  # fmt: skip
    elif kind == ADD_ON_TENSOR:
        work.totals[i] = _results_on_tensor(data, sums, first, work.identity)
    elif kind == COPY:
        nisa.activation(dst=data, op=nl.copy, data=work.totals[i])
        _store(work, i)
    elif kind == FINISH:
        _finish(work, i, first, piece.finishes, count)
    elif kind == FINISH_ON_GPSIMD:
        _finish(work, i, first, 0, piece.finishes)


def _place(work: _Work, i: int) -> tuple[list[list[int]], int]:
    """The pattern and the offset of a piece in HBM."""
    piece = work.pieces[i]
    chunk = work.chunks[piece.chunk]
    group, tile = work.tiles[chunk.tile]
    return places(group, tile, chunk.first + piece.first, piece.size, (work.length, 1), 1)


def _load(work: _Work, i: int) -> None:
    """A piece, with a zero behind an odd number of elements."""
    pattern, offset = _place(work, i)
    data, count = work.data[i], work.pieces[i].size
    if count % 2 == 1:
        nisa.memset(dst=data[:, count : count + 1], value=0.0)
    nisa.dma_copy(dst=data[:, 0:count], src=work.x.ap(pattern=pattern, offset=offset))


def _add_on_tensor(dst: nl.NkiTensor, parts: list[nl.NkiTensor], identity: nl.NkiTensor) -> None:
    """Float32 tiles, one after the other, into PSUM."""
    p, count = dst.shape
    fmax = nl.tile_size.psum_fmax
    for place in range(0, count, fmax):
        end = min(count, place + fmax)
        for part in parts:
            nisa.nc_matmul(
                dst=dst[:, place:end], stationary=identity[0:p, 0:p], moving=part[:, place:end],
                is_stationary_onezero=True,
            )  # fmt: skip


def _results_on_tensor(
    data: nl.NkiTensor, sums: Sums, first: int, identity: nl.NkiTensor
) -> nl.NkiTensor:
    """Both results of every two elements, in PSUM; sums from `first` on are those before them."""
    p, count = data.shape
    totals = nl.ndarray((p, count), dtype=nl.float32, buffer=nl.psum)
    fmax = nl.tile_size.psum_fmax
    for place in range(0, count, fmax):
        end = min(count, place + fmax)
        before, behind = first + place // 2, first + end // 2
        left = sums.left[:, 2 * before : 2 * behind + 1]
        between = [left[:, 0 : end - place : 2], data[:, place:end:2]]
        between.append(sums.rounded[:, before:behind])
        _add_on_tensor(totals[:, place:end:2], between, identity)
        others = [left[:, 2 : end - place + 1 : 2], sums.rounded[:, before + 1 : behind + 1]]
        _add_on_tensor(totals[:, place + 1 : end : 2], others, identity)
    return totals


def _finish(work: _Work, i: int, first: int, begin: int, end: int) -> None:
    """Results of a piece, in the place of its elements, and the store of them all."""
    piece = work.pieces[i]
    is_vectors = begin == piece.finishes
    data = work.data[i]
    p, count = data.shape
    rounded, left = work.sums[piece.chunk]
    pairs = (end - begin) // 2
    place = first + begin // 2
    twice = rounded.ap(pattern=[[rounded.shape[1], p], [1, pairs], [1, 2]], offset=place)
    beside = left.ap(pattern=[[left.shape[1], p], [2, pairs], [1, 2]], offset=2 * place + 1)
    nisa.tensor_tensor(
        dst=data[:, begin:end].reshape((p, pairs, 2)), data1=twice, data2=beside, op=nl.add,
        engine=nisa.engine.vector if is_vectors else nisa.engine.gpsimd,
    )  # fmt: skip
    work.finished[i] = work.finished[i] + end - begin
    if work.finished[i] == count:
        _store(work, i)


def _store(work: _Work, i: int) -> None:
    """The results of a piece."""
    pattern, offset = _place(work, i)
    size = work.pieces[i].size
    nisa.dma_copy(dst=work.out.ap(pattern=pattern, offset=offset), src=work.data[i][:, 0:size])
