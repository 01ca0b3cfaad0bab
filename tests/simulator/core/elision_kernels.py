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


@nki.jit
def taps_of_weight(x, weight):
    """sum over t of weight[:, :, t] @ x[:, t:t + columns]: the weight arrives as it lies, each tap
    is taken out, turned by the Tensor engine, and leaves PSUM together with others.
    """
    outputs, inputs, taps = weight.shape
    columns = x.shape[1] - taps + 1
    out = nl.ndarray((outputs, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    held = nl.load(weight)
    turned = nl.ndarray((inputs, taps, outputs), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, taps, 3):
        bank = nl.ndarray((inputs, 3, outputs), dtype=nl.float32, buffer=nl.psum)
        for t in range(3):
            nisa.nc_transpose(dst=bank[:, t], data=held[:, :, first + t])
        nisa.tensor_copy(dst=turned[:, first : first + 3], src=bank)
    total = nl.ndarray((outputs, columns), dtype=nl.float32, buffer=nl.psum)
    for t in range(taps):
        nisa.nc_matmul(dst=total, stationary=turned[:, t], moving=a[:, t : t + columns])
    nisa.dma_copy(dst=out, src=nl.copy(total))
    return out


@nki.jit
def taps_that_are_read_again(x, weight):
    """The same with one tap, which another instruction reads, too."""
    outputs, inputs, _ = weight.shape
    columns = x.shape[1]
    out = nl.ndarray((outputs, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    sums = nl.ndarray((inputs, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    held = nl.load(weight)
    bank = nl.ndarray((inputs, outputs), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=held[:, :, 1])
    turned = nl.copy(bank)
    total = nl.ndarray((outputs, columns), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=turned, moving=a)
    nisa.dma_copy(dst=out, src=nl.copy(total))
    found = nl.ndarray((inputs, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=found, op=nl.add, data=turned, axis=1)
    nisa.dma_copy(dst=sums, src=found)
    return out, sums


def _tile(x, k):
    return nl.load(x[128 * k : min(128 * (k + 1), x.shape[0])])


@nki.jit
def product_of_rows(x, y):
    """x.T @ y for any number of rows."""
    out = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for k in range((x.shape[0] + 127) // 128):
        nisa.nc_matmul(dst=bank, stationary=_tile(x, k), moving=_tile(y, k))
    nisa.dma_copy(dst=out, src=nl.copy(bank))
    return out


@nki.jit
def bank_read_half_way(x, y):
    """x.T @ y of the first half of the rows, then of all."""
    out = nl.ndarray((2, x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    count = x.shape[0] // 128
    for k in range(count):
        nisa.nc_matmul(dst=bank, stationary=_tile(x, k), moving=_tile(y, k))
        if k + 1 == count // 2:
            nisa.dma_copy(dst=out[0], src=nl.copy(bank))
    nisa.dma_copy(dst=out[1], src=nl.copy(bank))
    return out


@nki.jit
def depths_backwards(x, y):
    """x.T @ y, the last rows first."""
    out = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    count = x.shape[0] // 128
    for k in range(count):
        last = count - 1 - k
        nisa.nc_matmul(dst=bank, stationary=_tile(x, last), moving=_tile(y, last))
    nisa.dma_copy(dst=out, src=nl.copy(bank))
    return out


@nki.jit
def factor_overwritten(x, y, z):
    """x.T @ y; between the products, z takes the place of the first rows of y."""
    out = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for k in range(2):
        nisa.nc_matmul(dst=bank, stationary=_tile(x, k), moving=_tile(y, k))
        if k == 0:
            nisa.dma_copy(dst=y[0:128], src=nl.load(z))
    nisa.dma_copy(dst=out, src=nl.copy(bank))
    return out


@nki.jit
def twice_and_square(x):
    """2 x, and the square of x."""
    results = []
    for op, scale in ((nl.copy, 2.0), (nl.square, 1.0)):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        made = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation(dst=made, op=op, data=tile, scale=scale)
        nisa.dma_copy(dst=out, src=made)
        results.append(out)
    return tuple(results)


@nki.jit
def products_square(x, y):
    """x.T @ y by blocks of 32 columns of x: the result of one is stored before the next reads."""
    size = x.shape[1]
    out = nl.ndarray((size, y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.load(y)
    for first in range(0, size, 32):
        bank = nl.ndarray((32, y.shape[1]), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=a[:, first : first + 32], moving=b)
        result = nl.copy(bank)
        nisa.dma_copy(dst=out[first : first + 32], src=result)
    return out
