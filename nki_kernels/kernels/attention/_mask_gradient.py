"""NKI helpers of the backward pass of attention: the gradient of a mask, in HBM.

A mask may be shared by batch entries and heads; its gradient is their sum, of which the first chunk
writes and the others add.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._layout import Chunk, split_heads


def _mask_window(
    dmask: nl.NkiTensor, chunk: Chunk, row: int, rows: int, col: int, cols: int
) -> nl.NkiTensor:
    """`[rows, batches or 1, heads or 1, cols]` of the gradient of a mask."""
    view = dmask.slice(2, row, row + rows).slice(3, col, col + cols)
    if dmask.shape[0] > 1:
        view = view.slice(0, chunk.batch, chunk.batch + chunk.batches)
    if dmask.shape[1] > 1:
        view = view.slice(1, chunk.head, chunk.head + chunk.heads)
    return view.permute((2, 0, 1, 3))


def _is_first(dmask: nl.NkiTensor, chunk: Chunk) -> bool:
    """True where nothing has been added to the chunk's part of the gradient of the mask."""
    return (dmask.shape[0] > 1 or chunk.batch == 0) and (dmask.shape[1] > 1 or chunk.head == 0)


def add_mask_gradient(
    dmask: nl.NkiTensor, dscores: nl.NkiTensor, chunk: Chunk, row: int, start: int
) -> None:
    """Add `dscores[rows, heads, keys]`, the keys from `start`, summed over what shares the mask."""
    rows = dscores.shape[0]
    target = _mask_window(dmask, chunk, row, rows, start, dscores.shape[2])
    parts = split_heads(dscores, chunk)
    total = parts
    sum_batches = dmask.shape[0] == 1 and chunk.batches > 1
    sum_heads = dmask.shape[1] == 1 and chunk.heads > 1
    if sum_batches or sum_heads:
        total = nl.ndarray(target.shape, dtype=nl.float32, buffer=nl.sbuf)
        if sum_batches and sum_heads:
            nisa.tensor_reduce(
                dst=total[:, 0, 0, :], op=nl.add, data=parts.permute((0, 3, 1, 2)), axis=(2, 3)
            )
        elif sum_heads:
            turned = parts.permute((0, 1, 3, 2))
            nisa.tensor_reduce(dst=total[:, :, 0, :], op=nl.add, data=turned, axis=3)
        else:
            turned = parts.permute((0, 2, 3, 1))
            nisa.tensor_reduce(dst=total[:, 0, :, :], op=nl.add, data=turned, axis=3)
    if not _is_first(dmask, chunk):
        before = nl.ndarray(target.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=before, src=target)
        nisa.tensor_tensor(dst=before, data1=before, data2=total, op=nl.add)
        total = before
    nisa.dma_copy(dst=target, src=total)


def clear_mask_gradient(
    dmask: nl.NkiTensor, chunk: Chunk, row: int, rows: int, start: int, size: int
) -> None:
    """Zeros where no query sees a key."""
    if _is_first(dmask, chunk):
        target = _mask_window(dmask, chunk, row, rows, start, size)
        zeros = nl.ndarray(target.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=zeros, value=0.0)
        nisa.dma_copy(dst=target, src=zeros)
