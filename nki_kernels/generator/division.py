"""Division in float32, rounded as IEEE 754 demands, from the operators that NKI has.

NKI has no divide operator (SDK/nki/api/nki.api.shared.rst, "Supported Math Operators"), and a
product with the reciprocal is one unit in the last place off in a quarter of the cases, which flips
`round(x / scale)` at ties. So the quotient of the mantissas is computed with the reciprocal, and
its remainder, which float32 holds exactly when the products are split in halves (T. J. Dekker, "A
floating-point technique for extending the available precision", 1971), says whether to go one unit
up or down. The reciprocal must be within half a unit, as the simulator's is; the device's error is
not published. A quotient below 2^-126 is rounded twice, and may be 2^-149 off.

A mean, whose sum is rounded in another order than eager's, takes a shorter way (`divide_total`).
A quotient that a sum rounds again needs none of this (`rounding.py`).
A quotient of bfloat16 needs none of this: it is at least 2^-17 (relative) away from where its
rounding changes, and the product with the reciprocal is within 2^-22.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from trnx.nki_kernels.generator.ir import Builder, Operand, Value

_SMALLEST = 2.0**-126
_NORMALISE = 2.0**24  # makes every denormal a normal number
_MANTISSA, _ONE = 0x007FFFFF, 0x3F800000
_SIGN_AND_EXPONENT, _EXPONENT = -0x00800000, 0x7F800000
_ULP = 2.0**-23  # of a quotient in [1, 2)
_LEADING = -(2**12)  # sign, exponent and 11 bits of the mantissa
_SPLIT = 1.5 * 2.0**12  # adding it to [1, 2] leaves 11 bits behind the point


def divide(b: Builder, x: Operand, y: Operand) -> Value:
    """x / y; at most one of them is a number."""
    if not isinstance(y, Value):
        y = _float32(y)
        if _inverts_exactly(y):
            return b.mul(x, 1.0 / y if y else math.copysign(math.inf, y))
    elif not isinstance(x, Value) and abs(x) == 1:
        inverse = b.reciprocal(y)
        return inverse if x == 1 else b.mul(inverse, -1.0)
    x, y = b.to_float(x), b.to_float(y)
    if not b.rounds_quotients:
        return b.mul(x, b.reciprocal(y) if isinstance(y, Value) else 1.0 / y)
    if b.out is torch.bfloat16 and _is_bfloat16(x) and _is_bfloat16(y):
        return _bfloat16_quotient(b, x, y)
    return _quotient(b, x, y)


def divide_total(b: Builder, total: Value, count: int) -> Value:
    """total / count for a sum of floats: the quotient where float32 has it, so that a mean of equal
    numbers is that number, else within 0.501 units in the last place, which is less than what the
    order of the sum changes.

    The reciprocal is the sum of one of 12 bits and the rest, and so is the total: the product of
    the first halves is exact, the others are 2^-12 of it. Eight instructions, five of them in a
    chain, where `divide` takes 26. Half precision rounds the product with the reciprocal to the
    same: it is within 2^-22.
    """
    if _inverts_exactly(count) or b.out in (torch.bfloat16, torch.float16):
        return b.mul(total, 1.0 / count)
    leading = b.bits(total, _LEADING, 0)
    high = b.bits(1.0 / count, _LEADING, 0)
    assert isinstance(high, float)
    rest = b.add(b.mul(b.sub(total, leading), high), b.mul(total, 1.0 / count - high))
    # Infinity minus itself is NaN.
    is_finite = b.compare("less", b.unary("abs", total), math.inf)
    return b.add(b.mul(leading, high), b.select(is_finite, rest, 0.0, torch.float32))


def _float32(number: float) -> float:
    return torch.tensor(number, dtype=torch.float32, device="cpu").item()


def _inverts_exactly(number: float) -> bool:
    if number == 0.0 or math.isinf(number):
        return True
    return abs(math.frexp(number)[0]) == 0.5 and abs(number) <= 2.0**126


def _is_bfloat16(x: Operand) -> bool:
    if isinstance(x, Value):
        return x.dtype is torch.bfloat16
    rounded = torch.tensor(x, dtype=torch.bfloat16, device="cpu").item()
    return rounded == x and abs(x) >= _SMALLEST


def _bfloat16_quotient(b: Builder, x: Operand, y: Operand) -> Value:
    if not isinstance(y, Value):
        return b.mul(x, 1.0 / y)
    divisor = _normal(b, y)
    return b.mul(b.mul(x, divisor.factor), b.reciprocal(divisor.value))


class _Normal(NamedTuple):
    """`value` is an operand times `factor`, and no denormal number; `inverse` is 1 / factor."""

    value: Operand
    factor: Operand
    inverse: Operand


def _normal(b: Builder, x: Operand) -> _Normal:
    if not isinstance(x, Value):
        number = _NORMALISE if abs(x) < _SMALLEST else 1.0
        return _Normal(x * number, number, 1.0 / number)
    is_small = b.compare("less", b.unary("abs", x), _SMALLEST)
    factor = b.add(b.mul(is_small, _NORMALISE - 1.0), 1.0)
    inverse = b.add(b.mul(is_small, 1.0 / _NORMALISE - 1.0), 1.0)
    return _Normal(b.mul(x, factor), factor, inverse)


def _quotient(b: Builder, x: Operand, y: Operand) -> Value:
    """Sign and exponent apart from the mantissas; infinities and zeros come out of the exponents,
    NaN is put in at the end.
    """
    dividend, divisor = _normal(b, x), _normal(b, y)
    a = b.bits(dividend.value, _MANTISSA, _ONE)
    c = b.bits(divisor.value, _MANTISSA, _ONE)
    is_less = b.compare("less", a, c)
    quotient = _mantissa(b, b.mul(b.add(is_less, 1.0), a), c)
    scale = b.bits(dividend.value, _SIGN_AND_EXPONENT, 0)
    # 255 minus the biased exponent: 2 / 2^e, with zero for infinity and infinity for zero.
    inverse = b.bits(divisor.value, _SIGN_AND_EXPONENT, _EXPONENT)
    inverse = b.mul(b.add(b.mul(is_less, -0.25), 0.5), inverse)
    # All exact but the last product.
    left = b.mul(b.mul(quotient, scale), divisor.factor)
    result = b.mul(left, b.mul(inverse, dividend.inverse))
    either = b.add(x, y)
    return b.select(b.compare("not_equal", either, either), either, result, torch.float32)


def _mantissa(b: Builder, a: Operand, c: Operand) -> Value:
    """a / c for c in [1, 2) and quotients in [1, 2)."""
    inverse = b.reciprocal(c) if isinstance(c, Value) else _float32(1.0 / c)
    quotient = b.maximum(b.mul(a, inverse), 1.0)  # less than 1.5 units off
    high, low = _halves(b, quotient)
    c_high, c_low = _halves(b, c)
    rest = a
    for left, right in ((high, c_high), (high, c_low), (low, c_high), (low, c_low)):
        rest = b.sub(rest, b.mul(left, right))
    up = b.compare("greater", rest, _times(b, c, _ULP / 2))
    down = b.compare("less", rest, _times(b, c, -_ULP / 2))
    return b.add(b.mul(b.sub(up, down), _ULP), quotient)


def _times(b: Builder, x: Operand, number: float) -> Operand:
    return b.mul(x, number) if isinstance(x, Value) else x * number


def _halves(b: Builder, x: Operand) -> tuple[Operand, Operand]:
    """x in [1, 2] as the sum of two numbers of at most 12 bits."""
    if not isinstance(x, Value):
        high = _float32(x + _SPLIT) - _SPLIT
        return high, x - high
    high_part = b.sub(b.add(x, _SPLIT), _SPLIT)
    return high_part, b.sub(x, high_part)
