"""Rows in groups whose ends are known at run time only: which tile's rows lie before each end."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject

MOST_ROWS = 2**24  # VectorE compares in float32


def load_ends(offsets: nl.NkiTensor, experts: int) -> nl.NkiTensor:
    """The low words of `offsets` on every partition, `[128, E]`."""
    words = offsets.size // experts
    ends = nl.ndarray((nl.tile_size.pmax, experts, words), dtype=nl.int32, buffer=nl.sbuf)
    source = offsets.reshape((1, experts, words)).broadcast(0, nl.tile_size.pmax)
    nisa.dma_copy(dst=ends, src=source)
    return ends[:, :, 0]


def masks_before(ends: nl.NkiTensor, row: int, rows: int, experts: int) -> nl.NkiTensor:
    """`[128, tiles, E]`: whether row `row + 128 * tile + partition` lies before a group's end."""
    pmax = nl.tile_size.pmax
    tiles = (rows + pmax - 1) // pmax
    masks = nl.ndarray((pmax, tiles, experts), dtype=nl.uint8, buffer=nl.sbuf)
    for tile in range(tiles):
        place = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=place, pattern=[[1, 1]], offset=row + tile * pmax, channel_multiplier=1)
        nisa.tensor_scalar(dst=masks[:, tile, :], data=ends, op0=nl.greater, operand0=place)
    return masks


def reject_groups(b: Bindings, other: str) -> Reject | None:
    """A Reject for two dtypes of x and `other`, offsets that are no integers, or no work."""
    if reject := reject_dtypes(b, "x"):
        return reject
    if b[other].dtype != b.x.dtype:
        return Reject(f"x is {b.x.dtype} but {other} is {b[other].dtype}; one dtype is needed")
    if b.offsets.dtype not in (torch.int32, torch.int64):
        return Reject(f"offsets are {b.offsets.dtype}, neither int32 nor int64")
    if b.x.numel == 0 or b[other].numel == 0 or b.offsets.numel == 0:
        return Reject(f"an empty product: x{b.x.shape}, {other}{b[other].shape}")
    if b.x.shape[0] >= MOST_ROWS:
        return Reject(f"{b.x.shape[0]} rows are not numbers that float32 holds exactly")
    return None
