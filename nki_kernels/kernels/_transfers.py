"""NKI helpers of kernels: which queue a transfer takes, and when its descriptors are made."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def transfer(dst: nl.NkiTensor, src: nl.NkiTensor, is_static: bool = False) -> None:
    """Copy by DMA; where it `is_static`, with descriptors that are made before the run
    (`nki_kernels/descriptors.py`)."""
    nisa.dma_copy(
        dst=dst, src=src, dge_mode=nisa.dge_mode.none if is_static else nisa.dge_mode.unknown
    )


def load_aside(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """By the queue of stores, so that the loads behind it need not wait for it."""
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        transfer(dst, src)
    else:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)


def store_late(dst: nl.NkiTensor, src: nl.NkiTensor, is_late: bool = True) -> None:
    """Where it `is_late`, by the queue of loads, which are done, so that it need not wait for the
    stores before."""
    if is_late and nisa.get_nc_version() != nisa.nc_version.gen2:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)
    else:
        transfer(dst, src)
