"""Index expressions of NKI 0.1: sums of `nl.arange`s with factors and an offset, as text.

`i * 128 + nl.arange(128)[:, None]` is one term (an arange of 128 on axis 0, factor 1) and the
offset `i * 128`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

_SIMPLE = (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript)
_COMPARED: dict[type[ast.AST], str] = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip


class NotAffineError(Exception):
    """An index expression that is no sum of aranges."""


@dataclass(frozen=True)
class Iota:
    """An `nl.arange` without its start: how many numbers, its axis of how many. Two of one size on
    one axis are one index, wherever they are written.
    """

    size: str
    axis: int
    rank: int


@dataclass(frozen=True)
class Affine:
    """Factor by arange, and the offset; all are source texts."""

    terms: tuple[tuple[Iota, str], ...]
    offset: str

    @property
    def rank(self) -> int:
        """Dimensions of what it indexes."""
        return max((iota.rank for iota, _ in self.terms), default=0)


@dataclass(frozen=True)
class Comparison:
    """`left op right`; `op` is an operator of nki.language."""

    left: Affine
    op: str
    right: Affine


def operand(text: str) -> str:
    """`text` as an operand of any operator."""
    return text if isinstance(_parsed(text), _SIMPLE) else f"({text})"


def _parsed(text: str) -> ast.expr:
    return ast.parse(f"({text})", mode="eval").body


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None


def added(left: str, right: str) -> str:
    """left + right."""
    a, b = _number(left), _number(right)
    if a is not None and b is not None:
        return str(a + b)
    if a == 0:
        return right
    if b == 0:
        return left
    if right.startswith("-") and isinstance(_parsed(right), ast.UnaryOp):
        return f"{left} - {right[1:]}"
    return f"{left} + {right}"


def subtracted(left: str, right: str) -> str:
    """left - right."""
    a, b = _number(left), _number(right)
    if a is not None and b is not None:
        return str(a - b)
    if b == 0:
        return left
    if left == right:
        return "0"
    if a == 0:
        return f"-{operand(right)}"
    tree = _parsed(right)
    is_product = isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult | ast.FloorDiv)
    return f"{left} - {right if is_product else operand(right)}"


def multiplied(left: str, right: str) -> str:
    """left * right."""
    a, b = _number(left), _number(right)
    if a is not None and b is not None:
        return str(a * b)
    if a == 0 or b == 0:
        return "0"
    if a == 1:
        return right
    if b == 1:
        return left
    return f"{operand(left)} * {operand(right)}"


def plain(text: str) -> Affine:
    """An expression without aranges."""
    return Affine((), text)


def sum_of(left: Affine, right: Affine) -> Affine:
    """left + right."""
    terms = dict(left.terms)
    for iota, factor in right.terms:
        terms[iota] = added(terms[iota], factor) if iota in terms else factor
    return Affine(tuple(terms.items()), added(left.offset, right.offset))


def scaled(one: Affine, factor: str) -> Affine:
    """one * factor."""
    terms = tuple((iota, multiplied(own, factor)) for iota, own in one.terms)
    return Affine(terms, multiplied(one.offset, factor))


def difference(left: Affine, right: Affine) -> Affine:
    """left - right."""
    terms = dict(left.terms)
    for iota, factor in right.terms:
        terms[iota] = subtracted(terms.get(iota, "0"), factor)
    return Affine(tuple(terms.items()), subtracted(left.offset, right.offset))


# Names of index expressions, of grids and of masks.
State = tuple[dict[str, Affine], dict[str, tuple[Affine, ...]], dict[str, tuple[Comparison, ...]]]


_Value = TypeVar("_Value")


class Indices:
    """What names stand for index expressions, and how to read new ones."""

    def __init__(
        self, render: Callable[[ast.expr], str], language: Callable[[ast.expr], str]
    ) -> None:
        self._render = render
        # The name in nki.language that an expression stands for, or "".
        self._language = language
        self.names: dict[str, Affine] = {}
        self.grids: dict[str, tuple[Affine, ...]] = {}
        # Masks by name: all of their comparisons hold.
        self.masks: dict[str, tuple[Comparison, ...]] = {}

    def state(self) -> State:
        """What the names stand for here."""
        return dict(self.names), dict(self.grids), dict(self.masks)

    def restore(self, state: State) -> None:
        """What they stood for there."""
        names, grids, masks = state
        self.names, self.grids, self.masks = dict(names), dict(grids), dict(masks)

    def join(self, one: State, other: State) -> None:
        """After an `if`: a name that its branches left with two meanings has none."""
        self.restore(
            (_agreed(one[0], other[0]), _agreed(one[1], other[1]), _agreed(one[2], other[2]))
        )

    @property
    def _known(self) -> set[str]:
        return {*self.names, *self.grids, *self.masks}

    def has_index(self, node: ast.AST) -> bool:
        """True where an arange or the name of one is in `node`."""
        return any(
            (isinstance(one, ast.Name) and one.id in self._known)
            or (isinstance(one, ast.expr) and self._language(one) in ("arange", "mgrid"))
            for one in ast.walk(node)
        )

    def grid(self, node: ast.expr) -> tuple[Affine, ...] | None:
        """The index expressions of `nl.mgrid[0:128, 0:512]`, one an axis."""
        if not (isinstance(node, ast.Subscript) and self._language(node.value) == "mgrid"):
            return None
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        found = []
        for axis, part in enumerate(parts):
            if not isinstance(part, ast.Slice) or part.upper is None or part.step is not None:
                raise NotAffineError("nl.mgrid of something else than slices")
            start = self._render(part.lower) if part.lower is not None else "0"
            found.append(_arange(start, self._render(part.upper), axis, len(parts)))
        return tuple(found)

    def slices_of(self, node: ast.expr) -> ast.expr:
        """The slices of an index `nl.mgrid[0:128, 0:512]`; another index as it is."""
        if isinstance(node, ast.Subscript) and self._language(node.value) == "mgrid":
            return node.slice
        return node

    def comparisons(self, node: ast.expr) -> tuple[Comparison, ...]:
        """The comparisons that a mask or a predicate joins. Raises NotAffineError."""
        if isinstance(node, ast.Name) and node.id in self.masks:
            return self.masks[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return self.comparisons(node.left) + self.comparisons(node.right)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return tuple(one for part in node.values for one in self.comparisons(part))
        if not isinstance(node, ast.Compare) or any(type(op) not in _COMPARED for op in node.ops):
            raise NotAffineError("a mask that is no comparison")
        values = [self.read(one) for one in (node.left, *node.comparators)]
        operators = [_COMPARED[type(op)] for op in node.ops]
        return tuple(map(Comparison, values, operators, values[1:]))

    def read(self, node: ast.expr) -> Affine:
        """An expression as sum. Raises NotAffineError."""
        if not self.has_index(node):
            return plain(self._render(node))
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.names[node.id]
        if isinstance(node, ast.Call) and self._language(node.func) == "arange":
            return self._arange(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            axes: Mapping[str, int] = {"p": 0, "x": 1, "y": 2, "z": 3}
            grid = self.grids.get(node.value.id, ())
            axis = axes.get(node.attr, len(grid))
            if axis < len(grid):
                return grid[axis]
        if isinstance(node, ast.Subscript):
            return self._placed(node)
        if isinstance(node, ast.BinOp):
            return self._combined(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return scaled(self.read(node.operand), "-1")
        raise NotAffineError(f"`{self._render(node)}` is no sum of aranges")

    def _arange(self, node: ast.Call) -> Affine:
        given = [self._render(one) for one in node.args]
        if len(given) not in (1, 2) or node.keywords:
            raise NotAffineError("an arange with a step")
        start, stop = given if len(given) == 2 else ("0", given[0])
        return _arange(start, stop, 0, 1)

    def _placed(self, node: ast.Subscript) -> Affine:
        """`nl.arange(128)[:, None]`."""
        inner = self.read(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        axes = [i for i, part in enumerate(parts) if isinstance(part, ast.Slice)]
        others = [part for part in parts if not isinstance(part, ast.Slice)]
        is_new_axis = all(isinstance(o, ast.Constant) and o.value is None for o in others)
        if len(axes) != 1 or not is_new_axis or inner.rank != 1:
            raise NotAffineError(f"`{self._render(node)}` is no arange on one axis")
        terms = tuple(
            (replace(iota, axis=axes[0], rank=len(parts)), factor) for iota, factor in inner.terms
        )
        return Affine(terms, inner.offset)

    def _combined(self, node: ast.BinOp) -> Affine:
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Add):
            return sum_of(left, right)
        if isinstance(node.op, ast.Sub):
            return difference(left, right)
        if isinstance(node.op, ast.Mult) and not right.terms:
            return scaled(left, right.offset)
        if isinstance(node.op, ast.Mult) and not left.terms:
            return scaled(right, left.offset)
        raise NotAffineError(f"`{self._render(node)}` is no sum of aranges")


def _arange(start: str, stop: str, axis: int, rank: int) -> Affine:
    return Affine(((Iota(subtracted(stop, start), axis, rank), "1"),), start)


def _agreed(one: dict[str, _Value], other: dict[str, _Value]) -> dict[str, _Value]:
    """What two branches do not bind differently."""
    both = {**one, **other}
    return {name: value for name, value in both.items() if one.get(name, value) == value}
