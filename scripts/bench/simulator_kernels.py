"""The kernel whose tracing `simulator.py` times: common instructions on tiles of 128 x 8."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def tiles(x: nl.NkiTensor, turns: int) -> nl.NkiTensor:
    """x `[turns * 128, 8]` float32 -> the same shape; nine instructions a turn."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for turn in range(turns):
        rows = nl.ds(turn * 128, 128)
        tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[rows, :])
        highest = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=highest, op=nl.maximum, data=tile, axis=1)
        shifted = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=shifted, data=tile, op0=nl.subtract, operand0=highest)
        nisa.activation(dst=shifted, op=nl.exp, data=shifted)
        half = nl.ndarray((128, 8), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=half, src=shifted)
        product = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=tile, moving=shifted)
        kept = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=kept, data1=shifted, data2=half, op=nl.add)
        nisa.tensor_copy(dst=kept[0:8, :], src=product)
        nisa.dma_copy(dst=out[rows, :], src=kept)
    return out
