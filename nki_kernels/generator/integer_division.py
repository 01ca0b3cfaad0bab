"""Integers divided by a positive number, and shifted by one: exact for all of int64.

VectorE divides in float32. So a number without sign is divided digit by digit, the highest first,
as by hand: what is left of a digit and the next one stay below 2^23, where a quotient rounded to an
integer is the right one or one too large. A negative number is the complement of one that is not,
and so is its quotient, rounded down.
"""

from __future__ import annotations

from typing import NamedTuple

from trnx.nki_kernels.generator.integers import absolute, arithmetic, choose, compare
from trnx.nki_kernels.generator.ir import Builder, Operand, Value
from trnx.nki_kernels.generator.words import (
    LONG_RANGE,
    WORD_RANGE,
    Words,
    bitwise,
    compare_small,
    extended,
    fits,
    on_bits,
    pack,
    range_of,
    small,
    words,
    wrapping,
)
from trnx.simulator.errors import Reject

_EXACT = 2**23  # of what is divided at a time, and of a product a divisor larger
_WIDTHS = (16, 8, 4)


class _Division(NamedTuple):
    quotient: Words
    rest: Operand


def _width(divisor: Operand) -> int | Reject:
    """The bits of a digit."""
    if isinstance(divisor, Value) or not isinstance(divisor, int) or divisor < 1:
        return Reject(f"integers are divided by positive numbers, not by {divisor}")
    for width in _WIDTHS:
        if divisor << width <= _EXACT:
            return width
    return Reject(f"integers are divided by numbers up to {_EXACT >> _WIDTHS[-1]}, not {divisor}")


def _step(b: Builder, value: Operand, divisor: int, most: int) -> tuple[Operand, Operand]:
    """Quotient and rest of a `value` from 0 to `most`."""
    high = most // divisor + 1
    near = small(b, "multiply", value, 1.0 / divisor, (0, high))
    rest = small(b, "subtract", value, small(b, "multiply", near, divisor, (0, high * divisor)),
                 (-divisor, divisor))  # fmt: skip
    above = compare_small(b, "less", rest, 0)
    quotient = small(b, "subtract", near, above, (0, high))
    back = small(b, "multiply", above, divisor, (0, divisor))
    return quotient, small(b, "add", rest, back, (0, divisor - 1))


def _divide_words(b: Builder, parts: Words, divisor: int, width: int, is_short: bool) -> _Division:
    """Words without sign; the high one is 0 where the number `is_short`."""
    found: dict[int, Operand] = {0: 0, 1: 0}
    rest: Operand = 0
    for place in reversed(range(0, 32 if is_short else 64, width)):
        word, shift = parts[place // 32], place % 32
        digit = bitwise(b, word, ("right_shift", shift), ("bitwise_and", 2**width - 1))
        value: Operand = digit
        if isinstance(rest, Value):
            most = (divisor << width) - 1
            upper = small(b, "multiply", rest, 2**width, (0, most))
            value = small(b, "add", upper, digit, (0, most))
        quotient, rest = _step(b, value, divisor, (divisor << width) - 1)
        part = bitwise(b, quotient, ("left_shift", shift))
        held = found[place // 32]
        found[place // 32] = part if held == 0 else on_bits(b, "bitwise_or", held, part)
    return _Division(Words(found[0], found[1]), rest)


def _complement(b: Builder, parts: Words, mask: Operand) -> Words:
    """The complement of the words where the mask is -1; they stay where it is 0."""
    return Words(*(on_bits(b, "bitwise_xor", word, mask) for word in parts))


def _down(b: Builder, x: Value, divisor: int, width: int) -> tuple[_Division, Operand]:
    """The division of x, or of its complement where it is negative, and the mask that says so."""
    here = range_of(x)
    parts = words(b, x)
    is_short = fits(here, WORD_RANGE)
    if here[0] >= 0:
        return _divide_words(b, parts, divisor, width, is_short), 0
    mask = parts.high
    assert isinstance(mask, Value)
    if not is_short:
        mask = _shift_word(b, mask, 31)
    return _divide_words(b, _complement(b, parts, mask), divisor, width, is_short), mask


def floor_divide(b: Builder, x: Operand, divisor: Operand) -> Operand | Reject:
    """x / divisor, rounded down, in int64."""
    width = _width(divisor)
    if isinstance(width, Reject) or not isinstance(x, Value):
        return width if isinstance(width, Reject) else Reject("a number is divided by a tensor")
    assert isinstance(divisor, int)
    if divisor == 1:
        return x
    (quotient, _), mask = _down(b, x, divisor, width)
    low, high = range_of(x)
    within = (low // divisor, high // divisor)
    if isinstance(mask, Value):
        quotient = _complement(b, quotient, mask)
    if fits(within, WORD_RANGE):
        return extended(b, quotient.low, within)
    return pack(b, quotient, within)


def truncate_divide(b: Builder, x: Operand, divisor: Operand) -> Operand | Reject:
    """x / divisor, rounded to zero, in int64."""
    width = _width(divisor)
    if isinstance(width, Reject) or not isinstance(x, Value) or range_of(x)[0] >= 0:
        return floor_divide(b, x, divisor)
    assert isinstance(divisor, int)
    if divisor == 1:
        return x
    is_short = range_of(x)[0] > WORD_RANGE[0] and fits(range_of(x), WORD_RANGE)
    # The smallest number is its own negative, whose words without sign are right.
    parts = words(b, absolute(b, x))
    quotient = pack(b, _divide_words(b, parts, divisor, width, is_short).quotient)
    return choose(b, compare(b, "less", x, 0), arithmetic(b, "subtract", 0, quotient), quotient)


def remainder(b: Builder, x: Operand, divisor: Operand) -> Operand | Reject:
    """What is left of x by a division that rounds down, in int64."""
    width = _width(divisor)
    if isinstance(width, Reject) or not isinstance(x, Value):
        return width if isinstance(width, Reject) else Reject("a number is divided by a tensor")
    assert isinstance(divisor, int)
    within = (0, divisor - 1)
    (_, rest), mask = _down(b, x, divisor, width)
    rest = extended(b, rest, within)
    if not isinstance(mask, Value):
        return rest
    return choose(b, compare(b, "less", x, 0), arithmetic(b, "subtract", divisor - 1, rest), rest)


# -- shifts --------------------------------------------------------------------------------------


def _shift_word(b: Builder, word: Operand, places: int) -> Operand:
    """A word with sign shifted to the right."""
    if places == 0:
        return word
    sign = 1 << (31 - places)
    moved = bitwise(b, word, ("right_shift", places), ("bitwise_xor", sign))
    return wrapping(b, "subtract", moved, sign)


def shift_left(b: Builder, x: Value, places: int) -> Operand:
    """x * 2^places in int64, which wraps around; `places` from 0 to 63."""
    parts = words(b, x)
    low, high = (end << places for end in range_of(x))
    if places == 0:
        return x
    if fits((low, high), WORD_RANGE):
        return extended(b, bitwise(b, parts.low, ("left_shift", places)), (low, high))
    within = (low, high) if fits((low, high), LONG_RANGE) else LONG_RANGE
    if places >= 32:
        return pack(b, Words(0, bitwise(b, parts.low, ("left_shift", places - 32))), within)
    upper = bitwise(b, parts.high, ("left_shift", places))
    carried = bitwise(b, parts.low, ("right_shift", 32 - places))
    return pack(
        b,
        Words(
            bitwise(b, parts.low, ("left_shift", places)), on_bits(b, "bitwise_or", carried, upper)
        ),
        within,
    )


def shift_right(b: Builder, x: Value, places: int) -> Operand:
    """x / 2^places, rounded down, in int64; `places` from 0 to 63."""
    parts = words(b, x)
    low, high = (end >> places for end in range_of(x))
    if places == 0:
        return x
    if fits(range_of(x), WORD_RANGE):
        return extended(b, _shift_word(b, parts.low, min(places, 31)), (low, high))
    if places >= 32:
        return extended(b, _shift_word(b, parts.high, places - 32), (low, high))
    below = bitwise(b, parts.low, ("right_shift", places))
    carried = bitwise(b, parts.high, ("left_shift", 32 - places))
    whole = Words(on_bits(b, "bitwise_or", below, carried), _shift_word(b, parts.high, places))
    return pack(b, whole, (low, high))
