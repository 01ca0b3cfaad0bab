"""Products with ones over tiles whose reduced axes and those that stay take turns.

A tile `[kept, reduced, kept]` or `[reduced, kept, reduced]` is no matrix of rows and columns, but
TensorE takes any view of three free axes: an element of each other reduced axis at a time, of the
longest one as many as fill a bank beside each other, and all that stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.emit_calls import indent


@dataclass(frozen=True)
class Group:
    """Neighbouring free axes of a tile, all reduced or all kept: how many elements they have in
    generated source, and the most that they have."""

    is_reduced: bool
    count: str
    most: int


def longest(groups: Sequence[Group]) -> int:
    """The index of the reduced group of which several elements lie side by side in a bank."""
    reduced = [i for i, group in enumerate(groups) if group.is_reduced]
    return max(reduced, key=lambda i: groups[i].most)


def interleaved_products(
    tile: str,
    bank: str,
    full: int,
    columns: int,
    run: int,
    groups: Sequence[Group],
    product: Sequence[str],
) -> list[str]:
    """The loops around `product`, which adds `moving` to the columns of `goal`: views of a `tile`
    whose free axes are `groups`, and of a `bank` with `columns` elements of the longest reduced
    group side by side for each of those that stay; `run` of them are added at a time, `many` in the
    last turn."""
    chosen = longest(groups)
    places, taken = dict[int, str](), list[int]()
    for i, group in enumerate(groups):
        if i == chosen:
            places[i] = "first : first + many"
        else:
            places[i] = f"at{i}" if group.is_reduced else ":"
        if not group.is_reduced or i == chosen:
            taken.append(i)
    order = [0, 1 + taken.index(chosen), *(1 + taken.index(i) for i in taken if i != chosen)]
    turned = "" if order == sorted(order) else f".permute(({', '.join(map(str, order))}))"
    counts = [group.count for group in groups if not group.is_reduced]
    kept, last = ", ".join(counts), len(counts) + 1
    stays = ", ".join(map(str, range(1, last)))
    window = ", ".join([":", *(places[i] for i in range(len(groups)))])
    count = groups[chosen].count
    lines = [
        f"for first in range(0, {count}, {run}):",
        f"    many = min({run}, {count} - first)",
        f"    moving = flat[{window}]{turned}",
        *indent(list(product)),
    ]
    for i, group in reversed(list(enumerate(groups))):
        if group.is_reduced and i != chosen:
            lines = [f"for at{i} in range({group.count}):", *indent(lines)]
    return [
        f"flat = {tile}.reshape((p, {', '.join(group.count for group in groups)}))",
        f"goal = {bank}.reshape(({full}, {kept}, {columns})).permute((0, {last}, {stays}))",
        *lines,
    ]
