"""Where the padding of a padded tensor lies, and what it holds.

The invariant of every padded value: the elements at places below the exact sizes ("good" elements)
are those of the exact value. A dimension is made of sizes, outermost first: `[B, s, 64]` viewed as
`[B * s, 64]` has the axes `(B, s)` and `(64,)`. Padding of an axis are the places at which one of
its symbolic sizes is exceeded. A size may have parts, one behind the other, each with its padding:
`cat` of a cache `[s, 64]` and of new rows `[t, 64]` has the parts `s` and `t`, so that its good
elements are not the first ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from trnx.fx_passes.nodes import has_tensor, op_name
from trnx.fx_passes.symbolic import depends_on_data, has_symbolic_layout, is_symbolic, symbols_of

Fill = bool | int | float


class RefusedError(Exception):
    """No rule proves that padding leaves the results as they are; the message says why.

    The analysis catches it; users read the message in the report.
    """


@dataclass(frozen=True)
class Size:
    """A symbolic size: a sympy expression, and whether a symbol in it is padded. Its `parts` are
    not empty where each of them has its padding behind it."""

    form: Any
    is_padded: bool
    parts: tuple[int | Size, ...] = ()


@dataclass(frozen=True)
class Axis:
    """One dimension. `sizes` are numbers and symbolic sizes, without 1.

    `fill` is what all elements hold that are in the padding of this axis and good along all others;
    None where that is not known, or where there is no padding.
    """

    sizes: tuple[int | Size, ...]
    fill: Fill | None = None

    @property
    def is_padded(self) -> bool:
        """True where a size is padded."""
        return any(isinstance(size, Size) and size.is_padded for size in self.sizes)

    @property
    def is_one_size(self) -> bool:
        """True where the good elements are the first ones."""
        return len(self.sizes) == 1 and not self.has_parts

    @property
    def has_parts(self) -> bool:
        """True where padding lies between parts of a size."""
        return any(isinstance(size, Size) and size.parts for size in self.sizes)


Layout = tuple[Axis, ...]


class Operands(Protocol):
    """What a rule asks of the analysis."""

    @property
    def padded(self) -> PaddedSymbols:
        """The symbols that are padded."""

    def layout(self, node: Any) -> Layout:
        """The layout of an operand. Raises RefusedError where it has none."""

    def need_zeros(self, node: fx.Node, dim: int) -> None:
        """The padding along `dim` has to hold zeros. Raises RefusedError where it cannot."""

    def need_valid(self, node: fx.Node) -> None:
        """All padding has to hold a copy of good elements, or zeros."""

    def need_places(self, node: fx.Node, size: Size, dim: int) -> None:
        """The index has to hold places of the exact size, along `dim` of what is looked up, and its
        padding valid ones; eager's error is raised for others. Raises RefusedError where nobody can
        look at it before."""

    def need_fill(self, node: fx.Node, dim: int, fill: Fill) -> None:
        """The padding along `dim` has to hold `fill`. Raises RefusedError where it cannot."""

    def need_like(self, node: fx.Node, dim: int, axis: Axis) -> None:
        """The padding along `dim` has to lie where that of `axis` does. Raises RefusedError."""


def _form(size: Any) -> Any:
    """A size as a number, or as the expression of a symbolic one."""
    form = size.node.expr if isinstance(size, torch.SymInt) else size
    return int(form) if isinstance(form, (int, sympy.Integer)) else form


@dataclass(frozen=True)
class PaddedSymbols:
    """The symbols that are padded, and `ties`: symbols that are as expressions of others."""

    symbols: frozenset[Any]
    ties: Mapping[Any, Any] = field(default_factory=dict)

    def form(self, size: Any) -> Any:
        """A size as a number or an expression of symbols that are not tied."""
        form = _form(size)
        return form if isinstance(form, int) else _form(form.xreplace(self.ties))

    def size(self, size: Any) -> int | Size:
        """A size of a tensor."""
        form = self.form(size)
        return form if isinstance(form, int) else Size(form, bool(form.free_symbols & self.symbols))

    def enter(self, number: Any) -> bool:
        """True where one of them is in a symbolic number."""
        if not is_symbolic(number):
            return False
        return self.among(symbols_of(number))

    def among(self, symbols: Iterable[Any]) -> bool:
        """True where one of the symbols is padded, or tied to one that is."""
        forms = (self.ties.get(symbol, symbol) for symbol in symbols)
        return any(form.free_symbols & self.symbols for form in forms)

    def enter_tensor(self, value: Any) -> bool:
        """True for a tensor with one of them in its sizes or strides."""
        if not isinstance(value, torch.Tensor) or not has_symbolic_layout(value):
            return False
        return any(map(self.enter, (*value.shape, *value.stride())))


def axis_of(sizes: Iterable[int | Size], fill: Fill | None = None) -> Axis:
    """The axis of these sizes: neighbouring numbers are one, and 1 is none."""
    found: list[int | Size] = []
    for size in sizes:
        if isinstance(size, int) and found and isinstance(found[-1], int):
            found[-1] *= size
        elif size != 1:
            found.append(size)
    return Axis(tuple(found), fill)


def padded_with_zeros(value: torch.Tensor, padded: PaddedSymbols) -> Layout:
    """The layout of an exact value after it was padded: its last elements are zeros, but along
    dimensions of stride 0, which repeat what there is."""
    if value.is_neg() or value.is_conj():
        raise RefusedError("its memory does not hold its values (negative or conjugate bit)")
    if any(depends_on_data(number) for number in (*value.shape, *value.stride())):
        raise RefusedError("its sizes depend on data")
    return with_fill(value, tuple(axis_of((padded.size(size),)) for size in value.shape), 0)


def with_fill(value: torch.Tensor, layout: Layout, fill: Fill) -> Layout:
    """The layout after `fill` was written to all padding that repeats nothing."""
    steps = zip(layout, value.stride(), strict=True)
    return tuple(
        replace(axis, fill=fill if axis.is_padded and _form(step) != 0 else None)
        for axis, step in steps
    )


def same_sizes(a: Axis, b: Axis) -> bool:
    """True where both have the same good elements at the same places."""
    return a.sizes == b.sizes


def broadcast(layouts: Sequence[Layout], ndim: int) -> Layout:
    """The axes of the result of an elementwise op. Raises RefusedError where operands differ."""
    axes = []
    for dim in range(-ndim, 0):
        found = [layout[dim] for layout in layouts if len(layout) >= -dim and layout[dim].sizes]
        if any(not same_sizes(found[0], one) for one in found):
            raise RefusedError("operands have their padding at different places")
        axes.append(replace(found[0], fill=None) if found else Axis(()))
    return tuple(axes)


def no_padding(layout: Sequence[Axis], dims: Iterable[int], what: str) -> None:
    """Raises RefusedError where one of the dimensions is padded."""
    for dim in dims:
        if layout[dim].is_padded:
            raise RefusedError(f"{what} goes along a padded dimension")


def no_padding_in(arguments: Any, operands: Operands, node: fx.Node) -> None:
    """Raises RefusedError where a parameter of an op is padded at all."""
    for arg in arguments:
        if has_tensor(arg) and any(axis.is_padded for axis in operands.layout(arg)):
            raise RefusedError(f"a padded tensor is a parameter of {op_name(node)}")


def reshaped(layout: Layout, shape: Sequence[Any], padded: PaddedSymbols) -> Layout:
    """The layout of a view with the same elements in row-major order. Raises RefusedError where a
    symbolic size would be cut."""
    left: list[tuple[int | Size, Fill | None]] = []
    for axis in layout:
        fill = axis.fill if len(axis.sizes) == 1 else None
        left += [(size, fill) for size in axis.sizes]
    axes = [_take(left, padded.form(size)) for size in shape]
    if left:
        raise RefusedError("a view cuts a padded size")
    return tuple(axes)


def _take(left: list[tuple[int | Size, Fill | None]], wanted: Any) -> Axis:
    """The axis of size `wanted` from the front of what is left."""
    taken: list[int | Size] = []
    fills: list[Fill | None] = []
    while wanted != 1:
        if not left:
            raise RefusedError("a view cuts a padded size")
        size, fill = left.pop(0)
        if isinstance(size, int):
            # Of a number the front may be taken: [s, 128] as [s * 4, 32].
            front = _number_factor(wanted)
            if front < size and size % front == 0 and front > 1:
                left.insert(0, (size // front, None))
                size = front
        wanted = _divided(wanted, size if isinstance(size, int) else size.form)
        taken.append(size)
        fills.append(fill)
    axis = axis_of(taken)
    is_whole = len(taken) == 1 and axis.is_padded
    return replace(axis, fill=fills[0]) if is_whole else axis


def _number_factor(wanted: Any) -> int:
    if isinstance(wanted, int):
        return wanted
    number, _ = wanted.as_coeff_Mul()
    return int(number) if number.is_Integer else 1


def _divided(wanted: Any, size: Any) -> Any:
    """`wanted / size`. Raises RefusedError where that is no whole number or product of sizes."""
    if isinstance(wanted, int) and isinstance(size, int):
        quotient, rest = divmod(wanted, size)
        if rest == 0:
            return quotient
    else:
        quotient = sympy.cancel(sympy.sympify(wanted) / sympy.sympify(size))
        if sympy.fraction(quotient)[1] == 1:
            return _form(quotient)
    raise RefusedError("a view cuts a padded size")
