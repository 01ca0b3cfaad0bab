"""Kernels whose products go from windows of an image to windows of PSUM, as convolutions' do."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def window_products(x, weight, times):
    """Products of windows of an image onto other windows of PSUM, as convolutions make them:
    weight.T @ x[:, 1:, 1:] into [:-1, :-1], x[:, :-1, :-1] into [1:, 1:], onto the whole.
    """
    rows, columns = x.shape[1:]
    outputs = weight.shape[1]
    out = nl.ndarray((times, outputs, rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    w = nl.load(weight)
    for i in range(times):
        image = nl.load(x)
        bank = nl.ndarray((outputs, rows, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=w, moving=image)
        nisa.nc_matmul(dst=bank[:, :-1, :-1], stationary=w, moving=image[:, 1:, 1:])
        nisa.nc_matmul(dst=bank[:, 1:, 1:], stationary=w, moving=image[:, :-1, :-1])
        nisa.dma_copy(dst=out[i], src=nl.copy(bank))
    return out


@nki.jit
def window_products_first(x, weight):
    """A product of a window onto a window where half of it has a product, then onto the rest."""
    rows, columns = x.shape[1:]
    out = nl.ndarray((weight.shape[1], rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    w = nl.load(weight)
    image = nl.load(x)
    bank = nl.ndarray((weight.shape[1], rows, columns), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank[:, :2, 1:], stationary=w, moving=image[:, :2, 1:])
    nisa.nc_matmul(dst=bank[:, :, 1:], stationary=w, moving=image[:, :, :-1])
    nisa.nc_matmul(dst=bank[:, :, 0], stationary=w, moving=image[:, :, 0])
    nisa.dma_copy(dst=out, src=nl.copy(bank))
    return out


@nki.jit
def window_of_a_part(x, weight):
    """weight.T @ x, which fills a part of its tile; nothing is written between its rows."""
    rows, columns = x.shape[1:]
    out = nl.ndarray((weight.shape[1], rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    w = nl.load(weight)
    image = nl.ndarray((x.shape[0], rows, columns + 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=image[:, :, 1 : columns + 1], src=x)
    bank = nl.ndarray((weight.shape[1], rows, columns + 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank[:, :, :columns], stationary=w, moving=image[:, :, 1 : columns + 1])
    nisa.nc_matmul(dst=bank[:, :, :columns], stationary=w, moving=image[:, :, 1 : columns + 1])
    nisa.dma_copy(dst=out, src=nl.copy(bank[:, :, :columns]))
    return out
