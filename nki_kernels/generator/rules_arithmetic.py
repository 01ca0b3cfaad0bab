"""Lowerings of arithmetic: +, -, *, /, powers, extrema, rounding, and ops composed of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from trnx.nki_kernels.generator import integer_casts, integer_division, integers
from trnx.nki_kernels.generator.division import divide
from trnx.nki_kernels.generator.ir import INTEGER_DTYPES, Builder, Operand, Value
from trnx.nki_kernels.generator.table import lowers
from trnx.nki_kernels.generator.whole_numbers import rounded, truncated
from trnx.nki_kernels.generator.words import extended, is_integral, range_of, words
from trnx.simulator.errors import Reject

aten = torch.ops.aten


def arithmetic(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """`name` in the arithmetic of the node's result: exact for integers, else float32."""
    if b.out is torch.int64:
        return integers.arithmetic(b, name, x, y)
    if b.out is torch.int32:
        return b.integer(name, x, y)
    if b.out is torch.bool:
        return b.alu(
            {"add": "logical_or", "multiply": "logical_and"}.get(name, name), x, y, torch.bool
        )
    return b.alu(name, x, y)


def _scaled(b: Builder, x: Operand, alpha: Operand) -> Operand:
    return x if alpha == 1 else arithmetic(b, "multiply", x, alpha)


def _as_stored(b: Builder, *numbers: Any) -> list[Any]:
    """Numbers in the dtype of the result, in which eager's sums and differences take them;
    products and quotients take them in float32.
    """
    if b.out not in (torch.bfloat16, torch.float16):
        return list(numbers)
    return [n if isinstance(n, Value) else torch.tensor(n, dtype=b.out).item() for n in numbers]


@lowers(aten.add)
def add(b: Builder, x: Operand, y: Operand, *, alpha: Any = 1) -> Operand:
    x, y, alpha = _as_stored(b, x, y, alpha)
    return arithmetic(b, "add", x, _scaled(b, y, alpha))


@lowers(aten.sub)
def sub(b: Builder, x: Operand, y: Operand, *, alpha: Any = 1) -> Operand:
    x, y, alpha = _as_stored(b, x, y, alpha)
    return arithmetic(b, "subtract", x, _scaled(b, y, alpha))


@lowers(aten.rsub)
def rsub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Operand:
    x, y, alpha = _as_stored(b, x, y, alpha)
    return arithmetic(b, "subtract", y, _scaled(b, x, alpha))


@lowers(aten.mul)
def mul(b: Builder, x: Operand, y: Operand) -> Operand:
    return arithmetic(b, "multiply", x, y)


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, x: Operand, y: Operand) -> Value:
    return divide(b, x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, x: Operand, y: Operand, *, rounding_mode: Any) -> Operand | Reject:
    if rounding_mode is None:
        return divide(b, x, y)
    if rounding_mode == "floor":
        return _of_integers(b, integer_division.floor_divide, x, y)
    return _of_integers(b, integer_division.truncate_divide, x, y)


def _of_integers(
    b: Builder, divide_them: Callable[..., Operand | Reject], x: Operand, y: Operand
) -> Operand | Reject:
    """A rounded quotient, or a remainder, in the dtype of the result."""
    if b.out not in (torch.int32, torch.int64):
        return Reject(f"it needs the exact quotient of {b.out}, which NKI lacks")
    result = divide_them(b, x, y)
    if isinstance(result, Reject) or b.out is torch.int64:
        return result
    return words(b, result).low


@lowers(aten.floor_divide, flops=40)
def floor_divide(b: Builder, x: Operand, y: Operand) -> Operand | Reject:
    return _of_integers(b, integer_division.floor_divide, x, y)


@lowers(aten.remainder, flops=40)
def remainder(b: Builder, x: Operand, y: Operand) -> Operand | Reject:
    return _of_integers(b, integer_division.remainder, x, y)


@lowers(aten.neg)
def neg(b: Builder, x: Operand) -> Operand:
    if b.out is torch.int64:
        return integers.arithmetic(b, "subtract", 0, x)
    return arithmetic(b, "multiply", x, -1)


@lowers(aten.abs)
def absolute(b: Builder, x: Operand) -> Operand:
    if b.out is torch.int64:
        return integers.absolute(b, x)
    if b.out is torch.int32:
        return b.integer("maximum", x, b.integer("multiply", x, -1))
    return b.unary("abs", x)


@lowers(aten.reciprocal)
def reciprocal(b: Builder, x: Operand) -> Value:
    return b.reciprocal(x)


@lowers(aten.square)
def square(b: Builder, x: Operand) -> Operand:
    return arithmetic(b, "multiply", x, x)


@lowers(aten.sign, aten.sgn)
def sign(b: Builder, x: Operand) -> Operand | Reject:
    if b.out is torch.bool:
        return Reject("sign of bool is bool; canonicalise it away")
    positive = b.compare("greater", x, 0)
    negative = b.compare("less", x, 0)
    return arithmetic(b, "subtract", positive, negative)


@lowers(aten.maximum)
def maximum(b: Builder, x: Operand, y: Operand) -> Operand:
    return arithmetic(b, "logical_or" if b.out is torch.bool else "maximum", x, y)


@lowers(aten.minimum)
def minimum(b: Builder, x: Operand, y: Operand) -> Operand:
    return arithmetic(b, "logical_and" if b.out is torch.bool else "minimum", x, y)


@lowers(aten.fmax)
def fmax(b: Builder, x: Operand, y: Operand) -> Operand:
    return _ignore_nan(b, "maximum", x, y)


@lowers(aten.fmin)
def fmin(b: Builder, x: Operand, y: Operand) -> Operand:
    return _ignore_nan(b, "minimum", x, y)


def _ignore_nan(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    result = arithmetic(b, name, x, y)
    if b.out not in INTEGER_DTYPES:
        result = b.select(b.compare("equal", x, x), result, y)
        result = b.select(b.compare("equal", y, y), result, x)
    return result


@lowers(aten.clamp, flops=2)
def clamp(b: Builder, x: Operand, low: Any = None, high: Any = None, **bounds: Any) -> Value:
    low, high = bounds.get("min", low), bounds.get("max", high)
    result = x
    if low is not None:
        result = arithmetic(b, "maximum", result, low)
    if high is not None:
        result = arithmetic(b, "minimum", result, high)
    assert isinstance(result, Value)  # torch demands one bound
    return result


@lowers(aten.clamp_min)
def clamp_min(b: Builder, x: Operand, low: Operand) -> Operand:
    return arithmetic(b, "maximum", x, low)


@lowers(aten.clamp_max)
def clamp_max(b: Builder, x: Operand, high: Operand) -> Operand:
    return arithmetic(b, "minimum", x, high)


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar, flops=2)
def power(b: Builder, x: Operand, y: Operand) -> Operand | Reject:
    if b.out in (torch.int32, torch.int64):
        if y in (1, 2, 3) and not isinstance(y, Value) and isinstance(x, Value):
            return _small_power(b, x, int(y))
        return Reject("integer powers other than 1, 2 and 3 need exact integer powers")
    if isinstance(x, Value) and not isinstance(y, Value):
        special = _special_power(b, x, float(y))
        if special is not None:
            return special
    return b.alu("power", x, y)


def _small_power(b: Builder, x: Value, exponent: int) -> Operand:
    result: Operand = x
    for _ in range(exponent - 1):
        result = arithmetic(b, "multiply", result, x)
        # In bfloat16 eager's products round, in float16 they do not.
        if b.out is torch.bfloat16 and isinstance(result, Value):
            result = b.cast(result, b.out)
    return result


def _special_power(b: Builder, x: Value, exponent: float) -> Operand | None:
    if exponent in (1.0, 2.0, 3.0):
        return _small_power(b, x, int(exponent))
    if exponent == 0.5:
        return b.unary("sqrt", x)
    if exponent == -0.5:
        return b.unary("rsqrt", x)
    if exponent in (-1.0, -2.0):
        return b.reciprocal(_small_power(b, x, int(-exponent)))
    return None


@lowers(aten.exp2)
def exp2(b: Builder, x: Operand) -> Value:
    return b.alu("power", 2.0, x)


@lowers(aten.round.default, flops=4)
def round_even(b: Builder, x: Operand) -> Operand:
    return x if b.out in INTEGER_DTYPES else rounded(b, x)


@lowers(aten.floor, flops=5)
def floor(b: Builder, x: Operand) -> Operand:
    if b.out in INTEGER_DTYPES:
        return x
    nearest = rounded(b, x)
    return b.sub(nearest, b.compare("greater", nearest, x))


@lowers(aten.ceil, flops=6)
def ceil(b: Builder, x: Operand) -> Operand:
    if b.out in INTEGER_DTYPES:
        return x
    nearest = rounded(b, x)
    # What is rounded up to zero is negative zero.
    return b.with_sign(b.unary("abs", b.add(nearest, b.compare("less", nearest, x))), x)


@lowers(aten.trunc, flops=7)
def trunc(b: Builder, x: Operand) -> Operand:
    return x if b.out in INTEGER_DTYPES else truncated(b, x)


@lowers(aten.frac, flops=8)
def frac(b: Builder, x: Operand) -> Value:
    return b.sub(x, truncated(b, x))


@lowers(aten.lerp, flops=3)
def lerp(b: Builder, start: Operand, end: Operand, weight: Operand) -> Value:
    difference = b.sub(end, start)
    near = b.add(start, b.mul(weight, difference))
    far = b.sub(
        end, b.mul(difference, b.sub(1.0, weight) if isinstance(weight, Value) else 1 - weight)
    )
    if not isinstance(weight, Value):
        return near if abs(weight) < 0.5 else far
    return b.select(b.compare("less", b.unary("abs", weight), 0.5), near, far)


@lowers(aten.addcmul, flops=3)
def addcmul(b: Builder, x: Operand, y: Operand, z: Operand, *, value: Any = 1) -> Operand:
    return arithmetic(b, "add", x, arithmetic(b, "multiply", _scaled(b, y, value), z))


@lowers(aten.addcdiv, flops=3)
def addcdiv(b: Builder, x: Operand, y: Operand, z: Operand, *, value: Any = 1) -> Value:
    return b.add(x, divide(b, _scaled(b, y, value), z))


@lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(b: Builder, mask: Operand, x: Operand, y: Operand) -> Operand:
    return choose(b, mask, x, y)


@lowers(aten.masked_fill)
def masked_fill(b: Builder, x: Operand, mask: Operand, value: Operand) -> Operand:
    return choose(b, mask, value, x)


def choose(b: Builder, mask: Operand, x: Operand, y: Operand) -> Operand:
    """x where mask else y, in the dtype of the node's result."""
    if b.out is torch.int64:
        return integers.choose(b, mask, x, y)
    if b.out is torch.int32:
        x = b.to_int(x) if isinstance(x, Value) else int(x)
        y = b.to_int(y) if isinstance(y, Value) else int(y)
        return b.select(mask, x, y, torch.int32)
    if b.out is torch.bool:
        return b.select(mask, b.to_bool(x), b.to_bool(y), torch.bool)
    return b.select(mask, b.to_float(x), b.to_float(y))


@lowers(aten.fill, aten.full_like)
def fill(b: Builder, x: Operand, value: Operand, **_layout: Any) -> Operand:  # noqa: ARG001
    return value


@lowers(aten.zeros_like)
def zeros_like(b: Builder, x: Operand, **_layout: Any) -> Operand:  # noqa: ARG001
    return 0


@lowers(aten.ones_like)
def ones_like(b: Builder, x: Operand, **_layout: Any) -> Operand:  # noqa: ARG001
    return 1


@lowers(aten._to_copy, aten.clone)
def to_copy(b: Builder, x: Value, **_layout: Any) -> Operand:
    if b.out is x.dtype:
        return x
    if b.out is torch.bool:
        return b.to_bool(x)
    if b.out in (torch.int32, torch.int64) and is_integral(x):
        word = words(b, x).low
        return extended(b, word, range_of(x)) if b.out is torch.int64 else word
    if b.out is torch.int64:
        return integer_casts.from_float(b, x)
    if b.out is torch.int32:
        return b.cast(truncated(b, x), torch.int32)
    if x.dtype is torch.int64:
        x = integer_casts.to_float(b, x)
    return b.cast(x, b.out)


@lowers(aten.nan_to_num, flops=4)
def nan_to_num(
    b: Builder, x: Value, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Value:
    if not b.out.is_floating_point:
        return x
    limit = torch.finfo(b.out).max
    high = limit if posinf is None else posinf
    low = -limit if neginf is None else neginf
    result = b.select(b.compare("equal", x, x), x, 0.0 if nan is None else float(nan))
    result = b.select(b.compare("equal", x, math.inf), float(high), result)
    return b.select(b.compare("equal", x, -math.inf), float(low), result)
