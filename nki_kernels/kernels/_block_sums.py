"""NKI helpers of `layer_norm_backward`: sums over rows in PSUM, `[128, blocks]` in
float32: a block of 128 columns in each column, of any number of them."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._transfers import store_late


def add_up(sums: nl.NkiTensor, data: nl.NkiTensor, factors: nl.NkiTensor, is_started: bool) -> None:
    """sums[c % 128, c // 128] += the sum of data[:, c] * factors."""
    rows, columns = data.shape
    pmax = nl.tile_size.pmax
    for i in range(sums.shape[1]):
        start, end = i * pmax, min(columns, (i + 1) * pmax)
        nisa.nc_matmul(
            dst=sums[0 : end - start, i : i + 1], stationary=data[:, start:end],
            moving=factors[0:rows], accumulate=is_started,
        )  # fmt: skip


def exchange_sums(
    parts: nl.NkiTensor | None, weight_sums: nl.NkiTensor, bias_sums: nl.NkiTensor, columns: int
) -> None:
    """This program's sums of `columns` side by side in its part of `parts`, if there are any, zeros
    without columns, and a barrier, of TensorE, which has nothing else to do then."""
    if parts is None:
        return
    partitions, blocks = weight_sums.shape
    own = nl.ndarray((partitions, 2, blocks), dtype=nl.float32, buffer=nl.sbuf)
    whole, rest = columns // partitions, columns % partitions
    if whole < blocks:
        nisa.memset(dst=own, value=0.0)
    for i, sums in ((0, weight_sums), (1, bias_sums)):
        if whole > 0:
            nisa.tensor_copy(dst=own[:, i, 0:whole], src=sums[:, 0:whole])
        if rest > 0:
            nisa.tensor_copy(dst=own[0:rest, i, whole:blocks], src=sums[0:rest, whole:blocks])
    nisa.dma_copy(
        dst=parts[nl.program_id(0)], src=own.reshape((partitions, 2 * blocks)),
        dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync,
    )  # fmt: skip
    nisa.core_barrier(parts, (0, 1), engine=nisa.engine.tensor)


def store_sums(dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """dst[c] = sums[c % 128, c // 128]"""
    pmax, blocks = sums.shape
    columns = dst.shape[0]
    whole = columns // pmax
    rounded = nl.ndarray((pmax, blocks), dtype=dst.dtype, buffer=nl.sbuf)
    if whole > 0:
        nisa.tensor_copy(dst=rounded[:, 0:whole], src=sums[:, 0:whole])
        target = dst[0 : whole * pmax].reshape((whole, pmax)).permute((1, 0))
        store_late(target, rounded[:, 0:whole])
    if whole < blocks:
        rest = columns - whole * pmax
        nisa.tensor_copy(dst=rounded[0:rest, whole:blocks], src=sums[0:rest, whole:blocks])
        target = dst[whole * pmax : columns].reshape((rest, 1))
        store_late(target, rounded[0:rest, whole:blocks])
