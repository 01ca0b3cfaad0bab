"""How a tensor is divided into lines along one dimension, which kernels put on partitions."""

from __future__ import annotations

import math

from trnx.simulator.errors import Reject

MOST_GROUPS = 256

# (count, stride) of groups of lines, of the lines of a group, and of a line's elements.
Lines = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def lines_of(shape: tuple[int, ...], dim: int) -> Lines:
    """The lines along `dim` of a contiguous tensor of `shape`."""
    size, inner = shape[dim], math.prod(shape[dim + 1 :])
    outer = math.prod(shape[:dim])
    if inner == 1:
        return (1, 0), (outer, size), (size, 1)
    return (outer, size * inner), (inner, 1), (size, inner)


def reject_lines(lines: Lines, longest: int, by: str) -> Reject | None:
    """A Reject for lines of more than `longest` elements, which `by` takes, or for many groups."""
    (groups, _), _, (size, _) = lines
    if size > longest:
        return Reject(f"lines of {size} elements; {by} takes {longest}")
    if groups > MOST_GROUPS:
        return Reject(f"{groups} groups of lines; the kernel takes {MOST_GROUPS}")
    return None
