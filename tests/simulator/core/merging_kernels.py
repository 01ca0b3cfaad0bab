"""Kernels of the tests of products that a replay runs as one."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def rows_by_weight(x, weight):
    """x @ weight.T: 128 of the common dimension at a time."""
    rows, depth = x.shape
    columns = weight.shape[0]
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    bank = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)
    for k in range(0, depth, 128):
        part = min(128, depth - k)
        a = nl.ndarray((part, rows), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((part, columns), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[:, k : k + part].permute((1, 0)))
        nisa.dma_copy(dst=b, src=weight[:, k : k + part].permute((1, 0)))
        nisa.nc_matmul(dst=bank, stationary=a, moving=b)
    result = nl.copy(bank)
    nisa.dma_copy(dst=out, src=result)
    return out


def _row(x):
    """[1, depth] with 128 of it on the partitions, one column for each part."""
    depth = x.shape[1]
    parts = (depth + 127) // 128
    row = nl.ndarray((128, parts), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(parts):
        part = min(128, depth - 128 * i)
        nisa.dma_copy(
            dst=row[0:part, i : i + 1], src=x[:, 128 * i : 128 * i + part].permute((1, 0))
        )
    return row


def _tile(row, weight, out, start, depth):
    bank = nl.ndarray((1, 512), dtype=nl.float32, buffer=nl.psum)
    for k in range(0, depth, 128):
        part = min(128, depth - k)
        b = nl.ndarray((part, 512), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=b, src=weight[start : start + 512, k : k + part].permute((1, 0)))
        i = k // 128
        nisa.nc_matmul(dst=bank, stationary=row[0:part, i : i + 1], moving=b)
    result = nl.copy(bank)
    nisa.dma_copy(dst=out[:, start : start + 512], src=result)


@nki.jit
def row_on_partitions(x, weight):
    """x @ weight.T, 512 columns at a time."""
    out = nl.ndarray((1, weight.shape[0]), dtype=x.dtype, buffer=nl.shared_hbm)
    row = _row(x)
    for start in range(0, weight.shape[0], 512):
        _tile(row, weight, out, start, x.shape[1])
    return out


@nki.jit
def doubled_row(x, weight):
    """As `row_on_partitions`, of the row doubled."""
    out = nl.ndarray((1, weight.shape[0]), dtype=x.dtype, buffer=nl.shared_hbm)
    row = _row(x)
    nisa.activation(dst=row, op=nl.copy, data=row, scale=2.0)
    for start in range(0, weight.shape[0], 512):
        _tile(row, weight, out, start, x.shape[1])
    return out


@nki.jit
def row_that_doubles(x, weight):
    """As `row_on_partitions`, and the row is doubled after each 512 columns."""
    out = nl.ndarray((1, weight.shape[0]), dtype=x.dtype, buffer=nl.shared_hbm)
    row = _row(x)
    for start in range(0, weight.shape[0], 512):
        _tile(row, weight, out, start, x.shape[1])
        nisa.activation(dst=row, op=nl.copy, data=row, scale=2.0)
    return out


@nki.jit
def sums_on_the_way(x, weight):
    """x @ weight.T, and the sum after each 128 of the common dimension."""
    rows, depth = x.shape
    columns = weight.shape[0]
    out = nl.ndarray((depth // 128, rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    bank = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)
    for i in range(depth // 128):
        a = nl.ndarray((128, rows), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((128, columns), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[:, 128 * i : 128 * i + 128].permute((1, 0)))
        nisa.dma_copy(dst=b, src=weight[:, 128 * i : 128 * i + 128].permute((1, 0)))
        nisa.nc_matmul(dst=bank, stationary=a, moving=b)
        nisa.dma_copy(dst=out[i], src=nl.copy(bank))
    return out
