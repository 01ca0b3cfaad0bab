"""Kernels of the tests of copies that a replay leaves out."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def weight_by_columns(x, weight):
    """x @ weight.T: both arrive turned, as matrix products take them."""
    rows, depth = x.shape
    columns = weight.shape[0]
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    bank = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)
    for k in range(0, depth, 128):
        a = nl.ndarray((128, rows), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((128, columns), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=a, src=x[:, k : k + 128])
        nisa.dma_transpose(dst=b, src=weight[:, k : k + 128])
        nisa.nc_matmul(dst=bank, stationary=a, moving=b)
    result = nl.copy(bank)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def products(x, y, times):
    """x.T @ y, so many times."""
    out = nl.ndarray((times, x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.load(y)
    for i in range(times):
        bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=a, moving=b)
        result = nl.copy(bank)
        nisa.dma_copy(dst=out[i], src=result)
    return out


@nki.jit
def product_and_sum(x, y):
    """x.T @ y + y[:columns of x]: another instruction reads the copy of y."""
    columns = x.shape[1]
    out = nl.ndarray((columns, y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.load(y)
    bank = nl.ndarray((columns, y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=a, moving=b)
    result = nl.ndarray((columns, y.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=bank, data2=b[0:columns], op=nl.add)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def copy_changed_in_part(x, y):
    """x.T @ y, where a column of y is 3 on chip."""
    out = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.load(y)
    nisa.memset(dst=b[:, 5:6], value=3.0)
    bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=a, moving=b)
    result = nl.copy(bank)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def source_overwritten(x, y, z):
    """x.T @ y, and z into y before the product reads its copy."""
    a = nl.load(x)
    b = nl.load(y)
    c = nl.load(z)
    nisa.dma_copy(dst=y, src=c)
    out = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=a, moving=b)
    result = nl.copy(bank)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def copies_of_padded_rows(x, y):
    """x.T @ y, where y is put into zeros first: two instructions fill what is copied."""
    depth, columns = y.shape
    out = nl.ndarray((x.shape[1], 2 * columns), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    padded = nl.ndarray((depth, 2 * columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=padded, value=0.0)
    nisa.dma_copy(dst=padded[:, 0:columns], src=y)
    b = nl.ndarray((depth, 2 * columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=b, src=padded)
    bank = nl.ndarray((x.shape[1], 2 * columns), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=a, moving=b)
    result = nl.copy(bank)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def shifted_on_chip(x, y):
    """x.T @ y[:, :256], which went to another tile and back to other columns of the first."""
    out = nl.ndarray((x.shape[1], 256), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=b, src=nl.load(y))
    nisa.activation(dst=b, op=nl.copy, data=b, scale=2.0)
    held = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=b[:, 0:256])
    nisa.tensor_copy(dst=b[:, 128:384], src=held)
    bank = nl.ndarray((x.shape[1], 256), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=a, moving=b[:, 128:384])
    result = nl.copy(bank)
    nisa.dma_copy(dst=out, src=result)
    return out
