"""NKI helpers of kernels: constant matrices that TensorE multiplies with."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def identity_of(dtype: object) -> nl.NkiTensor:
    """`[128, 128]` in SBUF."""
    return triangle(1.0, 0.0, nl.equal, dtype)


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
