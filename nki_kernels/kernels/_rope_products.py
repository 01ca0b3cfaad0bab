"""NKI helpers of `rope` where TensorE adds: by products with the identity, which ScalarE rounds."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._identity import identity_of
from trnx.nki_kernels.kernels._repairs import column_of_ones, finite_ones, repairs_of

_CHUNK = 1024  # sums in a partition that ScalarE takes at once


class Products(NamedTuple):
    """x * cos of a tile, `[partitions, heads, run, D]`, and rotate_half(x) * sin in parts: their
    first row of the run, and the part."""

    straight: nl.NkiTensor
    turned: list[tuple[int, nl.NkiTensor]]


class Piece(NamedTuple):
    """Products from `column` of a tile on."""

    column: int
    straight: nl.NkiTensor
    turned: nl.NkiTensor


class Checks(NamedTuple):
    """For sums by TensorE: `identity[128, 128]`, and the total of each chunk of results, `[128,
    chunks]`, of which the first ones are `taken`, a number a tile."""

    identity: nl.NkiTensor
    totals: nl.NkiTensor
    taken: list[int]


def new_checks(dtype: str, columns_of_tiles: list[int]) -> Checks:
    """For tiles of so many columns."""
    pmax = nl.tile_size.pmax
    chunks = 0
    for columns in columns_of_tiles:
        chunks += (columns + _CHUNK - 1) // _CHUNK
    totals = nl.ndarray((pmax, chunks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=totals, value=0.0, engine=nisa.engine.gpsimd)
    return Checks(identity_of(dtype), totals, [])


def add_by_products(dst: nl.NkiTensor, products: Products, checks: Checks) -> None:
    """dst = the sum of the products, by products with the identity: rounded once, as a sum of two
    is. What is not finite spoils the column of all partitions, and so the total of each."""
    partitions, count, run, width = dst.shape
    columns = count * run * width
    result = dst.reshape((partitions, columns))
    pieces = _pieces(products)
    identity = checks.identity[0:partitions, 0:partitions]
    while len(pieces) > 0:
        start = pieces[0].column
        end = min(columns, start + _CHUNK)
        sums = nl.ndarray((partitions, end - start), dtype=nl.float32, buffer=nl.psum)
        while len(pieces) > 0 and pieces[0].column < end:
            piece = pieces.pop(0)
            first = piece.column - start
            part = sums[:, first : first + piece.straight.shape[1]]
            for data in (piece.straight, piece.turned):
                nisa.nc_matmul(dst=part, stationary=identity, moving=data)
        number = len(checks.taken)
        checks.taken.append(number)
        nisa.activation(
            dst=result[:, start:end], op=nl.copy, data=sums, reduce_op=nl.add,
            reduce_res=checks.totals[0:partitions, number : number + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip


def _pieces(products: Products) -> list[Piece]:
    """All columns of a tile in order, each piece within a bank of PSUM and a part of the turned
    products."""
    partitions, count, run, width = products.straight.shape
    bank = nl.tile_size.psum_bank_fmax
    straight = products.straight.reshape((partitions, count * run * width))
    pieces = []  # type: list[Piece]
    for head in range(count):
        for part in range(len(products.turned)):
            first, tile = products.turned[len(products.turned) - 1 - part]
            size = tile.shape[2] * width
            turned = tile.reshape((partitions, count * size))
            column, end = (head * run + first) * width, (head * run + first) * width + size
            offset = head * size - column
            while column < end:
                stop = min(end, column // bank * bank + bank)
                part = turned[:, offset + column : offset + stop]
                pieces.append(Piece(column, straight[:, column:stop], part))
                column = stop
    return pieces


def repairs(checks: Checks) -> object:
    """A register: 0 where all totals are finite, else 1."""
    return repairs_of(finite_ones(checks.totals), column_of_ones())
