"""The sums of a tile of `cumsum`, block after block. In float32 the rounding of each is found."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._scans import lanes, places, scan

_MOVED = 4096  # elements after which what sums lost is moved to them


def sum_tile(
    out: nl.NkiTensor, x: nl.NkiTensor, group: tuple[Any, ...], tile: int, sizes: tuple[int, ...]
) -> None:
    """All positions of one tile, block after block; each goes on from the last sums of the one
    before."""
    length, inner, block = sizes
    p, rows, width = lanes(group), group[4], group[5]
    zero = nl.ndarray((p, rows, 1, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    carry, error = zero, zero
    for first in range(0, length, block):
        count = min(block, length - first)
        pattern, offset = places(group, tile, first, count, (length, inner), 1)
        data = nl.ndarray((p, rows, count, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
        zeros = zero.broadcast(2, count)
        result = nl.ndarray((p, rows, count, width), dtype=x.dtype, buffer=nl.sbuf)
        if x.dtype == nl.float32:
            sums = nl.ndarray((p, rows, count + 1, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=sums[:, :, 0:1, :], src=carry)
            total = sums[:, :, 1 : count + 1, :]
            scan(total, data, zeros, carry[:, :, 0, :], nl.add, nl.add)
            lost = _lost(sums, data)
            errors = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
            scan(errors, lost, zeros, error[:, :, 0, :], nl.add, nl.add)
            gpsimd = nisa.engine.gpsimd
            nisa.tensor_tensor(dst=result, data1=total, data2=errors, op=nl.add, engine=gpsimd)
            error = errors[:, :, count - 1 : count, :]
        else:
            total = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
            scan(total, data, zeros, carry[:, :, 0, :], nl.add, nl.add)
            # On ScalarE: VectorE has no time but for the scans.
            nisa.activation(dst=result, op=nl.copy, data=total)
        carry = total[:, :, count - 1 : count, :]
        if x.dtype == nl.float32 and first // _MOVED != (first + count) // _MOVED:
            carry, error = _join(carry, error)
        nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=result)


def _join(carry: nl.NkiTensor, error: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """What was lost goes to the sum as far as that holds it, so that it stays little."""
    p, rows, _, width = carry.shape
    sums = nl.ndarray((p, rows, 2, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=sums[:, :, 0:1, :], src=carry)
    nisa.tensor_tensor(dst=sums[:, :, 1:2, :], data1=carry, data2=error, op=nl.add)
    return sums[:, :, 1:2, :], _lost(sums, error)


def _lost(sums: nl.NkiTensor, data: nl.NkiTensor) -> nl.NkiTensor:
    """What each sum lost by rounding; 0 where it is not finite."""
    p, rows, count, width = data.shape
    before, after = sums[:, :, 0:count, :], sums[:, :, 1 : count + 1, :]
    added = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
    kept = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
    lost = nl.ndarray((p, rows, count, width), dtype=nl.float32, buffer=nl.sbuf)
    is_nan = nl.ndarray((p, rows, count, width), dtype=nl.uint8, buffer=nl.sbuf)
    gpsimd = nisa.engine.gpsimd
    nisa.tensor_tensor(dst=added, data1=after, data2=before, op=nl.subtract)
    nisa.tensor_tensor(dst=kept, data1=after, data2=added, op=nl.subtract, engine=gpsimd)
    nisa.tensor_tensor(dst=lost, data1=data, data2=added, op=nl.subtract)
    nisa.tensor_tensor(dst=kept, data1=before, data2=kept, op=nl.subtract, engine=gpsimd)
    nisa.tensor_tensor(dst=lost, data1=lost, data2=kept, op=nl.add)
    nisa.tensor_tensor(dst=is_nan, data1=lost, data2=lost, op=nl.not_equal)
    nisa.tensor_copy_predicated(dst=lost, src=0.0, predicate=is_nan)
    return lost
