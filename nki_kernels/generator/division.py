"""Division in float32, rounded as IEEE 754 demands, from the operators that NKI has.

NKI has no divide operator (SDK/nki/api/nki.api.shared.rst, "Supported Math Operators"), and a
product with the reciprocal is one unit in the last place off in a quarter of the cases, which flips
`round(x / scale)` at ties. So the product is corrected once, by its exact remainder: q - (q y - x)
/ y. float32 holds the remainder when products are split in halves (T. J. Dekker, "A floating-point
technique for extending the available precision", 1971). The correction is within 2^-23 of itself:
the quotient is right but where it lies within 2^-22 units in the last place of the middle of two
numbers, and where float32 has it.

ScalarE gives the reciprocal, eight times as fast as VectorE, of mantissas alone: it takes numbers
from 2^-42 to 2^42 (the same page). Its error on the device is not published; the correction squares
it. Operands are scaled by powers of two so that no remainder is below the normal numbers. A
quotient below 2^-126 is rounded twice, and may be 2^-149 off.

A mean, whose sum is rounded in another order than eager's, takes a shorter way (`divide_total`).
A quotient that a sum rounds again needs none of this (`rounding.py`).
A quotient of bfloat16 needs no remainder: it is at least 2^-17 (relative) away from where its
rounding changes; ScalarE's reciprocal must be within half of that. Half precision by a number is a
product with a number where all 65,536 products round to what the quotients round to, which is
tried when the kernel is built.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from trnx.nki_kernels.generator.ir import Builder, Operand, Value

_MANTISSA, _ONE = 0x007FFFFF, 0x3F800000
_SIGN, _EXPONENT = -(2**31), 0x7F800000
_MAGNITUDE = 0x7FFFFFFF
_LEADING = -(2**12)  # sign, exponent and 11 bits of the mantissa
_LEADING_MANTISSA = _MANTISSA & _LEADING
_LEADING_16 = -(2**8)  # of a number of 16 bits
# Both operands: times 2^64 where one is below, else by 4. An operand that overflows then belongs to
# a quotient that is zero or infinite; none is above 2^126, so that no product overflows.
_SMALL, _ENLARGE, _REDUCE = 2.0**-86, 2.0**64, 0.25
# One operand: times 2^60 below 1, else 2^-60, whose exponents differ in these bits.
_POWER = 2.0**60
_POWERS_DIFFER = ((127 + 60) ^ (127 - 60)) << 23
_LARGEST_BFLOAT16 = torch.finfo(torch.bfloat16).max
# Numbers whose sum in float32 is more than a unit in the last place off, and how far, relative, the
# reciprocal of their count is at the most where a product with it needs no correction.
_MANY, _NEAR_ENOUGH = 256, 2.0**-25
_LARGEST = 2.0**126  # of the products with a reciprocal that are not infinite


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
        return b.mul(x, _reciprocal(b, y) if isinstance(y, Value) else 1.0 / y)
    if not isinstance(y, Value):
        assert isinstance(x, Value)
        if x.dtype is b.out and b.out in (torch.bfloat16, torch.float16):
            factor = _half_factor(b.out, y)
            if factor is not None:
                return b.mul(x, factor)
        if 1.0 / _POWER <= abs(y) <= _POWER:
            return _by_number(b, x, y)
        return _by_few(b, x, b.constant(y, torch.float32, frozenset()))
    if b.out is torch.bfloat16 and _is_bfloat16(x) and y.dtype is torch.bfloat16:
        return _bfloat16_quotient(b, x, y)
    if isinstance(x, Value) and y.axes < x.axes:
        return _by_few(b, x, y)
    return _by_many(b, x, y)


def divide_total(b: Builder, total: Value, count: int) -> Value:
    """total / count for a sum of floats: the quotient where float32 has it, so that a mean of equal
    numbers is that number, else within 0.501 units in the last place, which is less than what the
    order of the sum changes.

    The total is the sum of a bfloat16 and the rest, and the reciprocal that of 16 bits and the
    rest: the product of the first ones is exact, the others are 2^-8 of it. An infinite total is
    the largest bfloat16, and has an infinite rest. Five instructions, four of them in a chain,
    where `divide` takes 26. A total of many numbers has a shorter way (`_divide_total_of_many`). A
    mean that is a step to a `loose_quotient`, and half precision, which rounds it to the same, have
    the product with the reciprocal: it is within 2^-22.
    """
    half = b.out in (torch.bfloat16, torch.float16)
    if _inverts_exactly(count) or half or not b.rounds_quotients:
        return b.mul(total, 1.0 / count)
    if count >= _MANY:
        return _divide_total_of_many(b, total, count)
    bounded = b.maximum(b.minimum(total, _LARGEST_BFLOAT16), -_LARGEST_BFLOAT16)
    leading = b.cast(bounded, torch.bfloat16)
    high = b.bits(1.0 / count, _LEADING_16, 0)
    assert isinstance(high, float)
    rest = b.sub(total, leading)
    low = b.add(b.mul(rest, 1.0 / count), b.mul(leading, 1.0 / count - high))
    return b.add(b.mul(leading, high), low)


def _divide_total_of_many(b: Builder, total: Value, count: int) -> Value:
    """The same within one unit in the last place, where the sum alone is further off: the quotient
    where float32 has it. One instruction or two.

    The product with a reciprocal that is 2^-25 (relative) off at the most is within half of the
    unit of a quotient that float32 has: it is rounded to that. Where the reciprocal is further off
    it is the one below, and the product gets the share of itself that this lacks. What is left to a
    quotient that float32 has is again half of a unit at the most.
    """
    inverse, lacking = _reciprocal_below(count)
    found = b.mul(total, inverse)
    return b.add(b.mul(found, lacking), found) if lacking else found


def _reciprocal_below(count: int) -> tuple[float, float]:
    """A float32 number near 1 / count, and the share of this that it lacks, more than 0, or 0 where
    it is near enough. float64 has its product with a count below 2^29."""
    inverse = _float32(1.0 / count)
    if abs(1.0 - inverse * count) <= _NEAR_ENOUGH:
        return inverse, 0.0
    if inverse * count > 1.0:
        inverse = _float32(inverse * (1.0 - 2.0**-24))  # the number below
    return inverse, 1.0 - inverse * count


def _reciprocal(b: Builder, y: Value) -> Value:
    """1 / y; of a root a power, which VectorE has at its full rate."""
    if (y.op, y.name) != ("unary", "sqrt"):
        return b.reciprocal(y)
    (square,) = y.args
    return b.alu("power", square, -0.5)


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
    return rounded == x and abs(x) >= 2.0**-126


@functools.lru_cache(maxsize=4096)
def _half_factor(dtype: torch.dtype, divisor: float) -> float | None:
    """What gives, multiplied with any number of `dtype`, its quotient by `divisor`: the float32
    nearest to the reciprocal or one next to it, None where all three round some product to
    another number."""
    with unset_fake_temporarily(), torch.no_grad():
        return _tried_factor(dtype, divisor)


def _tried_factor(dtype: torch.dtype, divisor: float) -> float | None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32, device="cpu").to(torch.int16).view(dtype)
    wide = x.float()
    expected = (wide / divisor).to(dtype)
    nearest = torch.tensor(divisor, dtype=torch.float32, device="cpu").reciprocal()
    ends = [nearest.new_tensor(end) for end in (math.inf, -math.inf)]
    for factor in (nearest, *(torch.nextafter(nearest, end) for end in ends)):
        found = (wide * factor).to(dtype)
        same = found.view(torch.int16) == expected.view(torch.int16)
        if bool((same | found.isnan() & expected.isnan()).all()):
            return factor.item()
    return None


def _bfloat16_quotient(b: Builder, x: Operand, y: Value) -> Value:
    """x times half a power of two times twice the reciprocal of y times it, in [1, 2) but for
    zeros, infinities, NaN and denormal numbers, which stay what they are. A quarter of x is exact.
    A root is neither so large that its reciprocal is no normal number nor so small that it
    overflows: that is a power, which VectorE has at its full rate.
    """
    if _is_root(y):
        return b.mul(x, b.alu("power", y, -1.0))
    unit: Operand = b.bits(y, _EXPONENT, _EXPONENT)
    unit = b.minimum(b.maximum(unit, 2.0**-126), 2.0**127)
    mantissa = b.mul(b.mul(y, 0.5), unit)
    inverse = b.unary("reciprocal", b.mul(mantissa, 0.5))
    return b.mul(b.mul(b.mul(x, 0.25), unit), inverse)


def _is_root(y: Value) -> bool:
    """Whether y is a square root, rounded or not: zero, infinite, NaN or in [2^-75, 2^64]."""
    while y.op == "cast":
        (source,) = y.args
        assert isinstance(source, Value)
        y = source
    return (y.op, y.name) == ("unary", "sqrt")


class _Mantissa(NamedTuple):
    """A number in [1, 2) as the sum of two of at most 12 bits, `low` None where that is zero, and
    its reciprocal."""

    high: Operand
    low: Operand | None
    inverse: Operand


def _mantissa(b: Builder, y: Value, dtype: torch.dtype) -> _Mantissa:
    """That of y, no denormal number, whose bits are those of a number of `dtype`."""
    whole = b.bits(y, _MANTISSA, _ONE)
    inverse = b.unary("reciprocal", whole)
    if dtype in (torch.bfloat16, torch.float16):
        return _Mantissa(whole, None, inverse)
    high = b.bits(y, _LEADING_MANTISSA, _ONE)
    return _Mantissa(high, b.sub(whole, high), inverse)


def _corrected(b: Builder, x: Operand, y: _Mantissa) -> Value:
    """x / y; x has no remainder below the normal numbers, and is at most `_LARGEST` or infinite.

    The signs of zeros stay because y is positive, and an infinite x because it has an infinite
    remainder to a quotient that is not.
    """
    found = b.minimum(b.mul(x, y.inverse), _LARGEST)
    found = b.maximum(found, -_LARGEST)
    high = b.bits(found, _LEADING, 0)
    assert isinstance(high, Value)
    parts = high, b.sub(found, high)
    excess = b.sub(b.mul(high, y.high), x)
    for left, right in ((parts[0], y.low), (parts[1], y.high), (parts[1], y.low)):
        if right is not None:
            excess = b.add(b.mul(left, right), excess)
    return b.sub(found, b.mul(excess, y.inverse))


def _magnitude_below(b: Builder, x: Value, bound: float) -> Value:
    return b.compare("less", b.unary("abs", x), bound)


# -- by a number, or by what varies over fewer axes ------------------------------------------------


class _Scaled(NamedTuple):
    """`value` is an operand times `factor`, 2^60 or 2^-60; between 2^-89 and 2^68."""

    value: Value
    factor: Value


def _scaled(b: Builder, x: Value) -> _Scaled:
    is_small = _magnitude_below(b, x, 1.0)
    factor = b.add(b.mul(is_small, _POWER - 1.0 / _POWER), 1.0 / _POWER)
    return _Scaled(b.mul(x, factor), factor)


def _inverse_of(b: Builder, factor: Value) -> Operand:
    return b.bits(factor, -1, _POWERS_DIFFER)


def _by_number(b: Builder, x: Value, y: float) -> Value:
    fraction, exponent = math.frexp(y)
    mantissa = abs(fraction) * 2.0
    high = b.bits(mantissa, _LEADING, 0)
    assert isinstance(high, float)
    parts = _Mantissa(high, mantissa - high or None, _float32(1.0 / mantissa))
    dividend = _scaled(b, x)
    quotient = _corrected(b, dividend.value, parts)
    unit = math.copysign(2.0 ** (1 - exponent), y)
    return b.mul(b.mul(quotient, unit), _inverse_of(b, dividend.factor))


def _by_few(b: Builder, x: Value, y: Value) -> Value:
    """What is computed of y alone takes no time to speak of."""
    dividend, divisor = _scaled(b, x), _scaled(b, b.cast(y, torch.float32))
    quotient = _corrected(b, dividend.value, _mantissa(b, divisor.value, y.dtype))
    unit = b.mul(_twice_unit_inverse(b, divisor.value), 0.5)
    unit = b.select(b.compare("equal", y, y), unit, math.nan, torch.float32)
    # Both factors at once: their product is 1 where one alone could overflow.
    factors = b.mul(_inverse_of(b, dividend.factor), divisor.factor)
    return b.mul(factors, b.mul(quotient, unit))


def _twice_unit_inverse(b: Builder, y: Value) -> Value:
    """2 / 2^e of y, no denormal number, in [2^e, 2^(e + 1)), with its sign: 255 minus the biased
    exponent, which gives zero for infinity, and infinity for zero."""
    found = b.bits(y, _SIGN | _EXPONENT, _EXPONENT)
    assert isinstance(found, Value)
    return found


# -- by what varies over as many axes --------------------------------------------------------------


def _by_many(b: Builder, x: Operand, y: Value) -> Value:
    least = b.minimum(b.bits(x, _MAGNITUDE, 0), b.bits(y, _MAGNITUDE, 0))
    dividend, divisor = x, y
    if not (isinstance(x, Value) and x.dtype is y.dtype is torch.float16):
        factor = b.add(b.mul(b.compare("less", least, _SMALL), _ENLARGE), _REDUCE)
        dividend, divisor = b.mul(factor, x), b.mul(factor, y)
    quotient = _corrected(b, dividend, _mantissa(b, divisor, y.dtype))
    result = b.mul(b.mul(quotient, 0.5), _twice_unit_inverse(b, divisor))
    # NaN where an operand is, or both are infinite; else -0.0, which changes nothing.
    return b.add(b.mul(least, -0.0), result)
