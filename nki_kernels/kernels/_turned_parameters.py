"""NKI helpers of `_turned_layer_norm_backward.py`: what all rows share, and the numbers of each."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._identity import fill_diagonals, identity_of
from trnx.nki_kernels.kernels._rows import load_aside


class Parameters(NamedTuple):
    """The weights in every partition; those of a block on the partitions, `[128, blocks]`, and on
    the diagonals of the blocks, `[128, blocks, 128]`; the identity matrix. As loaded: in one
    partition, and `[blocks, 128]`. `ones[1, 128]` bring them to every partition."""

    weights: nl.NkiTensor
    column: nl.NkiTensor
    diagonals: nl.NkiTensor
    identity: nl.NkiTensor
    line: nl.NkiTensor
    square: nl.NkiTensor
    ones: nl.NkiTensor


class Numbers(NamedTuple):
    """Of rows, `[partitions, rows]` in float32: mean, rstd, -rstd / columns, -rstd^2 / columns;
    `both[partitions, 2, rows]`: -mean * rstd and rstd."""

    mean: nl.NkiTensor
    rstd: nl.NkiTensor
    scale: nl.NkiTensor
    square: nl.NkiTensor
    both: nl.NkiTensor


def new_parameters(weight: nl.NkiTensor) -> Parameters:
    """Of `weight[columns]`; neither loaded nor filled."""
    pmax, dtype = nl.tile_size.pmax, weight.dtype
    columns = weight.size
    blocks = columns // pmax
    ones = nl.ndarray((1, pmax), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    return Parameters(
        nl.ndarray((pmax, columns), dtype=dtype, buffer=nl.sbuf),
        nl.ndarray((pmax, blocks), dtype=dtype, buffer=nl.sbuf),
        nl.ndarray((pmax, blocks, pmax), dtype=dtype, buffer=nl.sbuf),
        identity_of(nl.bfloat16),
        nl.ndarray((1, columns), dtype=dtype, buffer=nl.sbuf),
        nl.ndarray((blocks, pmax), dtype=dtype, buffer=nl.sbuf),
        ones,
    )  # fmt: skip


def load_parameters(p: Parameters, weight: nl.NkiTensor) -> None:
    load_aside(p.line, weight.reshape(p.line.shape))
    load_aside(p.square, weight.reshape(p.square.shape))


def spread_weights(p: Parameters, columns: tuple[int, int]) -> None:
    """To all partitions, by products with ones: a DMA would take as long as rows do."""
    bank = nl.tile_size.psum_bank_fmax
    for start in range(columns[0], columns[1], bank):
        end = min(columns[1], start + bank)
        copies = nl.ndarray((p.weights.shape[0], end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=copies, stationary=p.ones, moving=p.line[:, start:end])
        nisa.activation(dst=p.weights[:, start:end], op=nl.copy, data=copies)


def fill_blocks(p: Parameters) -> None:
    """The weights of a block are brought to the partitions by TensorE."""
    bank = nl.ndarray(p.column.shape, dtype=p.column.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=p.square, engine=nisa.engine.tensor)
    nisa.activation(dst=p.column, op=nl.copy, data=bank)
    fill_diagonals(p.diagonals, bank, p.identity)


def new_numbers(rows: int) -> Numbers:
    """Of so many rows of each partition; not filled."""
    pmax = nl.tile_size.pmax
    made = []  # type: list[nl.NkiTensor]
    for _ in range(3):
        made.append(nl.ndarray((pmax, rows), dtype=nl.float32, buffer=nl.sbuf))
    both = nl.ndarray((pmax, 2, rows), dtype=nl.float32, buffer=nl.sbuf)
    return Numbers(made[0], both[:, 1], made[1], made[2], both)


def numbers_at(n: Numbers, partitions: int, first: int, last: int) -> Numbers:
    """Those of rows `first .. last` of some partitions."""
    return Numbers(
        n.mean[0:partitions, first:last], n.rstd[0:partitions, first:last],
        n.scale[0:partitions, first:last], n.square[0:partitions, first:last],
        n.both[0:partitions, :, first:last],
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
    for dst, factor in ((n.square, n.scale), (n.both[:, 0], negative)):
        nisa.tensor_tensor(
            dst=dst, data1=n.rstd, data2=factor, op=nl.multiply, engine=nisa.engine.gpsimd
        )
