"""What the kernels of scans share: where tiles lie in HBM, and the scan of a tile.

A tile is `[partitions, rows, length, width]`; `_scan_plan.py` says how a tensor is cut.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of


def tiles_of(groups: tuple[Any, ...], cores: int) -> list[tuple[tuple[Any, ...], int]]:
    """The tiles of this program, as group and number; `cores` share those of all groups."""
    every = []  # type: list[tuple[tuple[Any, ...], int]]
    for group in groups:
        for tile in range(group[1]):
            every.append((group, tile))
    first, end = share_of(len(every), cores)
    return every[first:end]


def places(
    group: tuple[Any, ...], tile: int, first: int, count: int, sizes: tuple[int, ...], words: int
) -> tuple[list[list[int]], int]:
    """The access pattern and the offset of `count` positions from `first` on of a tile in HBM;
    `sizes` are the length and the inner size, an element has `words` words."""
    start, _, step, partitions, rows, width = group
    length, inner = sizes
    pattern = []  # type: list[list[int]]
    for stride, size in partitions:
        pattern.append([stride * words, size])
    pattern.append([length * words, rows])
    pattern.append([inner * words, count])
    pattern.append([words, width])
    if words > 1:
        pattern.append([1, words])
    return pattern, (start + tile * step + first * inner) * words


def lanes(group: tuple[Any, ...]) -> int:
    """The number of partitions of a tile."""
    total = 1
    for _, size in group[3]:
        total = total * size
    return total


def scan(
    dst: nl.NkiTensor,
    data0: nl.NkiTensor,
    data1: nl.NkiTensor,
    initial: nl.NkiTensor,
    op0: str,
    op1: str,
) -> None:
    """dst[i] = (data0[i] <op0> dst[i - 1]) <op1> data1[i] along dimension 2 of 4, one instruction a
    row; `initial` stands before the first."""
    for r in range(dst.shape[1]):
        for w in range(dst.shape[3]):
            nisa.tensor_tensor_scan(
                dst=dst[:, r, :, w],
                data0=data0[:, r, :, w],
                data1=data1[:, r, :, w],
                initial=initial[:, r, w : w + 1],
                op0=op0,
                op1=op1,
            )
