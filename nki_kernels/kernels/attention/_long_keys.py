"""NKI helpers of attention of long sequences: keys, values and masks of keys in SBUF."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._masks import FALSE_BIAS


class KeyMask(NamedTuple):
    """Which keys of a batch entry are seen: `flags[128, S]`, 0 or 1, the same on all partitions,
    and what is added to the scores, `bias[128, S / 128]`."""

    flags: nl.NkiTensor
    bias: nl.NkiTensor


class KeyHead(NamedTuple):
    """Keys `[d / cuts, cuts, keys]` of a head from block `first` on, twice where they take half of
    the partitions, and values with a column of ones `[128, keys / 128, Dv + 1]`."""

    batch: int
    first: int
    keys: nl.NkiTensor
    values: nl.NkiTensor
    mask: KeyMask | None


def key_span(block: int, depth: int, causal: bool, window: int) -> tuple[int, int]:
    """The keys that a block of queries sees, in whole blocks: `start .. stop`."""
    pmax = nl.tile_size.pmax
    start = 0
    if window > 0:
        start = max(0, block - (window + pmax - 2) // pmax) * pmax
    stop = min(depth, (block + 1) * pmax) if causal else depth
    return start, stop


def load_turned(x: nl.NkiTensor, cuts: int, padded: bool = False) -> nl.NkiTensor:
    """`x[rows, width]` of 2-byte elements as `[width / cuts, cuts, rows]`. `padded`: of all
    partitions, with zeros behind."""
    tile = room_for_turned(x, cuts, padded)
    turn_rows(tile, x, 0, x.shape[0])
    return tile


def room_for_turned(x: nl.NkiTensor, cuts: int, padded: bool) -> nl.NkiTensor:
    """Where `load_turned` puts `x`."""
    width = x.shape[1] // cuts
    partitions = nl.tile_size.pmax if padded else width
    tile = nl.ndarray((partitions, cuts, x.shape[0]), dtype=x.dtype, buffer=nl.sbuf)
    if partitions > width:
        nisa.memset(dst=tile[width:partitions], value=0.0)
    return tile


def turn_rows(tile: nl.NkiTensor, x: nl.NkiTensor, first: int, end: int) -> None:
    """Load rows `first .. end` of `x`, which may lie in memory as `tile` does."""
    cuts = tile.shape[1]
    width = x.shape[1] // cuts
    is_turned = x.strides[0] == 1 and x.strides[1] != 1
    for cut in range(cuts):
        dst = tile[0:width, cut, first:end]
        src = x[first:end, cut * width : (cut + 1) * width]
        if is_turned:
            nisa.dma_copy(dst=dst, src=src.permute((1, 0)))
        else:
            nisa.dma_transpose(dst=dst, src=src)


def load_rows(x: nl.NkiTensor, cuts: int) -> nl.NkiTensor:
    """As `load_turned`, and once more from the middle partition on where there is room."""
    half = nl.tile_size.pmax // 2
    width = x.shape[1]
    if width > half:
        return load_turned(x, cuts)
    tile = nl.ndarray((half + width, 1, x.shape[0]), dtype=x.dtype, buffer=nl.sbuf)
    for first in (0, half):
        nisa.dma_transpose(dst=tile[first : first + width, 0, :], src=x)
    return tile


def load_key_mask(mask: nl.NkiTensor) -> KeyMask:
    """A mask of keys, `mask[1, S]` of 0 or 1."""
    pmax = nl.tile_size.pmax
    blocks = mask.shape[1] // pmax
    flags = nl.ndarray((pmax, mask.shape[1]), dtype=mask.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=flags, src=mask.broadcast(0, pmax))
    rows = nl.ndarray((blocks, pmax), dtype=mask.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=mask.squeeze_dim(0).reshape_dim(0, (blocks, pmax)))
    wide = nl.ndarray((blocks, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=rows)
    turned = nl.ndarray((pmax, blocks), dtype=nl.bfloat16, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=wide, engine=nisa.engine.tensor)
    bias = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bias, data=turned, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=FALSE_BIAS
    )
    return KeyMask(flags, bias)


def room_for_values(v: nl.NkiTensor) -> nl.NkiTensor:
    """Where `v[S, Dv]` goes, with a column of ones: `[128, S / 128, Dv + 1]`."""
    pmax = nl.tile_size.pmax
    rows, width = v.shape
    values = nl.ndarray((pmax, rows // pmax, width + 1), dtype=v.dtype, buffer=nl.sbuf)
    nisa.memset(dst=values[:, :, width : width + 1], value=1.0, engine=nisa.engine.gpsimd)
    return values


def load_key_head(
    k: nl.NkiTensor, v: nl.NkiTensor, cuts: int, batch: int, first: int, mask: KeyMask | None
) -> KeyHead:
    """Load keys and values of one head from block `first` on, `k[keys, d]` and `v[keys, Dv]`."""
    pmax = nl.tile_size.pmax
    blocks = v.shape[0] // pmax
    values = room_for_values(v)
    keys = load_rows(k, cuts)
    src = v.reshape_dim(0, (blocks, pmax)).permute((1, 0, 2))
    # By another ring than the transposes, each of which takes the trigger's time of its own.
    nisa.dma_copy(
        dst=values[:, :, 0 : v.shape[1]], src=src, dge_mode=nisa.dge_mode.hwdge,
        engine=nisa.engine.scalar,
    )  # fmt: skip
    return KeyHead(batch, first, keys, values, mask)
