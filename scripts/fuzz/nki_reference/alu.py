"""ALU operators on float32 arrays, with the error of those that no rounding rule fixes.

Table "Supported Math Operators" of the NKI reference: arithmetic is float32, comparisons and
logical operators give 1.0 and 0.0, bitvec operators work on the bits of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_reference.machine import HALF_ULP, Machine
from nki_reference.numbers import TINY, Array
from nki_reference.program import Call, Token

COMPARISONS = ("equal", "not_equal", "greater_equal", "greater", "less_equal", "less")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
NATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
ABSOLUTE = ("abs_max", "abs_min")
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
UNARY_BITS = ("invert",)
UNARY = ("abs", "square", "relu", "rsqrt", "reciprocal")
# Not rounded by a rule, or with the sign of a zero, which maxima and minima leave open: 1 / 0.
INEXACT = ("power", "rsqrt", "reciprocal")
F32 = np.float32


def binary(generation: int, *, power: bool = True) -> tuple[str, ...]:
    """Binary arithmetic operators of a generation."""
    names: tuple[str, ...] = (*NATIVE, *COMPARISONS, *LOGICAL)
    names += ("power",) if power else ()
    return names + (ABSOLUTE if generation >= 4 else ())


def arithmetic(generation: int) -> tuple[str, ...]:
    """Arithmetic operators of a generation, unary ones too."""
    return binary(generation) + UNARY


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater_equal": np.greater_equal,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "less": np.less,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
}


def compute(name: str, a: Array, b: Array | None = None, reverse: bool = False) -> Array:
    """a <op> b in float32, b <op> a when reversed; inexact operators in float64."""
    with np.errstate(all="ignore"):
        if name == "abs":
            return np.abs(a)
        if name == "square":
            return np.multiply(a, a, dtype=F32)
        if name == "relu":
            return np.maximum(a, F32(0))
        if name == "reciprocal":
            return np.asarray(F32(1) / a.astype(F32))
        if name == "rsqrt":
            return np.asarray(1 / np.sqrt(a.astype(np.float64)))
        assert b is not None
        left, right = (b, a) if reverse else (a, b)
        if name == "power":
            # NumPy takes the square root for an exponent of 0.5, which is NaN of -inf: pow is inf.
            left = np.where(np.isneginf(left) & (right == 0.5), np.inf, left.astype(np.float64))
            return np.asarray(np.power(left, right.astype(np.float64)))
        return np.asarray(_BINARY[name](left.astype(F32), right.astype(F32))).astype(F32)


def error(name: str, values: Array) -> Array | None:
    """How far the simulator's result may be off; None where it is exact."""
    if name not in INEXACT:
        return None
    with np.errstate(all="ignore"):
        factor = 0.0 if name == "reciprocal" else 8 * HALF_ULP
        spread = np.abs(values).astype(np.float64) * factor + (TINY if factor else 0.0)
        # An infinity may be that of a zero of either sign.
        return np.where(np.isinf(values), np.inf, np.where(np.isnan(values), 0.0, spread))


def bits(name: str, a: Array, b: Array | None, reverse: bool = False) -> Array:
    """A bitvec operator on unsigned integers of one width."""
    if name == "invert":
        return np.invert(a)
    assert b is not None
    left, right = (b, a) if reverse else (a, b)
    left, right = np.broadcast_arrays(left, right)
    if name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        return np.asarray(getattr(np, name)(left, right))
    width = 8 * left.dtype.itemsize
    wide = left.astype(np.uint64)
    shift = right.astype(np.uint64)
    safe = np.minimum(shift, width - 1).astype(np.uint64)
    moved = wide << safe if name == "left_shift" else wide >> safe
    return np.where(shift < width, moved, 0).astype(left.dtype)


def is_exact(*keys: str) -> Callable[[Call], bool]:
    """`Entry.is_exact` for calls whose operators are these arguments."""

    def check(call: Call) -> bool:
        names = [v.name for key in keys if isinstance(v := call.arguments.get(key), Token)]
        return not any(name in INEXACT for name in names)

    return check


def unary_operand(m: Machine, name: str, operand: Any) -> None:
    """A unary operator takes no operand."""
    if name in (*UNARY, *UNARY_BITS):
        m.require(
            operand is None or (isinstance(operand, int | float) and operand == 0),
            "a unary operator has an operand",
        )
    else:
        m.require(operand is not None, "an operand is missing")
