"""The two kernels of copies: from HBM to HBM, and through rows in SBUF. `_copies.py` says when."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import is_first, share_of
from trnx.nki_kernels.kernels._transfers import transfer

Pattern = tuple[tuple[int, int], ...]  # (stride, count) of each dimension, outermost first


@nki.jit
def copy_kernel(
    shape: tuple[int, ...],
    copies: tuple[tuple[Any, ...], ...],
    fills: tuple[tuple[int, Pattern, Pattern], ...],
    filling: tuple[float, ...],
    is_static: bool,
    x0: nl.NkiTensor,
    x1: nl.NkiTensor | None = None,
    x2: nl.NkiTensor | None = None,
    x3: nl.NkiTensor | None = None,
    x4: nl.NkiTensor | None = None,
    x5: nl.NkiTensor | None = None,
    x6: nl.NkiTensor | None = None,
    x7: nl.NkiTensor | None = None,
    x8: nl.NkiTensor | None = None,
    x9: nl.NkiTensor | None = None,
    x10: nl.NkiTensor | None = None,
    x11: nl.NkiTensor | None = None,
    x12: nl.NkiTensor | None = None,
    x13: nl.NkiTensor | None = None,
    x14: nl.NkiTensor | None = None,
    x15: nl.NkiTensor | None = None,
    cores: int = 1,
) -> nl.NkiTensor:
    """The result of `shape`. `copies`: (operand, its offset, its pattern, offset and pattern of the
    result); `fills`: (offset, pattern, the pattern of the constant); `filling`: how many elements
    make the constant, and the numbers that it has in turns. `is_static`, of the copies, as in
    `transfer`. `cores` share each copy; the first has the fills.
    """
    sources = (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15)  # type: Any
    out = nl.ndarray(shape, dtype=x0.dtype, buffer=nl.shared_hbm)
    for index, start, pattern, place, goal in copies:
        # Both have the same counts.
        first, end = share_of(pattern[0][1], cores)
        if first < end:
            here = ((pattern[0][0], end - first),) + pattern[1:]
            there = ((goal[0][0], end - first),) + goal[1:]
            source = sources[index].ap(pattern=here, offset=start + first * pattern[0][0])
            target = out.ap(pattern=there, offset=place + first * goal[0][0])
            transfer(target, source, is_static)
    if len(fills) > 0 and is_first():
        longest, turns = filling[0], len(filling) - 1
        tile = nl.ndarray((1, longest), dtype=x0.dtype, buffer=nl.sbuf)
        for i in range(turns):
            every = ((longest, 1), (turns, longest // turns))
            nisa.memset(dst=tile.ap(pattern=every, offset=i), value=filling[1 + i])
        constant = nl.ndarray((1, longest), dtype=x0.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(dst=constant, src=tile)
        for place, goal, pattern in fills:
            target = out.ap(pattern=goal, offset=place)
            transfer(target, constant.ap(pattern=pattern), is_static)
    return out


@nki.jit
def assembly_kernel(
    shape: tuple[int, ...],
    sizes: tuple[int, int, int],
    loads: tuple[tuple[Any, ...], ...],
    moves: tuple[tuple[Any, ...], ...],
    fills: tuple[tuple[int, Pattern, float], ...],
    x0: nl.NkiTensor,
    x1: nl.NkiTensor | None = None,
    x2: nl.NkiTensor | None = None,
    x3: nl.NkiTensor | None = None,
    x4: nl.NkiTensor | None = None,
    x5: nl.NkiTensor | None = None,
    x6: nl.NkiTensor | None = None,
    x7: nl.NkiTensor | None = None,
    x8: nl.NkiTensor | None = None,
    x9: nl.NkiTensor | None = None,
    x10: nl.NkiTensor | None = None,
    x11: nl.NkiTensor | None = None,
    x12: nl.NkiTensor | None = None,
    x13: nl.NkiTensor | None = None,
    x14: nl.NkiTensor | None = None,
    x15: nl.NkiTensor | None = None,
    cores: int = 1,
) -> nl.NkiTensor:
    """The result of `shape`, which is `sizes` of rows, their width, and rows in a partition.

    `loads`: (operand, offset, stride of rows, pattern in a row, elements of a row); `moves`: (load,
    its pattern, offset and pattern in a row of the result); `fills`: (offset, pattern, number).
    `cores` share the rows.
    """
    sources = (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15)  # type: Any
    out = nl.ndarray(shape, dtype=x0.dtype, buffer=nl.shared_hbm)
    rows, width, fold = sizes
    done, end = share_of(rows, cores)
    while done < end:
        partitions = min(nl.tile_size.pmax, end - done)
        run = min(fold, (end - done) // partitions)
        tiles = []  # type: list[nl.NkiTensor]
        for index, start, step, pattern, size in loads:
            tile = nl.ndarray((partitions, run, size), dtype=x0.dtype, buffer=nl.sbuf)
            lanes = ((step * run, partitions), (step, run))
            source = sources[index].ap(pattern=lanes + pattern, offset=start + done * step)
            nisa.dma_copy(dst=tile, src=source)
            tiles.append(tile)
        goal = nl.ndarray((partitions, run, width), dtype=x0.dtype, buffer=nl.sbuf)
        own = ((run * width, partitions), (width, run))
        for place, pattern, value in fills:
            nisa.memset(dst=goal.ap(pattern=own + pattern, offset=place), value=value)
        for number, there, place, pattern in moves:
            size = loads[number][4]
            data = tiles[number].ap(pattern=((run * size, partitions), (size, run)) + there)
            nisa.tensor_copy(dst=goal.ap(pattern=own + pattern, offset=place), src=data)
        lanes = ((run * width, partitions), (1, run * width))
        nisa.dma_copy(dst=out.ap(pattern=lanes, offset=done * width), src=goal)
        done = done + partitions * run
    return out
