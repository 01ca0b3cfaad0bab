"""The kernel of `write_a_kernel.py`: x / sqrt(mean(x^2) + eps) * scale, row by row."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def rms_scale(x, scale, eps):
    """x [rows, columns], scale [columns], both float32 -> [rows, columns]."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    weight = nl.ndarray((nl.tile_size.pmax, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weight, src=scale.reshape((1, columns)).broadcast(0, nl.tile_size.pmax))
    epsilon = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    for start in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - start)
        tile = nl.ndarray((count, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + count])
        square = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=square, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=total
        )
        inverse = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=inverse, op=nl.rsqrt, data=total, scale=1.0 / columns, bias=epsilon[0:count]
        )
        nisa.scalar_tensor_tensor(
            dst=tile, data=tile, op0=nl.multiply, operand0=inverse, op1=nl.multiply,
            operand1=weight[0:count],
        )  # fmt: skip
        nisa.dma_copy(dst=out[start : start + count], src=tile)
    return out
