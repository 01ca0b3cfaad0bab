"""The expression IR between ATen and NKI source: a DAG of tile values, built by the lowering
rules.

A `Value` is one tile-sized quantity. Its `dtype` is how its tile is stored: float32 for all
arithmetic (the engines compute in float32), torch.bool for 0/1 masks (uint8 tiles), torch.int32
for exact integer arithmetic, torch.int64 for two words of 32 bits (`integers.py`), and any dtype
for loads and explicit casts. Its `axes` are the labels of the iteration space over which it varies;
a value without axes is one number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trnx.nki_kernels.dtypes import FLOAT_DTYPES

Number = bool | int | float
STORAGE_DTYPES = frozenset({*FLOAT_DTYPES, torch.bool, torch.int32, torch.int64})
INTEGER_DTYPES = frozenset({torch.bool, torch.int32, torch.int64})

# Comparisons swap to these when the scalar stands on the left.
COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})


@dataclass(frozen=True, eq=False)
class Value:
    """One node of the DAG: `op` is its kind, `name` the operator, `args` values or numbers."""

    op: str  # load, word, view, pack, alu, unary, reciprocal, bits, bitwise, either, select, ...
    name: str
    args: tuple[Operand, ...]
    dtype: torch.dtype
    axes: frozenset[int]
    attribute: Any = None

    def __repr__(self) -> str:
        return f"{self.op}:{self.name}({', '.join(map(repr, self.args))})"


Operand = Value | Number
Dims = tuple[int, ...]


def values_of(operands: tuple[Operand, ...]) -> list[Value]:
    """Those of `operands` that are values."""
    return [x for x in operands if isinstance(x, Value)]


class Builder:
    """Builds values for the lowering rules; equal expressions become one `Value`.

    `out` is the dtype of the node being lowered, `reduced` the labels that it reduces,
    `count` how many elements that is; `rounds_quotients` whether its divisions must be rounded
    correctly (`rounding.py`).
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Value] = {}
        self.out: torch.dtype = torch.float32
        self.computed: torch.dtype = torch.float32
        self.reduced: frozenset[int] = frozenset()
        self.count: int = 1
        self.rounds_quotients: bool = True

    def make(
        self,
        op: str,
        name: str,
        args: tuple[Operand, ...],
        dtype: torch.dtype,
        axes: frozenset[int] | None = None,
        attribute: Any = None,
    ) -> Value:
        """The value of this expression; it varies over what its arguments vary over."""
        if axes is None:
            axes = frozenset().union(*(v.axes for v in values_of(args)))
        # A number is keyed by its text: 0.0 and -0.0, or 1 and True, are not one value.
        identities = tuple(id(a) if isinstance(a, Value) else repr(a) for a in args)
        key = (op, name, identities, dtype, axes, attribute)
        return self._known.setdefault(key, Value(op, name, args, dtype, axes, attribute))

    def load(self, name: str, dtype: torch.dtype, axes: frozenset[int], dims: Dims) -> Value:
        """A region input; `dims` are the labels of its dimensions."""
        return self.make("load", name, (), dtype, axes, dims)

    def constant(self, number: Number, dtype: torch.dtype, axes: frozenset[int]) -> Value:
        """`number` as a tile."""
        return self.make("constant", "", (number,), dtype, axes)

    # -- conversions -----------------------------------------------------------------------------

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """`x` rounded to `dtype` as the engines do (to nearest even, saturating)."""
        return x if x.dtype is dtype else self.make("cast", "copy", (x,), dtype)

    def spread(self, x: Operand, dtype: torch.dtype, axes: frozenset[int]) -> Value:
        """`x` as a tile of `dtype` that varies over all `axes`."""
        if not isinstance(x, Value):
            return self.constant(x, dtype, axes)
        if x.dtype is dtype and x.axes == axes:
            return x
        return self.make("cast", "copy", (x,), dtype, axes)

    def to_float(self, x: Operand) -> Operand:
        """`x` as an operand of float arithmetic, which reads half precision but not int32."""
        if not isinstance(x, Value):
            return float(x)
        return self.cast(x, torch.float32) if x.dtype is torch.int32 else x

    def float_value(self, x: Operand) -> Value:
        """`x` as a value of float arithmetic, a number too."""
        found = self.to_float(x)
        return (
            found if isinstance(found, Value) else self.constant(found, torch.float32, frozenset())
        )

    def to_bool(self, x: Operand) -> Operand:
        """1 where `x` is not zero (NaN counts as not zero)."""
        if not isinstance(x, Value):
            return float(bool(x))
        return x if x.dtype is torch.bool else self.compare("not_equal", x, 0)

    def to_int(self, x: Operand) -> Value:
        """`x`, which holds integers, as int32."""
        if isinstance(x, Value):
            return self.cast(x, torch.int32)
        return self.constant(int(x), torch.int32, frozenset())

    # -- arithmetic ------------------------------------------------------------------------------

    def alu(self, name: str, a: Operand, b: Operand, dtype: torch.dtype = torch.float32) -> Value:
        """A binary operator of the Vector engine in float32; `dtype` bool where it gives 0 or 1."""
        a, b = self.to_float(a), self.to_float(b)
        if not isinstance(a, Value) and not isinstance(b, Value):
            a = self.constant(a, torch.float32, frozenset())
        return self.make("alu", name, (a, b), dtype)

    def integer(self, name: str, a: Operand, b: Operand) -> Value:
        """A binary operator in exact, wrapping int32 arithmetic."""
        return self.make("alu", name, (self.to_int(a), self.to_int(b)), torch.int32)

    def add(self, a: Operand, b: Operand) -> Value:
        """a + b"""
        return self.alu("add", a, b)

    def sub(self, a: Operand, b: Operand) -> Value:
        """a - b"""
        return self.alu("subtract", a, b)

    def mul(self, a: Operand, b: Operand) -> Value:
        """a * b"""
        return self.alu("multiply", a, b)

    def maximum(self, a: Operand, b: Operand) -> Value:
        """The larger; NaN wins."""
        return self.alu("maximum", a, b)

    def minimum(self, a: Operand, b: Operand) -> Value:
        """The smaller; NaN wins."""
        return self.alu("minimum", a, b)

    def compare(self, name: str, a: Operand, b: Operand) -> Value:
        """A comparison, exact for int32."""
        wide = any(v.dtype is torch.int32 for v in values_of((a, b)))
        if wide and all(_is_integral(x) for x in (a, b)):
            return self.cast(self.integer(name, a, b), torch.bool)
        return self.alu(name, a, b, torch.bool)

    def unary(self, name: str, x: Operand) -> Value:
        """An activation function of the Scalar engine."""
        return self.make("unary", name, (self.to_float(x),), torch.float32)

    def reciprocal(self, x: Operand) -> Value:
        """1 / x in the Vector engine's precision."""
        return self.make("reciprocal", "reciprocal", (self.to_float(x),), torch.float32)

    # -- bits ------------------------------------------------------------------------------------

    def bits(self, x: Operand, keep: int, flip: int) -> Operand:
        """The float32 whose bits are `(bits(x) & keep) ^ flip`."""
        if isinstance(x, Value):
            x = self.cast(x, torch.float32)
            return self.make("bits", "", (x,), torch.float32, attribute=(keep, flip))
        word = torch.tensor(x, dtype=torch.float32, device="cpu").view(torch.int32)
        return (word & keep ^ flip).view(torch.float32).item()

    def view(self, x: Value, dtype: torch.dtype) -> Value:
        """The bits of `x`, a tile of 32-bit elements, as `dtype` of that size; no instruction."""
        return x if x.dtype is dtype else self.make("view", "", (x,), dtype)

    def with_sign(self, x: Value, signed: Operand) -> Value:
        """`x`, which is not negative, with the sign of `signed`, also where one is zero."""
        return self.make("either", "", (x, self.bits(signed, -(2**31), 0)), torch.float32)

    def select(
        self, mask: Operand, a: Operand, b: Operand, dtype: torch.dtype | None = None
    ) -> Value:
        """a where mask else b, copied bit for bit (values not chosen may be NaN)."""
        if dtype is None:
            dtype = self.select_type(a, b)
        mask = self.to_bool(mask)
        if not isinstance(mask, Value):
            mask = self.constant(bool(mask), torch.bool, frozenset())
        if dtype is torch.int32 and not isinstance(a, Value) and abs(a) > 2**24:
            # An instruction takes a number in float32, `memset` in the tile's dtype.
            a = self.constant(a, torch.int32, frozenset())
        return self.make("select", "", (mask, a, b), dtype)

    @staticmethod
    def select_type(*operands: Operand) -> torch.dtype:
        """The dtype in which tiles of all `operands` are selected."""
        kinds = {v.dtype for v in values_of(operands)}
        return kinds.pop() if len(kinds) == 1 and not kinds & {torch.int32} else torch.float32

    def reduce(self, name: str, x: Operand) -> Value:
        """The reduction of `x` over the labels that the node reduces."""
        x = self.to_float(x)
        if not isinstance(x, Value) or not self.reduced <= x.axes:
            kept = x.axes if isinstance(x, Value) else frozenset()
            x = self.spread(x, torch.float32, kept | self.reduced)
        if not self.reduced:
            return x
        return self.make("reduce", name, (x,), torch.float32, x.axes - self.reduced)


def _is_integral(x: Operand) -> bool:
    return x.dtype in (torch.int32, torch.bool) if isinstance(x, Value) else isinstance(x, int)


Lowering = Callable[..., Any]
