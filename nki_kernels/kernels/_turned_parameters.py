"""NKI helpers of `_turned_layer_norm_backward.py`: what all rows share, and the numbers of each."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._identity import identity_of
from trnx.nki_kernels.kernels._transfers import load_aside


class Parameters(NamedTuple):
    """The weights of a block on the partitions, `[128, blocks]`, and on the diagonals of the
    blocks, `[128, blocks, 128]`; as loaded, `[blocks, 128]`; the identity matrix."""

    column: nl.NkiTensor
    diagonals: nl.NkiTensor
    square: nl.NkiTensor
    identity: nl.NkiTensor


class Numbers(NamedTuple):
    """Of rows, `[partitions, rows]` in float32: mean, rstd, -rstd / columns, -rstd^2 / columns,
    -mean * rstd."""

    mean: nl.NkiTensor
    rstd: nl.NkiTensor
    scale: nl.NkiTensor
    square: nl.NkiTensor
    tilt: nl.NkiTensor


def load_parameters(weight: nl.NkiTensor) -> Parameters:
    """Of `weight[columns]`; the diagonals are not filled."""
    pmax, dtype = nl.tile_size.pmax, weight.dtype
    blocks = weight.size // pmax
    square = nl.ndarray((blocks, pmax), dtype=dtype, buffer=nl.sbuf)
    load_aside(square, weight.reshape(square.shape))
    return Parameters(
        nl.ndarray((pmax, blocks), dtype=dtype, buffer=nl.sbuf),
        nl.ndarray((pmax, blocks, pmax), dtype=dtype, buffer=nl.sbuf),
        square,
        identity_of(nl.bfloat16),
    )


def fill_blocks(p: Parameters) -> None:
    """TensorE brings the weights of a block to the partitions, VectorE and ScalarE, which have
    nothing to do yet, half of the blocks each to diagonals."""
    pmax, blocks, _ = p.diagonals.shape
    bank = nl.ndarray(p.column.shape, dtype=p.column.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=p.square, engine=nisa.engine.tensor)
    factors = nl.ndarray(p.column.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=factors, op=nl.copy, data=bank)
    middle = blocks // 2
    nisa.tensor_tensor(
        dst=p.diagonals[:, 0:middle],
        data1=p.identity.expand_dim(1).broadcast(1, middle),
        data2=factors[:, 0:middle].expand_dim(2).broadcast(2, pmax),
        op=nl.multiply, engine=nisa.engine.vector,
    )  # fmt: skip
    for block in range(middle, blocks):
        nisa.activation(
            dst=p.diagonals[:, block], op=nl.copy, data=p.identity,
            scale=factors[:, block : block + 1],
        )  # fmt: skip
    nisa.activation(dst=p.column, op=nl.copy, data=bank)


def new_numbers(rows: int) -> Numbers:
    """Of so many rows of each partition; not filled."""
    made = []  # type: list[nl.NkiTensor]
    for _ in range(5):
        made.append(nl.ndarray((nl.tile_size.pmax, rows), dtype=nl.float32, buffer=nl.sbuf))
    return Numbers(made[0], made[1], made[2], made[3], made[4])


def numbers_at(n: Numbers, partitions: int, first: int, last: int) -> Numbers:
    """Those of rows `first .. last` of some partitions."""
    return Numbers(
        n.mean[0:partitions, first:last], n.rstd[0:partitions, first:last],
        n.scale[0:partitions, first:last], n.square[0:partitions, first:last],
        n.tilt[0:partitions, first:last],
    )  # fmt: skip


def load_others(
    n: Numbers, mean: nl.NkiTensor, rstd: nl.NkiTensor, starts: list[tuple[int, int, int]],
    columns: int,
) -> None:  # fmt: skip
    """The numbers of all tiles but the first one."""
    done, row = 1, starts[0][2]
    while done < len(starts):
        until = done + 1
        while until < len(starts) and starts[until][1:] == starts[done][1:]:
            until += 1
        load_numbers(n, mean, rstd, starts[done:until], row, columns)
        row += (until - done) * starts[done][2]
        done = until


def load_numbers(
    n: Numbers, mean: nl.NkiTensor, rstd: nl.NkiTensor, starts: list[tuple[int, int, int]],
    row: int, columns: int,
) -> None:  # fmt: skip
    """Those of tiles of one shape, one behind the other, whose rows are those from `row` on of each
    partition: loaded as they lie in HBM, turned by TensorE."""
    first, partitions, run = starts[0]
    pmax = nl.tile_size.pmax
    for done in range(0, len(starts), pmax):
        count = min(pmax, len(starts) - done)
        start = first + done * partitions * run
        turned = []  # type: list[nl.NkiTensor]
        for source in (mean, rstd):
            tile = nl.ndarray((count, partitions, run), dtype=source.dtype, buffer=nl.sbuf)
            rows = source[start : start + count * partitions * run]
            load_aside(tile, rows.reshape((count, partitions, run)))
            bank = nl.ndarray((partitions, run, count), dtype=source.dtype, buffer=nl.psum)
            for r in range(run):
                nisa.nc_transpose(dst=bank[:, r], data=tile[:, :, r], engine=nisa.engine.tensor)
            turned.append(bank.permute((0, 2, 1)))
        at = row + done * run
        _fill(numbers_at(n, partitions, at, at + count * run), turned[0], turned[1], columns)


def _fill(n: Numbers, mean: nl.NkiTensor, rstd: nl.NkiTensor, columns: int) -> None:
    """From `[partitions, tiles, run]` in PSUM."""
    nisa.activation(dst=n.mean.reshape(mean.shape), op=nl.copy, data=mean)
    nisa.activation(dst=n.rstd.reshape(rstd.shape), op=nl.copy, data=rstd)
    nisa.activation(dst=n.scale, op=nl.copy, data=n.rstd, scale=-1.0 / columns)
    negative = nl.ndarray(n.mean.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=negative, op=nl.copy, data=n.mean, scale=-1.0)
    for dst, factor in ((n.square, n.scale), (n.tilt, negative)):
        nisa.tensor_tensor(
            dst=dst, data1=n.rstd, data2=factor, op=nl.multiply, engine=nisa.engine.gpsimd
        )
