"""Kernels that the compiler's passes change, and the nearest that they leave alone."""

import nki
import nki.isa as nisa
import nki.language as nl


def _tile(rows, columns, dtype=nl.float32):
    return nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)


@nki.jit
def sums(x, y, how):
    """x + y by rows; `how` says where the sum of a tile is written."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(0, rows, 128):
        a = _tile(128, columns)
        b = _tile(128, columns)
        nisa.dma_copy(dst=a, src=x[row : row + 128])
        nisa.dma_copy(dst=b, src=y[row : row + 128])
        found = _tile(128, columns)
        if how == "direct":
            nisa.tensor_tensor(dst=found, data1=a, data2=b, op=nl.add)
        elif how == "copied":
            found[...] = nl.add(a, b)
        elif how == "in place":
            found = a
            found[...] = nl.add(a, b)
        elif how == "shifted":
            found = a
            found[:, 1:] = nl.add(a[:, :-1], b[:, 1:])
        elif how == "scanned":
            found = a
            kept = _tile(128, columns)
            nisa.tensor_tensor_scan(
                dst=kept, data0=a, data1=b, initial=0.0, op0=nl.multiply, op1=nl.add
            )
            nisa.tensor_copy(dst=found, src=kept)
        elif how == "cast":
            half = _tile(128, columns, nl.bfloat16)
            nisa.tensor_tensor(dst=half, data1=a, data2=b, op=nl.add)
            nisa.tensor_copy(dst=found, src=half)
        else:
            kept = _tile(128, columns)
            nisa.tensor_tensor(dst=kept, data1=a, data2=b, op=nl.add)
            nisa.tensor_copy(dst=found, src=kept)
            nisa.tensor_tensor(dst=found, data1=found, data2=kept, op=nl.multiply)
        nisa.dma_copy(dst=out[row : row + 128], src=found)
    return out
