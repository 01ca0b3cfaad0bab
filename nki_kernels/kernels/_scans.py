"""Scans along one dimension of a contiguous tensor: how it is cut, and the running sum of a tile.

A tensor is `[outer, length, inner]`, scanned along `length`. A tile is `[partitions, rows, length,
width]`: every partition has `rows` whole rows of short ones, or `width` neighbours of the inner
dimension, so that DMA moves more than single elements. One `tensor_tensor_scan` takes one row
(SDK nki.isa.tensor_tensor_scan: the state is float32). Long rows are chained over tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject

_PARTITIONS = 128
_ELEMENTS = 1024  # of one partition of a tile
_WIDTHS = (1, 2, 4, 8, 16, 32, 64)
# Of the choice of a width: a descriptor and a scan by their fixed costs, in ns.
_DESCRIPTOR, _SCAN = 0.45, 60.0


class Group(NamedTuple):
    """Tiles of one form: `count` of them, `step` elements apart from `start` on. `partitions` are
    the strides and counts of what lies on the partitions."""

    start: int
    count: int
    step: int
    partitions: tuple[tuple[int, int], ...]
    rows: int
    width: int


class Cut(NamedTuple):
    """How a tensor is cut: `block` of its `length` elements in a tile, `inner` apart."""

    length: int
    inner: int
    block: int
    groups: tuple[Group, ...]


def cut(shape: tuple[int, ...], dim: int) -> Cut:
    """The tiles of a scan of a tensor of `shape` along `dim`."""
    outer = inner = 1
    for size in shape[:dim]:
        outer *= size
    for size in shape[dim + 1 :]:
        inner *= size
    length = shape[dim]
    if inner == 1:
        return _cut_rows(outer, length)
    width = min((w for w in _WIDTHS if w <= inner), key=lambda w: _seconds(outer, length, inner, w))
    block = min(length, max(1, _ELEMENTS // width))
    groups = _column_groups(outer, length, inner, width)
    return Cut(length, inner, block, groups)


def _seconds(outer: int, length: int, inner: int, width: int) -> float:
    """About the ns of the scans and of DMA's descriptors."""
    block = max(1, min(length, _ELEMENTS // width))
    tiles = -(-outer * -(-inner // width) // _PARTITIONS) * -(-length // block)
    return tiles * width * (_SCAN + block) + outer * length * inner / width * _DESCRIPTOR


def _cut_rows(rows: int, length: int) -> Cut:
    fold = max(1, min(_ELEMENTS // length, -(-rows // _PARTITIONS)))
    each = fold * _PARTITIONS
    groups = []
    whole, rest = rows // each, rows % each
    if whole:
        groups.append(Group(0, whole, each * length, ((fold * length, _PARTITIONS),), fold, 1))
    start = whole * each
    for count, run in ((rest // fold, fold), (1, rest % fold)):
        if count and run:
            groups.append(Group(start * length, 1, 0, ((run * length, count),), run, 1))
            start += count * run
    return Cut(length, 1, min(length, _ELEMENTS), tuple(groups))


def _column_groups(outer: int, length: int, inner: int, width: int) -> tuple[Group, ...]:
    groups = []
    plane = length * inner
    for first, here in ((0, width), (inner - inner % width, inner % width)):
        blocks = inner // width if first == 0 else 1
        if not here or not blocks:
            continue
        across = max(1, _PARTITIONS // blocks) if blocks <= _PARTITIONS else 1
        for start in range(0, outer, across):
            planes = min(across, outer - start)
            for block in range(0, blocks, _PARTITIONS):
                count = min(_PARTITIONS, blocks - block)
                partitions = ((plane, planes), (width, count))
                place = start * plane + first + block * width
                groups.append(Group(place, 1, 0, partitions, 1, here))
    return tuple(groups)


def reject_scan(b: Bindings) -> Reject | None:
    """A Reject where `x` has no dimension or no elements."""
    if b.x.numel == 0 or not b.x.shape:
        return Reject(f"x{b.x.shape} has no dimension to go along, or no elements")
    return None


def constants_of(b: Bindings) -> tuple[tuple[int, ...], tuple[Group, ...]]:
    """What kernels are told of the scan of `x` along `dim`: sizes and groups."""
    pieces = cut(b.x.shape, b.dim % b.x.ndim)
    sizes = (pieces.length, pieces.inner, pieces.block)
    return sizes, pieces.groups


def places(
    group: tuple[int, ...], tile: int, first: int, count: int, sizes: tuple[int, ...], words: int
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


def lanes(group: tuple[int, ...]) -> int:
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
