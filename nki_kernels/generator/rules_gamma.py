"""Lowerings of the logarithm of the gamma function and its first two derivatives.

Positive arguments by series, after a recurrence where they are small; negative ones by reflection,
whose sines take the exact distance to the nearest integer (Abramowitz and Stegun, chapter 6).
"""

from __future__ import annotations

import math

import torch

from trnx.nki_kernels.generator.ir import Builder, Operand, Value
from trnx.nki_kernels.generator.series import Series, first_of
from trnx.nki_kernels.generator.table import lowers
from trnx.nki_kernels.generator.whole_numbers import rounded
from trnx.simulator.errors import Reject

aten = torch.ops.aten

# Of log(gamma(x)), (x - 1)(x - 2) is taken out: what is left has no zero.
_LOG_NEAR = Series(lambda x: torch.lgamma(x) / ((x - 1.0) * (x - 2.0)), 0.5, 3.0, 16)
_SHIFT = 6  # steps of the recurrence, after which the series is a short one
_HALF_LOG_TURN = 0.5 * math.log(2.0 * math.pi)


def _log_rest(u: torch.Tensor) -> torch.Tensor:
    """x (log(gamma(x)) - Stirling's formula) at x = 1 / u."""
    x = 1.0 / u
    return x * (torch.lgamma(x) - (x - 0.5) * x.log() + x - _HALF_LOG_TURN)


_LOG_FAR = Series(_log_rest, 0.001, 1.0 / 3.0, 8)


def _distance(b: Builder, x: Value) -> Value:
    """x minus the nearest integer, times pi; NaN where x is infinite."""
    return b.mul(b.sub(x, rounded(b, x)), math.pi)


def _log_of_positive(b: Builder, x: Value) -> Value:
    low = b.compare("less", x, 0.5)
    raised = b.add(x, low)
    logarithm = b.unary("log", x)
    product = b.mul(b.sub(raised, 1.0), b.sub(raised, 2.0))
    near = b.mul(_LOG_NEAR.of(b, raised), product)
    near = b.select(low, b.sub(near, logarithm), near, torch.float32)
    inverse = b.reciprocal(x)
    # (x - 1/2) (log x - 1) - 1/2 does not overflow before the result does.
    main = b.add(b.mul(b.sub(x, 0.5), b.sub(logarithm, 1.0)), _HALF_LOG_TURN - 0.5)
    far = b.add(main, b.mul(_LOG_FAR.of(b, inverse), inverse))
    return first_of(b, x, (3.0, near), last=far)


@lowers(aten.lgamma, flops=90)
def lgamma(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    magnitude = b.unary("abs", x)
    is_negative = b.compare("less", x, 0.0)
    positive = _log_of_positive(b, magnitude)
    # gamma(x) gamma(-x) = -pi / (x sin(pi x))
    sine = b.unary("abs", b.unary("sin", _distance(b, magnitude)))
    product = b.add(b.unary("log", sine), b.unary("log", magnitude))
    reflected = b.sub(b.sub(math.log(math.pi), product), positive)
    reflected = b.select(b.compare("equal", sine, 0.0), math.inf, reflected, torch.float32)
    result = b.select(is_negative, reflected, positive, torch.float32)
    return b.select(b.compare("equal", magnitude, math.inf), magnitude, result, torch.float32)


def _harmonic(b: Builder, x: Value, power: int) -> Value:
    """The sum of (x + k)^-power for k below the shift."""
    total: Value | None = None
    for k in range(_SHIFT):
        term = b.reciprocal(b.add(x, float(k)) if k else x)
        term = b.mul(term, term) if power == 2 else term
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def _digamma_rest(u: torch.Tensor) -> torch.Tensor:
    """(digamma(x) - log(x)) x at x = 1 / u."""
    x = 1.0 / u
    return (torch.digamma(x) - x.log()) * x


def _trigamma_rest(u: torch.Tensor) -> torch.Tensor:
    return torch.polygamma(1, 1.0 / u) / u


_DIGAMMA_FAR = Series(_digamma_rest, 0.0, 1.0 / _SHIFT, 6)
_TRIGAMMA_FAR = Series(_trigamma_rest, 0.0, 1.0 / _SHIFT, 6)


@lowers(aten.digamma, flops=80)
def digamma(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    is_negative = b.compare("less", x, 0.0)
    mirrored = b.select(is_negative, b.sub(1.0, x), x, torch.float32)
    high = b.add(mirrored, float(_SHIFT))
    inverse = b.reciprocal(high)
    smooth = b.add(b.unary("log", high), b.mul(_DIGAMMA_FAR.of(b, inverse), inverse))
    positive = b.sub(smooth, _harmonic(b, mirrored, 1))
    angle = _distance(b, x)
    # cos(angle), of an angle up to pi / 2.
    cosine = b.unary("sin", b.sub(math.pi / 2.0, b.unary("abs", angle)))
    ratio = b.mul(cosine, b.reciprocal(b.unary("sin", angle)))
    reflected = b.sub(positive, b.mul(ratio, math.pi))
    result = b.select(is_negative, reflected, positive, torch.float32)
    # At negative integers there is no value.
    is_pole = b.alu("logical_and", is_negative, b.compare("equal", angle, 0.0), torch.bool)
    result = b.select(is_pole, math.nan, result, torch.float32)
    # The pole at zero has the sign that zero does not.
    pole = b.mul(b.reciprocal(x), -1.0)
    return b.select(b.compare("equal", x, 0.0), pole, result, torch.float32)


def _trigamma(b: Builder, x: Operand) -> Value:
    x = b.float_value(x)
    is_low = b.compare("less", x, 0.5)
    mirrored = b.select(is_low, b.sub(1.0, x), x, torch.float32)
    high = b.add(mirrored, float(_SHIFT))
    inverse = b.reciprocal(high)
    positive = b.add(_harmonic(b, mirrored, 2), b.mul(_TRIGAMMA_FAR.of(b, inverse), inverse))
    ratio = b.mul(b.reciprocal(b.unary("sin", _distance(b, x))), math.pi)
    reflected = b.sub(b.mul(ratio, ratio), positive)
    return b.select(is_low, reflected, positive, torch.float32)


@lowers(aten.polygamma, flops=80)
def polygamma(b: Builder, order: int, x: Operand) -> Value | Reject:
    if order == 0:
        value: Value = digamma(b, x)
        return value
    if order == 1:
        return _trigamma(b, x)
    return Reject("derivatives of digamma behind the first are sums of powers without an end")
