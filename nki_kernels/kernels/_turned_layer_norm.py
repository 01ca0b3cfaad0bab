"""The kernel of `layer_norm` for long rows in half precision of which there are many."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._half_rows import HalfRows, normalise_half_rows
from trnx.nki_kernels.kernels._repairs import column_of_ones, repairs_of
from trnx.nki_kernels.kernels._rows import tiles_of
from trnx.nki_kernels.kernels._turned_rows import normalise_turned_rows


@nki.jit
def turned_layer_norm_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor,
    eps: float,
    columns: int,
    fold: int,
    stats_shape: tuple[int, ...],
    shares: tuple[int, int],
    lags: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """x, weight and bias of one dtype -> (out, mean, rstd) by products (`_turned_rows.py`), again
    as in `_half_rows.py` where the numbers do not suit that. `shares` are those of such a repair,
    which `lags`."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mean = nl.ndarray(stats_shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rstd = nl.ndarray(stats_shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.size // columns
    flat, flat_out = x.reshape((rows, columns)), out.reshape((rows, columns))
    epsilon = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    first, end = share_of(rows, cores)
    starts = _whole_tiles(first, end, fold)
    fast = HalfRows(flat, None, flat_out, mean, rstd, epsilon, 0, 0)
    if len(starts) > 0:
        good = normalise_turned_rows(fast, weight, bias, starts)
        for _ in nl.dynamic_range(repairs_of(good, column_of_ones())):
            on_scalar, on_gpsimd = columns * shares[0] // 100, columns * shares[1] // 100
            exact = HalfRows(flat, None, flat_out, mean, rstd, epsilon, on_scalar, on_gpsimd)
            normalise_half_rows(exact, weight, bias, tiles_of(first, end, 1), lags)
    return out, mean, rstd


def _whole_tiles(first: int, end: int, fold: int) -> list[tuple[int, int, int]]:
    """Tiles as of `tiles_of`, of all partitions: the last one has rows of the one before again, so
    that a row has the same result wherever it stands."""
    pmax = nl.tile_size.pmax
    whole = (end - first) // pmax * pmax
    starts = tiles_of(first, first + whole, fold)
    if first + whole < end:
        starts.append((end - pmax, pmax, 1))
    return starts
