"""Scans along one dimension of a contiguous tensor: how it is cut into tiles.

A tensor is `[outer, length, inner]`, scanned along `length`. A tile is `[partitions, rows, length,
width]`: every partition has `rows` whole rows of short ones, or `width` neighbours of the inner
dimension, so that DMA moves more than single elements. One `tensor_tensor_scan` takes one row
(SDK nki.isa.tensor_tensor_scan: the state is float32). Long rows are chained over tiles.
"""

from __future__ import annotations

from typing import NamedTuple

from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_PARTITIONS = 128
_ELEMENTS = 1024  # of one partition of a tile
_WIDTHS = (1, 2, 4, 8, 16, 32, 64)
# Of the choice of a width: a descriptor and a scan by their fixed costs, in ns.
_DESCRIPTOR, _SCAN = 0.45, 60.0


class Group(NamedTuple):
    """Tiles of one form: `tiles` of them, `step` elements apart from `start` on. `partitions` are
    the strides and counts of what lies on the partitions."""

    start: int
    tiles: int
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


def cut(shape: tuple[int, ...], dim: int, cores: int = 1) -> Cut:
    """The tiles of a scan of a tensor of `shape` along `dim`, which `cores` share."""
    outer = inner = 1
    for size in shape[:dim]:
        outer *= size
    for size in shape[dim + 1 :]:
        inner *= size
    length = shape[dim]
    if inner == 1:
        return _cut_rows(outer, length, cores)
    widths = (width for width in _WIDTHS if width <= inner)
    width = min(widths, key=lambda width: _nanoseconds(outer, length, inner, width, cores))
    block = min(length, max(1, _ELEMENTS // width))
    groups = _column_groups((outer, length, inner), width, cores)
    return Cut(length, inner, block, groups)


def _nanoseconds(outer: int, length: int, inner: int, width: int, cores: int) -> float:
    """About the ns of the scans and of DMA's descriptors on the core that has most tiles."""
    block = max(1, min(length, _ELEMENTS // width))
    tiles = -(-outer * -(-inner // width) // _PARTITIONS)
    most = -(-tiles // cores)  # full ones: half of the partitions take as long as all
    scans = most * -(-length // block) * width * (_SCAN + block)
    return scans + outer * length * inner / width * _DESCRIPTOR * most / tiles


def _lanes_of_tile(lanes: int, cores: int) -> int:
    """So few that each core has a tile."""
    return min(_PARTITIONS, -(-lanes // cores))


def _cut_rows(rows: int, length: int, cores: int) -> Cut:
    fold = max(1, min(_ELEMENTS // length, -(-rows // (cores * _PARTITIONS))))
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


def _column_groups(sizes: tuple[int, int, int], width: int, cores: int) -> tuple[Group, ...]:
    outer, length, inner = sizes
    groups = []
    plane = length * inner
    for first, here in ((0, width), (inner - inner % width, inner % width)):
        blocks = inner // width if first == 0 else 1
        if not here or not blocks:
            continue
        most = _lanes_of_tile(outer * blocks, cores)
        across = max(1, most // blocks)
        for start in range(0, outer, across):
            planes = min(across, outer - start)
            for block in range(0, blocks, most):
                count = min(most, blocks - block)
                partitions = ((plane, planes), (width, count))
                place = start * plane + first + block * width
                groups.append(Group(place, 1, 0, partitions, 1, here))
    return tuple(groups)


def reject_scan(b: Bindings) -> Reject | None:
    """A Reject where `x` has no dimension or no elements."""
    if b.x.numel == 0 or not b.x.shape:
        return Reject(f"x{b.x.shape} has no dimension to go along, or no elements")
    return None


def constants_of(b: Bindings, hw: Hardware) -> tuple[tuple[int, ...], tuple[Group, ...]]:
    """What kernels are told of the scan of `x` along `dim`: sizes and groups."""
    pieces = cut(b.x.shape, b.dim % b.x.ndim, hw.cores)
    sizes = (pieces.length, pieces.inner, pieces.block)
    return sizes, pieces.groups
