"""A dimension of a lowered region as two: what lies `count` times apart, and what lies within.

The outer one may lie on partitions that another dimension leaves empty, and the inner one keeps
its long runs in memory. Where the parts would not be equal, neighbours overlap by some elements,
which are computed and stored twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from trnx.nki_kernels.generator.geometry import PARTITIONS, Strides
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.lower import Lowered, reachable

# Elements of an overlapping part at the least: neighbours share fewer than there are parts; parts
# beside a dimension that fills the partitions of some tiles at the most; what each of these parts
# must fill, because they shorten runs.
_LEAST_PART, _MOST_PARTS, _SHORTER = 8, 8, 0.01
# Splitting pays beside such a dimension where it fills so many times as many partitions.
_FULLER = 1.1
# Equal parts that fill so much of what parts that overlap fill are as good.
_ENOUGH = 0.75

Accesses = tuple[Mapping[Value, Strides], tuple[Strides, ...]]


def equal_parts(size: int, count: int) -> tuple[int, int]:
    """How many elements `count` parts of a dimension have, all as many, and how far apart they
    begin; the last one ends with the dimension."""
    step = size // count
    return size - step * (count - 1), step


def ways_to_split(sizes: Mapping[int, int], filled: float) -> list[tuple[int, int, int]]:
    """The ways to put a part of one of the dimensions that stay beside another one on the
    partitions, as (the other one, it, parts): those that fill the most partitions first. Beside one
    that fills those of some tiles, so that all tiles have `filled` that share, they must fill
    more."""
    found = [
        (filled_by(sizes[partition], sizes[d], count), partition, d, count)
        for partition in sizes
        for d in sizes
        if d != partition
        for count in _counts(sizes[partition], sizes[d])
    ]
    return [
        (partition, d, count)
        for share, partition, d, count in sorted(found, reverse=True)
        if sizes[partition] <= PARTITIONS // 2 or share > filled * _FULLER
    ]


def ways_to_split_rows(
    kept: Mapping[int, int], reduced: Mapping[int, int], *, overlap: bool
) -> list[tuple[int, int, int]]:
    """The ways to put parts of a reduced dimension beside one that stays, as the same: equal ones,
    or such that `overlap`."""
    return [
        (partition, d, count)
        for partition, size in kept.items()
        if size <= PARTITIONS // 2
        for d, other in reduced.items()
        for count in _counts(size, other)
        if overlap or other % count == 0
    ]


def run_beside(sizes: Mapping[int, int], strides: Strides, way: tuple[int, int, int]) -> int:
    """Elements of a tensor that lie side by side with a dimension and a part of another one, of a
    `way`, on the partitions: as many as a tile can have."""
    partition, d, count = way
    inner = {**sizes, partition: 1, d: equal_parts(sizes[d], count)[0]}
    run = 1
    for label in sorted(strides, key=lambda label: strides[label]):
        if strides[label] != run:
            break
        run *= inner[label]
        if inner[label] < sizes[label]:
            break
    return run


def filled_by(size: int, other: int, count: int) -> float:
    """The share of the partitions of all tiles that a dimension of `size` fills with each of
    `count` parts of the `other` one, without what is computed twice where parts overlap."""
    inner, _ = equal_parts(other, count)
    tiles = math.ceil(size / min(size, PARTITIONS // count))
    return size * other / (tiles * PARTITIONS * inner)


def _counts(size: int, other: int) -> list[int]:
    """Into how many parts the `other` dimension is split beside one of `size`: equal ones, and
    where they leave many partitions empty those that overlap a little; beside a long one those that
    leave the fewest empty in its tiles."""
    if size > PARTITIONS // 2:
        most = min(_MOST_PARTS, other // _LEAST_PART)
        counts = sorted(range(2, most + 1), key=lambda n: _SHORTER * n - filled_by(size, other, n))
        return counts[:1]
    most = PARTITIONS // size
    even = _largest_divisor(other, most)
    found = [even] if 1 < even < other else []
    if even < _ENOUGH * most and most < other // _LEAST_PART:
        found.append(most)
    return found


def _largest_divisor(size: int, most: int) -> int:
    """The largest divisor of `size` that is at most `most`, or 1."""
    return next((n for n in range(min(size, most), 1, -1) if size % n == 0), 1)


def split_dimension(
    lowered: Lowered, strides: Accesses, label: int, step: int
) -> tuple[Lowered, Accesses, int]:
    """The region and the strides of its loads and results with `label` for the elements of that
    dimension that stay together, and the label, which is new, of the outer one, whose elements lie
    a `step` of the others apart."""
    values = reachable(tuple(o.value for o in lowered.outputs))
    outer = 1 + max(max(lowered.order), *(d for v in values for d in v.axes))
    new: dict[Value, Value] = {}
    for value in values:  # operands first
        args = tuple(new[a] if isinstance(a, Value) else a for a in value.args)
        axes = value.axes | {outer} if label in value.axes else value.axes
        new[value] = dataclasses.replace(value, args=args, axes=axes)
    outputs = tuple(dataclasses.replace(o, value=new[o.value]) for o in lowered.outputs)

    def cut(access: Strides) -> Strides:
        return {**access, outer: access[label] * step} if label in access else access

    loads = {new[value]: cut(access) for value, access in strides[0].items()}
    results = tuple(map(cut, strides[1]))
    reduced = lowered.reduced | {outer} if label in lowered.reduced else lowered.reduced
    return dataclasses.replace(lowered, outputs=outputs, reduced=reduced), (loads, results), outer
