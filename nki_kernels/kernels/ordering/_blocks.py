"""The k largest or smallest elements of long lines, by blocks: one pass over all elements finds the
extremum of each block, and the k best blocks hold the k best elements.

Only those k blocks are searched. Where lines are few or very long, segments of a line lie in
partitions of their own, and what is found in them is searched again. Equal elements come in any
order, as torch.topk leaves it open.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.ordering._keys import FOUND, write_keys

_EIGHT = 8
_LOADED = 2048  # elements of a partition at a time


@nki.jit
def topk_of_blocks_kernel(
    x: nl.NkiTensor,
    lines: tuple[int, int],
    blocks: tuple[int, int, int, int],
    shape: tuple[int, ...],
    largest: bool,
    cores: int = 1,
) -> Any:
    """Values, and indices as two words, of `shape`, in order: the first elements of each line.

    `lines` are the number and the length of the lines of x, `blocks` those of `Blocks` in
    `_block_plan.py`; `cores` share the lines.
    """
    total, length = lines
    k = blocks[3]
    values = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    indices = nl.ndarray(shape + (2,), dtype=nl.int32, buffer=nl.shared_hbm)
    rows = x.reshape((total, length))
    all_values, all_indices = values.reshape((total, k)), indices.reshape((total, k, 2))
    first, end = share_of(total, cores)
    together = nl.tile_size.pmax // blocks[0]
    for done in range(first, end, together):
        until = min(end, done + together)
        chosen, places = _first_of_segments(rows[done:until, :], blocks, largest)
        if blocks[0] > 1:
            chosen, places = _merged(chosen, places, blocks, largest)
        nisa.dma_copy(dst=all_values[done:until, :], src=chosen)
        words = nl.ndarray((until - done, k, 2), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=words, value=0)
        nisa.tensor_copy(dst=words[:, :, 0], src=places)
        nisa.dma_copy(dst=all_indices[done:until, :, :], src=words)
    return values, indices


def _first_of_segments(
    rows: nl.NkiTensor, blocks: tuple[int, int, int, int], largest: bool
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Values `[P, k]` and uint32 places `[P, k]` of the first elements of each segment of
    `rows[R, n]` in HBM; segment s of row r lies in partition s * R + r."""
    lines, length = rows.shape
    segments, count, size, k = blocks
    p = segments * lines
    beyond = segments * count * size - length
    tile = nl.ndarray((p, count, size), dtype=rows.dtype, buffer=nl.sbuf)
    chosen = _rounds(_best_keys(tile, rows, segments, largest), k)
    elements = nl.ndarray((p, k, size), dtype=nl.uint32, buffer=nl.sbuf)
    inside = nl.ndarray((p, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=inside, pattern=[[1, size]], offset=0, channel_multiplier=0)
    nisa.scalar_tensor_tensor(
        dst=elements,
        data=chosen[:, 0:k].expand_dim(2).broadcast(2, size),
        op0=nl.multiply,
        operand0=float(size),
        op1=nl.add,
        operand1=inside.expand_dim(1).broadcast(1, k),
    )
    elements = elements.reshape((p, k * size))
    candidates = nl.ndarray((p, k * size), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=candidates, data=tile.reshape((p, count * size)), indices=elements)
    keys = _keys(candidates, largest)
    if beyond > 0:
        _leave_out(keys, elements, (count * size, beyond, p - lines))
    return _gathered(candidates, elements, _rounds(keys, k)[:, 0:k])


def _leave_out(keys: nl.NkiTensor, elements: nl.NkiTensor, ragged: tuple[int, int, int]) -> None:
    """Keys of elements beyond the end of a line; `ragged` are the elements of a segment, how many
    of the last one there are not, and the first partition of last ones."""
    size, beyond, first = ragged
    p = keys.shape[0]
    end = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=end, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_scalar(
        dst=end,
        data=end,
        op0=nl.greater_equal,
        operand0=float(first),
        op1=nl.multiply,
        operand1=-float(beyond),
    )
    nisa.tensor_scalar(dst=end, data=end, op0=nl.add, operand0=float(size))
    is_beyond = nl.ndarray(keys.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_beyond, data=elements, op0=nl.greater_equal, operand0=end)
    nisa.tensor_copy_predicated(dst=keys, src=FOUND, predicate=is_beyond)


def _merged(
    values: nl.NkiTensor, places: nl.NkiTensor, blocks: tuple[int, int, int, int], largest: bool
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Values and places in the line, `[R, k]`, of those of its segments."""
    segments, count, size, k = blocks
    lines = values.shape[0] // segments
    loaded = []  # type: list[nl.NkiTensor]
    for part in (values, places):
        scratch = nl.ndarray((segments, lines, k), dtype=part.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(dst=scratch.reshape(part.shape), src=part)
        line = nl.ndarray((lines, segments, k), dtype=part.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=line, src=scratch.permute((1, 0, 2)))
        loaded.append(line)
    starts = nl.ndarray((lines, segments, k), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(
        dst=starts, pattern=[[count * size, segments], [0, k]], offset=0, channel_multiplier=0
    )
    elements = nl.ndarray((lines, segments, k), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=elements, data1=loaded[1], data2=starts, op=nl.add)
    candidates = loaded[0].reshape((lines, segments * k))
    found = _rounds(_keys(candidates, largest), k)[:, 0:k]
    return _gathered(candidates, elements.reshape((lines, segments * k)), found)


def _gathered(
    candidates: nl.NkiTensor, elements: nl.NkiTensor, found: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """What is at the places `found[P, k]`."""
    values = nl.ndarray(found.shape, dtype=candidates.dtype, buffer=nl.sbuf)
    places = nl.ndarray(found.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=values, data=candidates, indices=found)
    nisa.nc_n_gather(dst=places, data=elements, indices=found)
    return values, places


def _best_keys(
    tile: nl.NkiTensor, rows: nl.NkiTensor, segments: int, largest: bool
) -> nl.NkiTensor:
    """`rows` into `tile[P, blocks, n]`, and float32 `[P, blocks]`: the largest key of each block.

    Of a block with NaN the largest element is NaN, and so is its key. NaN is not the smallest:
    then all elements get a key.
    """
    p, count, size = tile.shape
    lines, length = rows.shape
    width = count * size
    last = length - (segments - 1) * width  # elements of the last segment
    flat = tile.reshape((p, width))
    if last < width:
        beyond = float("inf")
        if largest:
            beyond = -float("inf")
        nisa.memset(dst=flat[:, last:width], value=beyond)
    best = nl.ndarray((p, count), dtype=nl.float32, buffer=nl.sbuf)
    some = max(1, _LOADED // size)
    for first in range(0, count, some):
        end = min(count, first + some)
        start, until = first * size, min(end * size, last)
        whole = segments
        if end * size > last:
            whole = segments - 1
            if until > start:
                offset = whole * width + start
                nisa.dma_copy(
                    dst=flat[p - lines : p, start:until],
                    src=rows[:, offset : offset + until - start],
                )
        if whole > 0:
            pattern = [[width, whole], [length, lines], [1, (end - first) * size]]
            nisa.dma_copy(
                dst=flat[0 : whole * lines, start : end * size],
                src=rows.ap(pattern=pattern, offset=start),
            )
        part = tile[:, first:end, :]
        if not largest:
            keys = _keys(flat[:, start : end * size], largest)
            part = keys.reshape((p, end - first, size))
        nisa.tensor_reduce(dst=best[:, first:end], op=nl.maximum, data=part, axis=2)
    if largest:
        return _keys(best, largest)
    return best


def _keys(values: nl.NkiTensor, largest: bool) -> nl.NkiTensor:
    keys = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    write_keys(keys.expand_dim(1), values.expand_dim(1), largest)
    return keys


def _rounds(keys: nl.NkiTensor, count: int) -> nl.NkiTensor:
    """uint32 `[P, >= count]`: where the `count` largest keys are, which are overwritten."""
    p = keys.shape[0]
    rounds = (count + _EIGHT - 1) // _EIGHT
    found = nl.ndarray((p, rounds * _EIGHT), dtype=nl.uint32, buffer=nl.sbuf)
    best = nl.ndarray((p, _EIGHT), dtype=nl.float32, buffer=nl.sbuf)
    gives_places = nisa.get_nc_version() != nisa.nc_version.gen2
    for i in range(rounds):
        here = found[:, i * _EIGHT : (i + 1) * _EIGHT]
        nisa.max8(dst=best, src=keys)
        if gives_places and i + 1 < rounds:
            nisa.nc_match_replace8(dst=keys, data=keys, vals=best, imm=FOUND, dst_idx=here)
            continue
        nisa.nc_find_index8(dst=here, data=keys, vals=best)
        if i + 1 < rounds:
            nisa.nc_match_replace8(dst=keys, data=keys, vals=best, imm=FOUND)
    return found
