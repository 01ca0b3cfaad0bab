"""Conversions between integers of two words and float32, as eager rounds them."""

from __future__ import annotations

import torch

from trnx.nki_kernels.generator.ir import Builder, Operand, Value
from trnx.nki_kernels.generator.whole_numbers import truncated
from trnx.nki_kernels.generator.words import (
    SIGN_BIT,
    WORD_RANGE,
    Words,
    bitwise,
    fits,
    pack,
    range_of,
    words,
)


def to_float(b: Builder, x: Value) -> Value:
    """The int64 `x` in float32, rounded once, to nearest even.

    24 bits of the high word, the next 24 and the last 16 are exact in float32. The sum of the first
    two leaves an exact remainder; where the number is longer than 40 bits, so that the last part
    only decides on which side of a tie it lies, a single bit stands for all 16.
    """
    low, high = words(b, x)
    if fits(range_of(x), WORD_RANGE):
        assert isinstance(low, Value)
        return b.cast(low, torch.float32)
    top = _scaled(b, bitwise(b, high, ("bitwise_and", ~0xFF)), 2.0**32)
    upper = _scaled(b, bitwise(b, high, ("bitwise_and", 0xFF)), 2.0**32)
    middle = b.add(upper, _scaled(b, bitwise(b, low, ("right_shift", 16)), 2.0**16))
    last = _scaled(b, bitwise(b, low, ("bitwise_and", 0xFFFF)), 1.0)
    total = b.add(top, middle)
    rest = b.sub(middle, b.sub(total, top))
    # Longer than 40 bits: `top` is neither 0 nor -2^40.
    is_long = b.compare("greater", b.unary("abs", b.add(top, 2.0**39)), 2.0**39)
    sticky = b.mul(b.compare("greater", last, 0.0), 2.0**15)
    return b.add(total, b.add(rest, b.select(is_long, sticky, last, torch.float32)))


def _scaled(b: Builder, word: Operand, factor: float) -> Value:
    """A word of at most 24 bits that are not zero, times a power of two."""
    if not isinstance(word, Value):
        return b.constant(word * factor, torch.float32, frozenset())
    return b.make("alu", "multiply", (word, factor), torch.float32)


def from_float(b: Builder, x: Operand) -> Value:
    """The float `x` without its fraction in int64; what int64 does not hold, NaN included, is its
    smallest number, as the conversion of x86 gives it.
    """
    whole = truncated(b, x)
    is_inside = b.compare("less", b.unary("abs", whole), 2.0**63)
    high = truncated(b, b.mul(whole, 2.0**-32))
    # All steps are exact: the bits of `rest` and `high` are those of `whole`.
    rest = b.sub(whole, b.mul(high, 2.0**32))
    high = b.sub(high, b.compare("less", rest, 0.0))
    low = b.sub(rest, b.mul(b.compare("greater_equal", rest, 2.0**31), 2.0**32))
    low = b.add(low, b.mul(b.compare("less", low, -(2.0**31)), 2.0**32))
    parts = (
        b.select(is_inside, b.cast(word, torch.int32), outside, torch.int32)
        for word, outside in ((low, 0), (high, SIGN_BIT))
    )
    return pack(b, Words(*parts))
