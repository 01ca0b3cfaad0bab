"""Lowerings of trigonometric and hyperbolic functions and their inverses.

Forms are those that neither overflow nor cancel in float32; what is chosen by a comparison is
computed on both sides of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from trnx.nki_kernels.generator.angles import PI_HALVES, cosine_angle, sine_angle
from trnx.nki_kernels.generator.ir import Builder, Operand, Value
from trnx.nki_kernels.generator.rules_activation import log1p
from trnx.nki_kernels.generator.rules_logic import is_signed
from trnx.nki_kernels.generator.table import lowers
from trnx.simulator.errors import Reject

aten = torch.ops.aten

# Where asinh(x) and acosh(x) are log(2 x) in float32.
_ASYMPTOTE = 2.0**13
# From where on atan(x) is pi / 2 in float32.
_VERTICAL = 2.0**26


def _sine(b: Builder, x: Value) -> Value:
    return _unless_infinite(b, x, b.unary("sin", sine_angle(b, x)))


def _unless_infinite(b: Builder, x: Operand, result: Operand) -> Value:
    """`result`, NaN where x is infinite or NaN; x * 0 keeps the sign of a result of -0.0."""
    return b.add(b.mul(x, 0.0), result)


@lowers(aten.sin, flops=40)
def sin(b: Builder, x: Operand) -> Value:
    return _sine(b, b.float_value(x))


@lowers(aten.cos, flops=40)
def cos(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    return _unless_infinite(b, x, b.unary("sin", cosine_angle(b, x)))


@lowers(aten.tan)
def tan(b: Builder, x: Operand) -> Reject:  # noqa: ARG001
    return Reject("next to a pole tan needs more bits of the reduced angle than sin and cos")


@lowers(aten.atan, flops=8)
def atan(b: Builder, x: Operand) -> Value:
    # Of half the angle, whose tangent is x / (1 + (1 + x^2)^(1/2)): ScalarE takes angles to pi / 2.
    x = b.minimum(b.maximum(b.float_value(x), -_VERTICAL), _VERTICAL)
    root = b.unary("sqrt", b.add(b.mul(x, x), 1.0))
    tangent = b.mul(x, b.unary("reciprocal", b.add(root, 1.0)))
    return b.mul(b.unary("arctan", tangent), 2.0)


class _Balanced(NamedTuple):
    """Magnitudes times a power of two, `inverse` of which they are to be multiplied with."""

    x: Value
    y: Value
    inverse: Value


def _balanced(b: Builder, x: Operand, y: Operand) -> _Balanced:
    """|x| and |y|, so scaled that the squares of the larger one and its inverse are in range."""
    left, right = (b.unary("abs", b.float_value(z)) for z in (x, y))
    larger = b.maximum(left, right)
    is_large, is_small = b.compare("greater", larger, 2.0**60), b.compare("less", larger, 2.0**-60)

    def chosen(large: float, small: float) -> Value:
        near = b.select(is_small, small, 1.0, torch.float32)
        return b.select(is_large, large, near, torch.float32)

    factor = chosen(2.0**-70, 2.0**90)
    return _Balanced(b.mul(left, factor), b.mul(right, factor), chosen(2.0**70, 2.0**-90))


@lowers(aten.hypot, flops=16)
def hypot(b: Builder, x: Operand, y: Operand) -> Value:
    left, right, inverse = _balanced(b, x, y)
    root = b.unary("sqrt", b.add(b.mul(left, left), b.mul(right, right)))
    left_infinite, right_infinite = (b.compare("equal", z, math.inf) for z in (left, right))
    infinite = b.alu("logical_or", left_infinite, right_infinite, torch.bool)
    # Infinity counts, also beside NaN.
    return b.select(infinite, math.inf, b.mul(root, inverse), torch.float32)


@lowers(aten.atan2.default, flops=40)
def atan2(b: Builder, y: Operand, x: Operand) -> Value:
    height, width, _ = _balanced(b, y, x)
    larger = b.maximum(height, width)
    ratio = b.mul(b.minimum(height, width), b.reciprocal(larger))
    ratio = b.select(b.compare("equal", height, width), 1.0, ratio, torch.float32)
    # Two zeros make the angle of a zero height.
    ratio = b.select(b.compare("equal", height, 0.0), 0.0, ratio, torch.float32)
    angle = b.unary("arctan", ratio)
    high, low = PI_HALVES
    steep = b.add(b.sub(high, angle), low)
    angle = b.select(b.compare("greater", height, width), steep, angle, torch.float32)
    behind = b.add(b.sub(2.0 * high, angle), 2.0 * low)
    angle = b.select(is_signed(b, b.float_value(x)), behind, angle, torch.float32)
    angle = b.with_sign(angle, b.float_value(y))
    return b.select(b.compare("equal", larger, larger), angle, larger, torch.float32)


@lowers(aten.angle.default, flops=3)
def angle(b: Builder, x: Operand) -> Value:
    """Of real numbers: 0, or pi where they are negative; NaN stays."""
    x = b.float_value(x)
    turned = b.mul(b.compare("less", x, 0.0), math.pi)
    return b.select(b.compare("equal", x, x), turned, x, torch.float32)


@lowers(aten.copysign.Tensor, aten.copysign.Scalar, flops=2)
def copysign(b: Builder, x: Operand, y: Operand) -> Value:
    return b.with_sign(b.unary("abs", b.float_value(x)), b.float_value(y))


@lowers(aten.asin, flops=8)
def asin(b: Builder, x: Operand) -> Value:
    # Twice the atan of sin / (1 + cos), which is at most 1.
    cosine = b.unary("sqrt", b.mul(b.sub(1.0, x), b.add(x, 1.0)))
    tangent = b.mul(x, b.unary("reciprocal", b.add(cosine, 1.0)))
    return b.mul(b.unary("arctan", tangent), 2.0)


@lowers(aten.acos, flops=10)
def acos(b: Builder, x: Operand) -> Value:
    # The same of |x|: pi / 2 - asin(x) cancels next to 1. cos(pi - a) is -cos(a).
    magnitude = b.unary("abs", b.float_value(x))
    square = b.mul(b.sub(1.0, magnitude), b.unary("reciprocal", b.add(magnitude, 1.0)))
    angle = b.unary("arctan", b.unary("sqrt", square))
    behind = b.add(b.mul(angle, -2.0), math.pi)
    return b.select(b.compare("less", x, 0.0), behind, b.mul(angle, 2.0), torch.float32)


@lowers(aten.sinh, flops=9)
def sinh(b: Builder, x: Operand) -> Value:
    # (exp(x) - exp(-x)) / 2, without its cancellation near 0.
    return b.mul(b.add(cosh(b, x), 1.0), b.unary("tanh", b.mul(x, 0.5)))


@lowers(aten.cosh, flops=6)
def cosh(b: Builder, x: Operand) -> Value:
    magnitude = b.unary("abs", b.float_value(x))
    falling = b.mul(b.unary("exp", b.mul(magnitude, -1.0)), 0.5)
    return b.add(falling, _half_of_exp(b, magnitude))


def _half_of_exp(b: Builder, magnitude: Value) -> Value:
    """exp(x) / 2 for x >= 0, which overflows later than exp(x)."""
    root = b.unary("exp", b.mul(magnitude, 0.5))
    return b.mul(b.mul(root, 0.5), root)


@lowers(aten.asinh, flops=20)
def asinh(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    square = b.mul(magnitude, magnitude)
    root = b.unary("sqrt", b.add(square, 1.0))
    near = log1p(b, b.add(magnitude, b.mul(square, b.unary("reciprocal", b.add(root, 1.0)))))
    return b.with_sign(_unless_asymptotic(b, magnitude, near), x)


@lowers(aten.acosh, flops=18)
def acosh(b: Builder, x: Operand) -> Value:
    above = b.sub(x, 1.0)
    root = b.mul(b.unary("sqrt", above), b.unary("sqrt", b.add(above, 2.0)))
    return _unless_asymptotic(b, x, log1p(b, b.add(above, root)))


def _unless_asymptotic(b: Builder, x: Operand, result: Operand) -> Value:
    """`result`, log(2 x) where x is large."""
    far = b.add(b.unary("log", x), math.log(2.0))
    return b.select(b.compare("greater", x, _ASYMPTOTE), far, result, torch.float32)


@lowers(aten.atanh, flops=14)
def atanh(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    ratio = b.mul(b.mul(magnitude, 2.0), b.unary("reciprocal", b.sub(1.0, magnitude)))
    return b.with_sign(b.mul(log1p(b, ratio), 0.5), x)
