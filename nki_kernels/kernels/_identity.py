"""NKI helpers of kernels: constant matrices that TensorE multiplies with."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def identity_of(dtype: object) -> nl.NkiTensor:
    """`[128, 128]` in SBUF."""
    return triangle(1.0, 0.0, nl.equal, dtype)


def fill_diagonals(diagonals: nl.NkiTensor, columns: nl.NkiTensor, identity: nl.NkiTensor) -> None:
    """The columns of `columns[128, blocks]` to the diagonals of `diagonals[128, blocks, 128]`, by
    ScalarE: GpSimd would keep VectorE from its copies."""
    factors = nl.ndarray(columns.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=factors, op=nl.copy, data=columns)
    for block in range(columns.shape[1]):
        nisa.activation(
            dst=diagonals[:, block], op=nl.copy, data=identity, scale=factors[:, block : block + 1]
        )


def triangle(inside: float, outside: float, compare: object, dtype: object) -> nl.NkiTensor:
    """`[128, 128]`: `inside` where the partition compares so with the column."""
    pmax = nl.tile_size.pmax
    full = nl.ndarray((pmax, pmax), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=full, value=inside)
    tile = nl.ndarray((pmax, pmax), dtype=dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=tile,
        pattern=[[-1, pmax]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=full,
        on_false_value=outside,
        cmp_op=compare,
    )
    return tile
