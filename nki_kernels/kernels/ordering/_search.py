"""The first elements of lines in order, eight at a time: VectorE finds the eight largest keys and
where they are, and takes them out.

Of equal keys the first is found first, so that the order is stable. Lines lie on partitions,
several side by side in one where they are short. A tile is `[P, lines, n]`, or `[P, n, lines]`
where neighbours in memory belong to different lines.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._lines import Lines
from trnx.nki_kernels.kernels.ordering._keys import FOUND, write_keys

_EIGHT = 8


@nki.jit
def first_in_order_kernel(
    x: nl.NkiTensor,
    source: Lines,
    target: Lines,
    fold: int,
    shape: tuple[int, ...],
    largest: bool,
    cores: int = 1,
) -> Any:
    """Values, and indices as two words, of `shape`: the first elements of each line.

    `source` are the lines of x, `target` those of the results; a partition holds `fold` lines.
    `cores` share the lines of a group.
    """
    groups, (total, step), (size, stride) = source
    values = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    indices = nl.ndarray(shape + (2,), dtype=nl.int32, buffer=nl.shared_hbm)
    first, end = share_of(total, cores)
    for group in range(groups[0]):
        done = first
        while done < end:
            partitions = min(nl.tile_size.pmax, end - done)
            run = min(fold, (end - done) // partitions)
            pattern = _pattern(source, partitions, run, 1)
            tile = nl.ndarray(_sizes(pattern), dtype=x.dtype, buffer=nl.sbuf)
            start = group * groups[1] + done * step
            nisa.dma_copy(dst=tile, src=x.ap(pattern=pattern, offset=start))
            found = _search(_by_line(tile, stride), target[2][0], largest)
            pattern = _pattern(target, partitions, run, 1)
            chosen = nl.ndarray(_sizes(pattern), dtype=x.dtype, buffer=nl.sbuf)
            nisa.nc_n_gather(
                dst=chosen, data=tile, indices=_elements(chosen, found, (size, stride))
            )
            start = group * target[0][1] + done * target[1][1]
            nisa.dma_copy(dst=values.ap(pattern=pattern, offset=start), src=chosen)
            pattern = _pattern(target, partitions, run, 2)
            words = nl.ndarray(_sizes(pattern), dtype=nl.int32, buffer=nl.sbuf)
            nisa.memset(dst=words, value=0)
            nisa.tensor_copy(dst=_by_line(words[:, :, :, 0], stride), src=found)
            nisa.dma_copy(dst=indices.ap(pattern=pattern, offset=2 * start), src=words)
            done = done + partitions * run
    return values, indices


def _pattern(lines: Lines, partitions: int, run: int, words: int) -> list[list[int]]:
    """The access pattern of a tile of `run` lines in each partition."""
    _, (_, step), (size, stride) = lines
    pattern = [[step * run * words, partitions]]  # type: list[list[int]]
    if stride == 1:
        pattern.append([step * words, run])
        pattern.append([words, size])
    else:
        pattern.append([stride * words, size])
        pattern.append([step * words, run])
    if words > 1:
        pattern.append([1, words])
    return pattern


def _sizes(pattern: list[list[int]]) -> tuple[int, ...]:
    sizes = []  # type: list[int]
    for entry in pattern:
        sizes.append(entry[1])
    return tuple(sizes)


def _by_line(tile: nl.NkiTensor, stride: int) -> nl.NkiTensor:
    """A tile as `[P, lines, n]`; `stride` is that of a line's elements in memory."""
    return tile if stride == 1 else tile.permute((0, 2, 1))


def _search(tile: nl.NkiTensor, count: int, largest: bool) -> nl.NkiTensor:
    """uint32 `[P, lines, count]`: where the first `count` elements of each line are in it."""
    partitions, lines, size = tile.shape
    width = max(size, _EIGHT)
    keys = nl.ndarray((partitions, lines, width), dtype=nl.float32, buffer=nl.sbuf)
    if width > size:
        nisa.memset(dst=keys, value=FOUND)
    write_keys(keys[:, :, 0:size], tile, largest)
    rounds = (count + _EIGHT - 1) // _EIGHT
    found = nl.ndarray((partitions, lines, rounds * _EIGHT), dtype=nl.uint32, buffer=nl.sbuf)
    best = nl.ndarray((partitions, lines, _EIGHT), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(rounds):
        for n in range(lines):
            line, eight = keys[:, n, :], best[:, n, :]
            nisa.max8(dst=eight, src=line)
            here = found[:, n, i * _EIGHT : (i + 1) * _EIGHT]
            nisa.nc_find_index8(dst=here, data=line, vals=eight)
            if i + 1 < rounds:
                nisa.nc_match_replace8(dst=line, data=line, vals=eight, imm=FOUND)
    return found[:, :, 0:count]


def _elements(like: nl.NkiTensor, found: nl.NkiTensor, line: tuple[int, int]) -> nl.NkiTensor:
    """Where what was found lies in its partition: uint32, of the shape of `like`."""
    _, lines, count = found.shape
    size, stride = line
    first = nl.ndarray(found.shape, dtype=nl.float32, buffer=nl.sbuf)
    between = size if stride == 1 else 1
    nisa.iota(dst=first, pattern=[[between, lines], [0, count]], offset=0, channel_multiplier=0)
    elements = nl.ndarray(like.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=_by_line(elements, stride),
        data=found,
        op0=nl.multiply,
        operand0=1.0 if stride == 1 else float(lines),
        op1=nl.add,
        operand1=first,
    )
    return elements
