"""Products with ones over tiles whose reduced axes lie between those that stay.

A tile `[outer, reduced, inner]` is no matrix of rows and columns, but TensorE takes any view of
three free axes: of the reduced one as many elements as fill a bank beside each other, and all that
stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnx.nki_kernels.generator.emit_calls import indent


def interleaved_products(
    tile: str,
    bank: str,
    rows: int,
    columns: str,
    run: int,
    counts: Sequence[str],
    product: Sequence[str],
) -> list[str]:
    """The loop around `product`, which adds `moving` to the columns of `goal`: views of a `tile` of
    so many elements along its three axes, and of a `bank` with `columns` elements of the reduced
    one side by side for each of those that stay; `run` of them are added at a time, `many` in the
    last turn."""
    outer, count, inner = counts
    return [
        f"flat = {tile}.reshape((p, {outer}, {count}, {inner}))",
        f"goal = {bank}",
        f"goal = goal.reshape(({rows}, goal.shape[1], {outer}, {inner}, {columns}))",
        "goal = goal.permute((0, 1, 4, 2, 3))",
        f"for first in range(0, {count}, {run}):",
        f"    many = min({run}, {count} - first)",
        "    moving = flat[:, :, first : first + many].permute((0, 2, 1, 3))",
        *indent(list(product)),
    ]
