"""Kernels that say when their Python runs; loaded as a twin."""

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl

FACTOR = 2.0


@dataclass
class Config:
    factor: float


def factor_of(value):
    return value


@nki.jit
def scaled(x, factor=1.0):
    print("runs")
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor_of(factor) * FACTOR)
    nisa.dma_copy(dst=out, src=tile)
    return out


class Options(nl.NKIObject):
    factor: float = 2.0


SETTINGS = {"factors": [4.0]}
OPTIONS = Options(factor=2.0)


def product_of(factors, initial=[1.0]):  # noqa: B006 - what the test changes
    found = initial[0] * len(initial)
    for factor in factors:
        found = found * factor
    return found


@nki.jit
def scaled_by_settings(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    factor = product_of(SETTINGS["factors"]) * OPTIONS.factor
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def scaled_by(x, config):
    return scaled(x, config.factor)


@nki.jit
def scaled_by_all(x, factors):
    for factor in factors:
        x = scaled(x, factor)
    return x


@nki.jit
def doubled_in_place(x):
    """Writes into its argument and returns it, and a part of it."""
    print("runs")
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=x, src=tile)
    return x, x[0:1]


@nki.jit
def picked(x, index):
    """The row of x that the index names."""
    print("runs")
    out = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    place = nl.ndarray((1, 1), dtype=index.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=place, src=index)
    row = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=row,
        src=x.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=place, indirect_dim=0),
    )
    nisa.dma_copy(dst=out, src=row)
    return out


@nki.jit
def half_written(x):
    """Returns what it has not written, which `warn` may let pass."""
    print("runs")
    out = nl.ndarray((2, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[0:1], src=x[0:1])
    return out
