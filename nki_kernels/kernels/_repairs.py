"""NKI helpers of kernels that compute all once more, in a slower way, where values out of the
ordinary spoil the fast one."""

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


def repairs_of(good: nl.NkiTensor) -> object:
    """A register: 0 where all of `good[128, columns]`, in bfloat16, is 1, else 1."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    ones = nl.ndarray((pmax, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    columns = good.shape[1]
    parts = (columns + bank - 1) // bank
    least = nl.ndarray((1, parts), dtype=nl.float32, buffer=nl.sbuf)
    for part in range(parts):
        some = good[:, part * bank : min(columns, (part + 1) * bank)]
        counts = nl.ndarray((1, some.shape[1]), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=counts, stationary=ones, moving=some)
        nisa.tensor_reduce(dst=least[:, part : part + 1], op=nl.minimum, data=counts, axis=1)
    if parts > 1:
        nisa.tensor_reduce(dst=least[:, 0:1], op=nl.minimum, data=least, axis=1)
    flag = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=flag, data=least[:, 0:1], op0=nl.less, operand0=float(pmax))
    register = nisa.register_alloc()
    nisa.register_load(register, flag)
    return register
