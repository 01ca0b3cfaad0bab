"""The shape of the whole tile that a load with a mask had: sizes of aranges, and of slices."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from trnx.migration.affine import Affine, added, operand, subtracted


def loaded_shape(
    base: str,
    parts: Sequence[ast.expr],
    read: Sequence[Affine | str],
    is_vector: bool,
    render: Callable[[ast.expr], str],
) -> str | None:
    """The sizes of `base[parts]`, joined by commas, where masks let all through. `read` has the
    parts as index expressions, or texts. None where they are not known: an ellipsis, slices in
    front of aranges.
    """
    sizes: dict[int, str] = {0: "1", 1: "1"} if is_vector else {}
    sliced: list[str] = []
    for dim, (part, index) in enumerate(zip(parts, read, strict=True)):
        if isinstance(part, ast.Slice):
            size = _of_slice(f"{operand(base)}.shape[{dim}]", part, render)
            if size is None:
                return None
            sliced.append(size)
        elif isinstance(index, str) or (index.terms and sliced):
            return None
        else:
            sizes.update({iota.axis: iota.size for iota, _ in index.terms})
    found = [*(sizes[axis] for axis in sorted(sizes)), *sliced]
    return ", ".join(found) + "," * (len(found) == 1)


def _of_slice(whole: str, part: ast.Slice, render: Callable[[ast.expr], str]) -> str | None:
    start = "0" if part.lower is None else render(part.lower)
    stop = whole if part.upper is None else render(part.upper)
    step = "1" if part.step is None else render(part.step)
    if start.startswith("-") or stop.startswith("-") or not step.isdigit():
        return None
    size = subtracted(stop, start)
    return size if step == "1" else f"({added(size, str(int(step) - 1))}) // {step}"
