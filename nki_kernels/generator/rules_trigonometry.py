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


def _arctangent(b: Builder, x: Operand) -> Value:
    # ScalarE takes [-pi / 2, pi / 2]; atan(y) is pi / 2 - atan(1 / y) for y > 0.
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    angle = b.unary("arctan", b.minimum(magnitude, b.reciprocal(magnitude)))
    high, low = PI_HALVES
    complement = b.add(b.sub(high, angle), low)
    is_steep = b.compare("greater", magnitude, 1.0)
    return b.with_sign(b.select(is_steep, complement, angle, torch.float32), x)


@lowers(aten.atan, flops=8)
def atan(b: Builder, x: Operand) -> Value:
    return _arctangent(b, x)


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


@lowers(aten.asin, flops=14)
def asin(b: Builder, x: Operand) -> Value:
    cosine = b.mul(b.sub(1.0, x), b.add(x, 1.0))
    return _arctangent(b, b.mul(x, b.reciprocal(b.unary("sqrt", cosine))))


@lowers(aten.acos, flops=14)
def acos(b: Builder, x: Operand) -> Value:
    # Twice the atan of sin / (1 + cos): pi / 2 - asin(x) cancels next to 1.
    sine, cosine = b.unary("sqrt", b.sub(1.0, x)), b.unary("sqrt", b.add(x, 1.0))
    return b.mul(_arctangent(b, b.mul(sine, b.reciprocal(cosine))), 2.0)


@lowers(aten.sinh, flops=14)
def sinh(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    half = _half_of_exp(b, magnitude)
    far = b.sub(half, b.mul(b.reciprocal(half), 0.25))
    # Of t = tanh(x / 2), where the difference above cancels.
    t = b.unary("tanh", b.mul(magnitude, 0.5))
    near = b.mul(b.mul(t, 2.0), b.reciprocal(b.mul(b.sub(1.0, t), b.add(t, 1.0))))
    is_near = b.compare("less", magnitude, 1.0)
    return b.with_sign(b.select(is_near, near, far, torch.float32), x)


@lowers(aten.cosh, flops=5)
def cosh(b: Builder, x: Operand) -> Value:
    half = _half_of_exp(b, b.unary("abs", x))
    return b.add(b.mul(b.reciprocal(half), 0.25), half)


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
    near = log1p(b, b.add(magnitude, b.mul(square, b.reciprocal(b.add(root, 1.0)))))
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
    ratio = b.mul(b.mul(magnitude, 2.0), b.reciprocal(b.sub(1.0, magnitude)))
    return b.with_sign(b.mul(log1p(b, ratio), 0.5), x)
