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


def _scaled(x, row):
    tile = _tile(x.shape[0], 128)
    nisa.dma_copy(dst=tile, src=x[:, row : row + 128])
    for _ in range(4):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)
    return tile


def _product(tile, matrix, out, row):
    columns = matrix.shape[1]
    for first in range(0, columns, 512):
        acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=tile, moving=matrix[:, first : first + 512])
        found = _tile(128, 512)
        nisa.tensor_copy(dst=found, src=acc)
        nisa.dma_copy(dst=out[row : row + 128, first : first + 512], src=found)


@nki.jit
def products(x, w, how):
    """x [K, M] scaled, then by w [K, N]: in program order ("turns"), in that order for good
    ("ordered"), or with the next tile scaled before the results of the present one ("ahead").
    """
    columns = x.shape[1]
    out = nl.ndarray((columns, w.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    matrix = _tile(w.shape[0], w.shape[1])
    nisa.dma_copy(dst=matrix, src=w)
    if how == "ordered":
        with nl.no_reorder():
            for row in range(0, columns, 128):
                _product(_scaled(x, row), matrix, out, row)
    elif how == "turns":
        for row in range(0, columns, 128):
            _product(_scaled(x, row), matrix, out, row)
    else:
        tile = _scaled(x, 0)
        for row in range(0, columns, 128):
            after = tile
            if row + 128 < columns:
                after = _scaled(x, row + 128)
            _product(tile, matrix, out, row)
            tile = after
    return out


@nki.jit
def counted(x, count):
    """A register loop, whose instructions stay where they are."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = _tile(x.shape[0], x.shape[1])
    nisa.dma_copy(dst=tile, src=x)
    for _ in nl.dynamic_range(count):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out
