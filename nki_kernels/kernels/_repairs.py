"""NKI helpers of kernels that compute all once more, in a slower way, where values out of the
ordinary spoil the fast one."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def column_of_ones() -> nl.NkiTensor:
    """`[128, 1]` in bfloat16, by GpSimd."""
    ones = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    return ones


def finite_ones(totals: nl.NkiTensor) -> nl.NkiTensor:
    """1 where a total is finite, else 0, in bfloat16: 0 times an infinity or NaN is NaN."""
    good = nl.ndarray(totals.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=good, data=totals, op0=nl.multiply, operand0=0.0, op1=nl.equal, operand1=0.0
    )
    return good


def sum_of_totals(totals: nl.NkiTensor) -> nl.NkiTensor:
    """`[128, 1]`: the sum over the columns of `totals[128, columns]`, in float32."""
    total = nl.ndarray((totals.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=totals, axis=1)
    return total


def repairs_of_totals(parts: list[nl.NkiTensor]) -> object:
    """A register: 0 where the sum of all `parts`, each `[128, columns]` in float32, is finite, else
    1. TensorE adds up the columns one by one, so few of them take less time until the register is
    there than by `finite_ones`; a sum that overflows counts as not finite, too.
    """
    ones = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    total = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.psum)
    for part in parts:
        for column in range(part.shape[1]):
            nisa.nc_matmul(dst=total, stationary=ones, moving=part[:, column : column + 1])
    flag = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    # 0 times an infinity or NaN is NaN, which equals nothing.
    nisa.tensor_scalar(
        dst=flag, data=total, op0=nl.multiply, operand0=0.0, op1=nl.not_equal, operand1=0.0
    )
    register = nisa.register_alloc()
    nisa.register_load(register, flag)
    return register


def repairs_of(good: nl.NkiTensor, ones: nl.NkiTensor) -> object:
    """A register: 0 where all of `good[128, columns]`, in bfloat16, is 1, else 1."""
    bank = nl.tile_size.psum_bank_fmax
    columns = good.shape[1]
    parts = (columns + bank - 1) // bank
    flags = nl.ndarray((1, parts), dtype=nl.int32, buffer=nl.sbuf)
    for part in range(parts):
        some = good[:, part * bank : min(columns, (part + 1) * bank)]
        counts = nl.ndarray((1, some.shape[1]), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=counts, stationary=ones, moving=some)
        less = nl.ndarray(counts.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=less, data=counts, op0=nl.less, operand0=float(nl.tile_size.pmax),
            reduce_op=nl.maximum, reduce_res=flags[:, part : part + 1],
        )  # fmt: skip
    flag = flags[:, 0:1]
    if parts > 1:
        flag = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=flag, op=nl.maximum, data=flags, axis=1)
    register = nisa.register_alloc()
    nisa.register_load(register, flag)
    return register
