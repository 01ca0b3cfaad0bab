"""Absolute values and relus of what has no sign: they change nothing, and each takes a pass.

What has no sign is zero, positive or NaN, and never -0.0: so what is left out is equal bit for bit.
A relu of what is at least zero is left out where that may be -0.0 too: a maximum with zero that has
been taken gives itself when it is taken again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trnx.nki_kernels.generator.ir import COMPARISONS, Operand, Value, values_of
from trnx.nki_kernels.generator.monotone import rebuilt

# Functions of ScalarE that are never negative, and those that keep the sign of their operand.
_UNSIGNED = ("abs", "exp", "sigmoid", "square")
_KEEPING = ("sqrt", "tanh", "silu", "erf", "arctan", "reciprocal")
# Operators and reductions that give no sign where no operand has one.
_CLOSED = ("add", "multiply", "maximum", "minimum")
# What reads tiles of every type of float.
_ANY_FLOAT = ("alu", "unary", "reduce", "reciprocal", "cast")


def without_needless_signs(roots: tuple[Value, ...], values: list[Value]) -> dict[Value, Value]:
    """What stands for each of `values`, which are all that `roots` are made of, operands first."""
    unsigned = without_sign(values)
    floored: set[Value] = set()
    dropped: dict[Value, Value] = {}
    for value in values:
        same = _same(value, unsigned, floored)
        if value in unsigned or _is_floored(value, floored):
            floored.add(value)
        if same is not None:
            dropped[value] = same
    return without(dropped, roots, values)


def without_sign(values: Sequence[Value]) -> frozenset[Value]:
    """Those of `values`, operands first, that have no sign."""
    unsigned: set[Value] = set()
    for value in values:
        if _is_unsigned(value, unsigned):
            unsigned.add(value)
    return frozenset(unsigned)


def without(
    dropped: Mapping[Value, Value], roots: tuple[Value, ...], values: Sequence[Value]
) -> dict[Value, Value]:
    """What stands for each of `values`, operands first, where the operands that `dropped` names
    stand for its keys; roots keep their types."""
    new: dict[Value, Value] = {}
    for value in values:
        if value in dropped:
            new[value] = new[dropped[value]]
            continue
        args = tuple(_read(value, new[a], a) if isinstance(a, Value) else a for a in value.args)
        new[value] = value if args == value.args else rebuilt(value, args)
    return new | {root: _typed(new[root], root) for root in roots}


def _read(reader: Value, found: Value, old: Value) -> Value:
    """`found` as `reader` takes it in place of an `old` operand of perhaps another type."""
    return found if reader.op in _ANY_FLOAT else _typed(found, old)


def _typed(found: Value, old: Value) -> Value:
    """`found` in the type of what it stands for."""
    if found.dtype is old.dtype:
        return found
    return Value("cast", "copy", (found,), old.dtype, old.axes)


def _same(value: Value, unsigned: frozenset[Value], floored: set[Value]) -> Value | None:
    """The operand that `value` is equal to; None where it is not."""
    operands = values_of(value.args)
    if len(operands) != 1 or not operands[0].dtype.is_floating_point:
        return None
    (source,) = operands
    if (value.op, value.name) == ("unary", "abs"):
        return source if source in unsigned else None
    is_relu = (value.op, value.name) == ("alu", "maximum") and value.args[1:] == (0.0,)
    return source if is_relu and source in floored else None


def _is_unsigned(value: Value, unsigned: set[Value]) -> bool:
    def has_none(x: Operand) -> bool:
        return x in unsigned if isinstance(x, Value) else math.copysign(1.0, x) > 0

    if not value.dtype.is_floating_point:
        return False
    if value.op == "unary":
        keeps = value.name in _KEEPING and all(map(has_none, value.args))
        return keeps or value.name in _UNSIGNED
    if value.op == "alu":
        if value.name in COMPARISONS:
            return True
        if value.name == "power" and not isinstance(value.args[1], Value):
            return has_none(value.args[0])
        # A square has none either.
        is_square = value.name == "multiply" and value.args[0] is value.args[1]
        closed = value.name in _CLOSED and all(map(has_none, value.args))
        return is_square or closed
    closed = value.op in ("cast", "reciprocal")
    closed = closed or (value.op == "reduce" and value.name in _CLOSED)
    return closed and all(map(has_none, value.args))


def _is_floored(value: Value, floored: set[Value]) -> bool:
    """Whether a maximum with a number that is at least zero has been taken of it."""
    if value.op == "cast":
        return value.args[0] in floored
    numbers = [x for x in value.args if not isinstance(x, Value)]
    is_maximum = (value.op, value.name) == ("alu", "maximum")
    return is_maximum and any(number >= 0 for number in numbers)
