"""Subscripts and masks of NKI 0.1 as slices and access patterns of NKI 0.6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trnx.migration.affine import (
    Affine,
    Comparison,
    Iota,
    NotAffineError,
    added,
    difference,
    multiplied,
    operand,
    subtracted,
)

# An arange -> how many of its numbers a mask lets through.
Bounds = Mapping[Iota, str]
_SIGNS = {
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==",
    "not_equal": "!=",
}  # fmt: skip


def condition_of(comparison: Comparison) -> str:
    """What a comparison without an arange says: all or nothing; "" where it has one."""
    if difference(comparison.left, comparison.right).terms:
        return ""
    return f"{comparison.left.offset} {_SIGNS[comparison.op]} {comparison.right.offset}"


def bounds_of(comparisons: Sequence[Comparison]) -> dict[Iota, str]:
    """What `mask=(i + ix < rows) & (iy < cols)` says of each arange. Raises NotAffineError."""
    found: dict[Iota, str] = {}
    for one in comparisons:
        left, right = one.left, one.right
        if one.op in ("greater", "greater_equal"):
            left, right = right, left
        elif one.op not in ("less", "less_equal"):
            raise NotAffineError("a mask that is no upper bound of one arange")
        terms = difference(left, right).terms
        if len(terms) != 1 or terms[0][1] != "1":
            raise NotAffineError("a mask that is no upper bound of one arange")
        limit = subtracted(right.offset, left.offset)
        if one.op.endswith("equal"):
            limit = added(limit, "1")
        iota = terms[0][0]
        found[iota] = f"min({found[iota]}, {limit})" if iota in found else limit
    return found


def count_of(iota: Iota, bounds: Bounds) -> str:
    """How many numbers of an arange are used."""
    return f"min({iota.size}, {bounds[iota]})" if iota in bounds else iota.size


def sliced(base: str, parts: Sequence[Affine | str], bounds: Bounds) -> str | None:
    """`base[0:128, i : i + 512]`, or None where slices do not say it. A part that is text stands
    for itself.
    """
    axes, texts = [], []
    for part in parts:
        if isinstance(part, str) or not part.terms:
            texts.append(part if isinstance(part, str) else part.offset)
            continue
        if len(part.terms) != 1 or part.terms[0][1] == "0":
            return None
        iota, factor = part.terms[0]
        axes.append(iota.axis)
        piece = _slice(part.offset, factor, count_of(iota, bounds))
        if piece is None:
            return None
        texts.append(piece)
    if axes != sorted(set(axes)):
        return None
    return f"{base}[{', '.join(texts)}]"


def _slice(start: str, factor: str, count: str) -> str | None:
    if factor == "1":
        return f"{start} : {added(start, count)}" if start != "0" else f"0:{count}"
    if factor.startswith("-"):
        return None
    last = multiplied(factor, subtracted(count, "1"))
    return f"{start} : {added(added(start, last), '1')} : {factor}"


def pattern(base: str, parts: Sequence[Affine], bounds: Bounds, order: Sequence[int] | None) -> str:
    """`base.ap(pattern=[[stride, count], ...], offset=...)` over the whole tensor `base`. `order`
    gives another order to the axes. Raises NotAffineError.
    """
    strides = [_stride(base, dim, len(parts)) for dim in range(len(parts))]
    rank = max(part.rank for part in parts)
    by_axis: dict[int, tuple[str, str]] = {}
    offset = "0"
    for part, stride in zip(parts, strides, strict=True):
        offset = added(offset, multiplied(part.offset, stride))
        for iota, factor in part.terms:
            step = multiplied(factor, stride)
            before = by_axis.get(iota.axis)
            total = step if before is None else added(before[0], step)
            if total.startswith("-"):
                raise NotAffineError("an access pattern has no negative strides: reverse the loop")
            by_axis[iota.axis] = (total, count_of(iota, bounds))
    axes = [axis for axis in (order or range(rank)) if axis in by_axis]
    pairs = ", ".join(f"[{by_axis[axis][0]}, {by_axis[axis][1]}]" for axis in axes)
    return f"{base}.ap(pattern=[{pairs}]{'' if offset == '0' else f', offset={offset}'})"


def _stride(base: str, dim: int, rank: int) -> str:
    text = "1"
    for later in range(dim + 1, rank):
        text = multiplied(text, f"{base}.shape[{later}]")
    return text


def bounded_tile(tile: str, bounds: Bounds) -> str:
    """A whole tile, cut to what a mask lets through."""
    if not bounds:
        return tile
    by_axis = {iota.axis: count_of(iota, bounds) for iota in bounds}
    parts = [f"0:{by_axis[a]}" if a in by_axis else ":" for a in range(max(by_axis) + 1)]
    return f"{operand(tile)}[{', '.join(parts)}]"


def predicate(comparisons: Sequence[Comparison]) -> tuple[str, str, str, str]:
    """`pattern, offset, channel_multiplier, cmp_op` of `nisa.affine_select` for `ix >= iy`."""
    if len(comparisons) != 1:
        raise NotAffineError("a predicate of several comparisons")
    (one,) = comparisons
    return (*ramp(difference(one.left, one.right)), one.op)


def ramp(value: Affine) -> tuple[str, str, str]:
    """`pattern, offset, channel_multiplier` of an index expression as values, by partition."""
    multiplier = "0"
    steps = []
    for iota, factor in sorted(value.terms, key=lambda term: term[0].axis):
        if iota.axis == 0:
            multiplier = factor
        else:
            steps.append(f"[{factor}, {iota.size}]")
    return f"[{', '.join(steps) or '[0, 1]'}]", value.offset, multiplier
