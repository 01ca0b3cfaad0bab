"""Lowerings of error functions and Bessel functions.

Forms keep relative precision where a function goes to zero or infinity; those that oscillate have
the precision of their amplitude. `Series` says what stands for a function on an interval.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from trnx.nki_kernels.generator.angles import cosine_angle, sine_angle
from trnx.nki_kernels.generator.ir import Builder, Operand, Value
from trnx.nki_kernels.generator.series import Series, first_of
from trnx.nki_kernels.generator.table import lowers

aten = torch.ops.aten
special = torch.special
_UPPER_HALF = -(2**12)  # the bits of a float32 without the last twelve of its mantissa


# -- error functions -------------------------------------------------------------------------------

_FAR = 100.0  # exp(x^2) is infinite from here on
_ERFCX_NEAR = Series(special.erfcx, 0.0, 2.0, 15)
_ERFCX_FAR = Series(lambda u: special.erfcx(1.0 / u) / u, 0.0, 0.5, 14)


def _exp_of_square(b: Builder, x: Value, sign: float) -> Value:
    """exp(x^2) or exp(-x^2), the square as two numbers so that its rounding does not count."""
    high = b.bits(x, _UPPER_HALF, 0)
    rest = b.mul(b.sub(x, high), b.add(x, high))
    return b.mul(b.unary("exp", b.mul(b.mul(high, high), sign)), b.unary("exp", b.mul(rest, sign)))


def _erfcx_of_positive(b: Builder, x: Value) -> Value:
    inverse = b.reciprocal(x)
    far = b.mul(_ERFCX_FAR.of(b, inverse), inverse)
    return first_of(b, x, (2.0, _ERFCX_NEAR.of(b, x)), last=far)


@lowers(aten.special_erfcx, flops=60)
def erfcx(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    positive = _erfcx_of_positive(b, magnitude)
    square = _exp_of_square(b, b.minimum(magnitude, _FAR), 1.0)
    negative = b.sub(b.mul(square, 2.0), positive)
    return b.select(b.compare("less", x, 0.0), negative, positive, torch.float32)


@lowers(aten.erfc, flops=60)
def erfc(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.minimum(b.unary("abs", x), _FAR)
    tail = b.mul(_exp_of_square(b, magnitude, -1.0), _erfcx_of_positive(b, magnitude))
    tail = b.select(b.compare("less", x, 0.0), b.sub(2.0, tail), tail, torch.float32)
    is_near = b.compare("less", magnitude, 0.5)
    return b.select(is_near, b.sub(1.0, b.unary("erf", x)), tail, torch.float32)


def _inverse_by_logarithm(w: torch.Tensor) -> torch.Tensor:
    """erfinv(s) / s for s = (1 - exp(-w))^(1/2)."""
    root = (-torch.expm1(-w)).sqrt()
    lower = torch.exp(-w) / (2.0 * (1.0 + root))  # (1 - s) / 2, which does not cancel
    found: torch.Tensor = special.ndtri(lower) / (-root * math.sqrt(2.0))
    return found


_INVERSE_NEAR = Series(_inverse_by_logarithm, 0.0, 5.0, 12)
_INVERSE_FAR = Series(lambda r: _inverse_by_logarithm(r * r), 2.2, 4.2, 11)
_INVERSE_LAST = Series(lambda r: _inverse_by_logarithm(r * r), 4.2, 10.4, 11)


def _inverse_factor(b: Builder, w: Value) -> Value:
    """erfinv(s) / s, of w = -log((1 - s) (1 + s)); infinite where w is."""
    root = b.unary("sqrt", w)
    near, far = _INVERSE_NEAR.of(b, w), _INVERSE_FAR.of(b, root)
    found = first_of(b, w, (5.0, near), (17.0, far), last=_INVERSE_LAST.of(b, root))
    found = b.select(b.compare("equal", w, math.inf), math.inf, found, torch.float32)
    return b.select(b.compare("equal", w, w), found, w, torch.float32)


def _minus_log(b: Builder, x: Value) -> Value:
    return b.mul(b.unary("log", x), -1.0)


@lowers(aten.erfinv, flops=60)
def erfinv(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    w = _minus_log(b, b.mul(b.sub(1.0, x), b.add(x, 1.0)))
    return b.mul(_inverse_factor(b, w), x)


@lowers(aten.special_ndtri, flops=60)
def ndtri(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    w = _minus_log(b, b.mul(b.mul(x, 4.0), b.sub(1.0, x)))
    return b.mul(_inverse_factor(b, w), b.mul(b.sub(x, 0.5), 2.0 * math.sqrt(2.0)))


# -- modified Bessel functions ---------------------------------------------------------------------

_I0E_NEAR = Series(special.i0e, 0.0, 3.0, 14)
_I0E_MIDDLE = Series(special.i0e, 3.0, 8.0, 13)
_I0E_FAR = Series(lambda u: special.i0e(1.0 / u) / u.sqrt(), 0.0, 0.125, 9)
_I1E_NEAR = Series(lambda x: special.i1e(x) / x, 0.0, 3.0, 14)
_I1E_MIDDLE = Series(lambda x: special.i1e(x) / x, 3.0, 8.0, 13)
_I1E_FAR = Series(lambda u: special.i1e(1.0 / u) / u.sqrt(), 0.0, 0.125, 9)


def _i0e(b: Builder, magnitude: Value) -> Value:
    near, middle = _I0E_NEAR.of(b, magnitude), _I0E_MIDDLE.of(b, magnitude)
    far = b.mul(_I0E_FAR.of(b, b.reciprocal(magnitude)), b.unary("rsqrt", magnitude))
    return first_of(b, magnitude, (3.0, near), (8.0, middle), last=far)


def _i1e(b: Builder, magnitude: Value) -> Value:
    near = b.mul(_I1E_NEAR.of(b, magnitude), magnitude)
    middle = b.mul(_I1E_MIDDLE.of(b, magnitude), magnitude)
    far = b.mul(_I1E_FAR.of(b, b.reciprocal(magnitude)), b.unary("rsqrt", magnitude))
    return first_of(b, magnitude, (3.0, near), (8.0, middle), last=far)


@lowers(aten.special_i0e, flops=50)
def i0e(b: Builder, x: Operand) -> Value:
    return _i0e(b, b.unary("abs", b.float_value(x)))


@lowers(aten.i0, aten.special_modified_bessel_i0, flops=52)
def i0(b: Builder, x: Operand) -> Value:
    magnitude = b.unary("abs", b.float_value(x))
    return b.mul(_i0e(b, magnitude), b.unary("exp", magnitude))


@lowers(aten.special_i1e, flops=54)
def i1e(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    return b.with_sign(_i1e(b, b.unary("abs", x)), x)


@lowers(aten.special_i1, aten.special_modified_bessel_i1, flops=56)
def i1(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    return b.with_sign(b.mul(_i1e(b, magnitude), b.unary("exp", magnitude)), x)


def _k0_rest(z: torch.Tensor) -> torch.Tensor:
    x = z.sqrt()
    rest: torch.Tensor = special.modified_bessel_k0(x) + (x / 2.0).log() * special.i0(x)
    return rest


def _k1_rest(z: torch.Tensor) -> torch.Tensor:
    x = z.sqrt()
    rest: torch.Tensor = x * (special.modified_bessel_k1(x) - (x / 2.0).log() * special.i1(x))
    return rest


_I0_NEAR = Series(lambda z: special.i0(z.sqrt()), 0.0, 4.0, 7)
_I1_NEAR = Series(lambda z: special.i1(z.sqrt()) / z.sqrt(), 0.0, 4.0, 7)
_K0_NEAR = Series(_k0_rest, 0.0, 4.0, 7)
_K1_NEAR = Series(_k1_rest, 0.0, 4.0, 7)
_K0_FAR = Series(lambda u: special.scaled_modified_bessel_k0(1.0 / u) / u.sqrt(), 0.0, 0.5, 12)
_K1_FAR = Series(lambda u: special.scaled_modified_bessel_k1(1.0 / u) / u.sqrt(), 0.0, 0.5, 12)


def _k(b: Builder, x: Value, near: Value, far: Series, scaled: bool) -> Value:
    """`near` up to 2, behind it what `far` gives; times exp(x) where `scaled`."""
    rest = b.mul(far.of(b, b.reciprocal(x)), b.unary("rsqrt", x))
    if scaled:
        near = b.mul(near, b.unary("exp", x))
    else:
        rest = b.mul(rest, b.unary("exp", b.mul(x, -1.0)))
    return first_of(b, x, (2.0, near), last=rest)


def _k0(b: Builder, x: Operand, scaled: bool) -> Value:
    x = b.float_value(x)
    square, logarithm = b.mul(x, x), _minus_log(b, b.mul(x, 0.5))
    near = b.add(_K0_NEAR.of(b, square), b.mul(_I0_NEAR.of(b, square), logarithm))
    return _k(b, x, near, _K0_FAR, scaled)


def _k1(b: Builder, x: Operand, scaled: bool) -> Value:
    x = b.float_value(x)
    square, logarithm = b.mul(x, x), b.unary("log", b.mul(x, 0.5))
    product = b.mul(b.mul(_I1_NEAR.of(b, square), x), logarithm)
    near = b.add(b.mul(_K1_NEAR.of(b, square), b.reciprocal(x)), product)
    near = b.select(b.compare("equal", x, 0.0), math.inf, near, torch.float32)
    return _k(b, x, near, _K1_FAR, scaled)


@lowers(aten.special_modified_bessel_k0, flops=50)
def modified_bessel_k0(b: Builder, x: Operand) -> Value:
    return _k0(b, x, scaled=False)


@lowers(aten.special_scaled_modified_bessel_k0, flops=50)
def scaled_modified_bessel_k0(b: Builder, x: Operand) -> Value:
    return _k0(b, x, scaled=True)


@lowers(aten.special_modified_bessel_k1, flops=52)
def modified_bessel_k1(b: Builder, x: Operand) -> Value:
    return _k1(b, x, scaled=False)


@lowers(aten.special_scaled_modified_bessel_k1, flops=52)
def scaled_modified_bessel_k1(b: Builder, x: Operand) -> Value:
    return _k1(b, x, scaled=True)


# -- spherical Bessel function ---------------------------------------------------------------------


@lowers(aten.special_spherical_bessel_j0, flops=45)
def spherical_bessel_j0(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    ratio = b.mul(b.unary("sin", sine_angle(b, x)), b.reciprocal(x))
    ratio = b.select(b.compare("equal", b.unary("abs", x), math.inf), 0.0, ratio, torch.float32)
    # What is smaller has an infinite inverse.
    is_tiny = b.compare("less", b.unary("abs", x), 2.0**-13)
    return b.select(is_tiny, 1.0, ratio, torch.float32)


# -- Bessel functions ------------------------------------------------------------------------------

_BESSEL_FAR = 8.0


def _phase(order: int, u: torch.Tensor, *, quadrature: bool) -> torch.Tensor:
    """P or Q of J = (2 / (pi x))^(1/2) (P cos(x - c) - Q sin(x - c)), c = (2 order + 1) pi / 4, at
    x = 1 / u (Abramowitz and Stegun, 9.2.5)."""
    x = 1.0 / u
    j: torch.Tensor = special.bessel_j1(x) if order else special.bessel_j0(x)
    y: torch.Tensor = special.bessel_y1(x) if order else special.bessel_y0(x)
    turned = x - (2 * order + 1) * math.pi / 4.0
    size = (math.pi * x / 2.0).sqrt()
    if quadrature:
        return size * (y * turned.cos() - j * turned.sin())
    return size * (j * turned.cos() + y * turned.sin())


_PHASES = [
    [
        Series(partial(_phase, order, quadrature=quadrature), 0.0, 1.0 / _BESSEL_FAR, 7)
        for quadrature in (False, True)
    ]
    for order in (0, 1)
]
_SQUARE = _BESSEL_FAR**2
_J0 = Series(lambda z: special.bessel_j0(z.sqrt()), 0.0, _SQUARE, 13)
_J1 = Series(lambda z: special.bessel_j1(z.sqrt()) / z.sqrt(), 0.0, _SQUARE, 13)
_Y0 = Series(
    lambda z: special.bessel_y0(z.sqrt()) - special.bessel_j0(z.sqrt()) * z.log() / math.pi,
    0.0,
    _SQUARE,
    14,
)
_Y1 = Series(
    lambda z: (
        (
            special.bessel_y1(z.sqrt())
            - special.bessel_j1(z.sqrt()) * z.log() / math.pi
            + 2.0 / (math.pi * z.sqrt())
        )
        / z.sqrt()
    ),
    0.0,
    _SQUARE,
    14,
)


def _wave(b: Builder, order: int, x: Value, *, second: bool) -> Value:
    """J or, where `second`, Y of x > 8; NaN where that is infinite, as in eager."""
    sine, cosine = b.unary("sin", sine_angle(b, x)), b.unary("sin", cosine_angle(b, x))
    total, difference = b.add(sine, cosine), b.sub(sine, cosine)
    # cos(x - c) and sin(x - c), times the root of 2.
    across, along = (total, difference) if order == 0 else (difference, b.mul(total, -1.0))
    inverse = b.reciprocal(x)
    p, q = (series.of(b, inverse) for series in _PHASES[order])
    if second:
        sum_ = b.add(b.mul(p, along), b.mul(q, across))
    else:
        sum_ = b.sub(b.mul(p, across), b.mul(q, along))
    result = b.mul(b.mul(sum_, b.unary("rsqrt", x)), 1.0 / math.sqrt(math.pi))
    return b.select(b.compare("equal", x, math.inf), math.nan, result, torch.float32)


@lowers(aten.special_bessel_j0, flops=120)
def bessel_j0(b: Builder, x: Operand) -> Value:
    magnitude = b.unary("abs", b.float_value(x))
    near = _J0.of(b, b.mul(magnitude, magnitude))
    far = _wave(b, 0, magnitude, second=False)
    return first_of(b, magnitude, (_BESSEL_FAR, near), last=far)


@lowers(aten.special_bessel_j1, flops=120)
def bessel_j1(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    near = b.mul(_J1.of(b, b.mul(magnitude, magnitude)), magnitude)
    found = first_of(b, magnitude, (_BESSEL_FAR, near), last=_wave(b, 1, magnitude, second=False))
    return b.mul(found, b.bits(x, -(2**31), 0x3F800000))


@lowers(aten.special_bessel_y0, flops=140)
def bessel_y0(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    square = b.mul(x, x)
    logarithm = b.mul(b.unary("log", x), 2.0 / math.pi)
    near = b.add(b.mul(_J0.of(b, square), logarithm), _Y0.of(b, square))
    return first_of(b, x, (_BESSEL_FAR, near), last=_wave(b, 0, x, second=True))


@lowers(aten.special_bessel_y1, flops=140)
def bessel_y1(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    square = b.mul(x, x)
    logarithm = b.mul(b.unary("log", x), 2.0 / math.pi)
    smooth = b.mul(b.add(b.mul(_J1.of(b, square), logarithm), _Y1.of(b, square)), x)
    near = b.sub(smooth, b.mul(b.reciprocal(x), 2.0 / math.pi))
    near = b.select(b.compare("equal", x, 0.0), -math.inf, near, torch.float32)
    return first_of(b, x, (_BESSEL_FAR, near), last=_wave(b, 1, x, second=True))
