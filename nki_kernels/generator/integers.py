"""Arithmetic, comparisons and bit operations of integers of any width, exact for all of int64.

`words.py` says how a range decides what an operation takes: float32, one word, or two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from trnx.nki_kernels.generator.ir import Builder, Operand, Value
from trnx.nki_kernels.generator.words import (
    EXACT,
    LONG_RANGE,
    SIGN_BIT,
    WORD_RANGE,
    WRAPPING,
    Range,
    Words,
    bitwise,
    compare_small,
    compare_words,
    extended,
    fits,
    halves,
    is_below,
    is_small,
    on_bits,
    pack,
    range_of,
    small,
    small_operand,
    words,
    wrapping,
)
from trnx.simulator.errors import Reject

# "less" with operands swapped, result negated.
_COMPARISONS = {
    "less": (False, False),
    "greater": (True, False),
    "greater_equal": (False, True),
    "less_equal": (True, True),
}
_SWAPPED = {
    "less": "greater",
    "greater": "less",
    "less_equal": "greater_equal",
    "greater_equal": "less_equal",
}


def _interval(name: str, x: Range, y: Range) -> Range:
    """The range of x <op> y, if nothing wraps around."""
    if name == "maximum":
        return max(x[0], y[0]), max(x[1], y[1])
    if name == "minimum":
        return min(x[0], y[0]), min(x[1], y[1])
    ends = [WRAPPING[name](*pair) for pair in itertools.product(x, y)]
    return min(ends), max(ends)


def arithmetic(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """x <op> y in int64, of any integers; `name` is add, subtract, multiply, maximum, minimum."""
    here = range_of(x), range_of(y)
    within = _interval(name, *here)
    if not isinstance(x, Value) and not isinstance(y, Value):
        return within[0]
    if name == "multiply" and not isinstance(y, Value) and y == 1:
        return x
    if name in ("add", "subtract") and not isinstance(y, Value) and y == 0:
        return x
    if is_small(within, *here):
        return extended(b, small(b, name, x, y, within), within)
    if all(fits(r, WORD_RANGE) for r in (within, *here)):
        return extended(b, b.integer(name, words(b, x).low, words(b, y).low), within)
    if name in ("maximum", "minimum"):
        first, second = (y, x) if name == "maximum" else (x, y)
        return choose(b, compare(b, "less", x, y), first, second)
    result = _LONG[name](b, words(b, x), words(b, y))
    return pack(b, result, within if fits(within, LONG_RANGE) else LONG_RANGE)


def _sum(b: Builder, x: Words, y: Words) -> Words:
    low = wrapping(b, "add", x.low, y.low)
    high = wrapping(b, "add", x.high, y.high)
    if not isinstance(y.low, Value) and y.low == 0:
        return Words(low, high)
    return Words(low, wrapping(b, "add", high, is_below(b, low, y.low)))


def _difference(b: Builder, x: Words, y: Words) -> Words:
    low = wrapping(b, "subtract", x.low, y.low)
    high = wrapping(b, "subtract", x.high, y.high)
    return Words(low, wrapping(b, "subtract", high, is_below(b, x.low, y.low)))


def _product(b: Builder, x: Words, y: Words) -> Words:
    """The low 64 bits of the product, from products of halves of words."""
    (x0, x1), (y0, y1) = halves(b, x.low), halves(b, y.low)
    p00, p01 = wrapping(b, "multiply", x0, y0), wrapping(b, "multiply", x0, y1)
    p10, p11 = wrapping(b, "multiply", x1, y0), wrapping(b, "multiply", x1, y1)
    (_, carry), (low1, high1), (low2, high2) = (halves(b, p) for p in (p00, p01, p10))
    middle = wrapping(b, "add", wrapping(b, "add", carry, low1), low2)
    high = p11
    for term in (
        high1, high2, halves(b, middle)[1],
        wrapping(b, "multiply", x.low, y.high), wrapping(b, "multiply", x.high, y.low),
    ):  # fmt: skip
        high = wrapping(b, "add", high, term)
    return Words(wrapping(b, "multiply", x.low, y.low), high)


_LONG: dict[str, Callable[[Builder, Words, Words], Words]] = {
    "add": _sum,
    "subtract": _difference,
    "multiply": _product,
}


def absolute(b: Builder, x: Operand) -> Operand:
    """|x|; that of the smallest number is itself, as in eager."""
    if range_of(x)[0] >= 0:
        return x
    return choose(b, compare(b, "less", x, 0), arithmetic(b, "subtract", 0, x), x)


def choose(b: Builder, mask: Operand, x: Operand, y: Operand) -> Operand:
    """x where mask else y."""
    within = min(range_of(x)[0], range_of(y)[0]), max(range_of(x)[1], range_of(y)[1])
    first, second = words(b, x), words(b, y)
    low = b.select(mask, first.low, second.low, torch.int32)
    if fits(within, WORD_RANGE):
        return extended(b, low, within)
    return pack(b, Words(low, b.select(mask, first.high, second.high, torch.int32)), within)


def compare(b: Builder, name: str, x: Operand, y: Operand) -> Value:
    """A comparison of any two integers, exact."""
    here = range_of(x), range_of(y)
    if not isinstance(x, Value) and isinstance(y, Value):
        return compare(b, _SWAPPED.get(name, name), y, x)
    if is_small(*here):
        return compare_small(b, name, x, y)
    if name in ("equal", "not_equal"):
        differs = _differences(b, x, y)
        return compare_small(b, name, differs, 0)  # no bit is lost where all are zero
    if y == 0 and not isinstance(y, Value) and name in ("less", "greater_equal"):
        sign = words(b, x).high if isinstance(x, Value) and x.dtype is torch.int64 else x
        return compare_small(b, name, sign, 0)
    if all(fits(r, WORD_RANGE) for r in here):
        return b.cast(b.integer(name, words(b, x).low, words(b, y).low), torch.bool)
    is_swapped, is_negated = _COMPARISONS[name]
    if is_swapped:
        x, y = y, x
    first, second = words(b, x), words(b, y)
    is_less = compare_words(b, "less", first.high, second.high)
    is_equal = compare_words(b, "equal", first.high, second.high)
    below = on_bits(b, "bitwise_and", is_equal, is_below(b, first.low, second.low))
    result = on_bits(b, "bitwise_or", is_less, below)
    return compare_small(b, "equal" if is_negated else "not_equal", result, 0)


def _differences(b: Builder, x: Operand, y: Operand) -> Operand:
    """A word that is zero where x and y are equal."""
    first, second = words(b, x), words(b, y)
    low = on_bits(b, "bitwise_xor", first.low, second.low)
    if all(fits(range_of(n), WORD_RANGE) for n in (x, y)):
        return low
    return on_bits(b, "bitwise_or", low, on_bits(b, "bitwise_xor", first.high, second.high))


def combine(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """A bit operation on any two integers."""
    first, second = words(b, x), words(b, y)
    low = on_bits(b, name, first.low, second.low)
    here = range_of(x), range_of(y)
    if all(fits(r, WORD_RANGE) for r in here):
        top = max(1, *(n.bit_length() for r in here for n in r))
        within = (0, 2**top - 1) if min(here)[0] >= 0 else WORD_RANGE
        return extended(b, low, within)
    return pack(b, Words(low, on_bits(b, name, first.high, second.high)), LONG_RANGE)


# -- sums ----------------------------------------------------------------------------------------


def total(b: Builder, x: Operand) -> Operand | Reject:
    """The sum of any integers over what the node reduces, in int64.

    Engines add in float32. So digits are added apart, of so few bits that no sum exceeds 2^24.
    """
    low, high = range_of(x)
    within = (b.count * low, b.count * high)
    if is_small((low, high), within):
        reduced = b.reduce("add", small_operand(x))
        return extended(b, b.cast(reduced, torch.int32), within)
    width = next((w for w in (16, 8, 4) if b.count * 2**w <= EXACT), None)
    if width is None:
        return Reject(f"a sum of {b.count} int64 needs digits of less than 4 bits to be exact")
    parts = words(b, x)
    result: Operand = 0
    is_short = fits((low, high), WORD_RANGE)
    for place in range(0, 32 if is_short else 64, width):
        steps = ("right_shift", place % 32), ("bitwise_and", 2**width - 1)
        digit = bitwise(b, parts[place // 32], *steps)
        result = arithmetic(b, "add", result, _shifted(b, _digit_sum(b, digit), place))
    if is_short and low < 0:
        negative = _digit_sum(b, bitwise(b, parts.high, ("bitwise_and", 1)))
        result = arithmetic(b, "subtract", result, _shifted(b, negative, 32))
    return result


def _digit_sum(b: Builder, digit: Operand) -> Value:
    return b.cast(b.reduce("add", digit), torch.int32)


def _shifted(b: Builder, word: Value, places: int) -> Value:
    """`word`, which is not negative, times 2^places in int64."""
    if places >= 32:
        return pack(b, Words(0, bitwise(b, word, ("left_shift", places - 32))))
    low = bitwise(b, word, ("left_shift", places))
    high = bitwise(b, word, ("right_shift", 32 - places)) if places else 0
    return pack(b, Words(low, high))


# -- extremes ------------------------------------------------------------------------------------


def extreme(b: Builder, name: str, x: Operand) -> Operand:
    """The maximum or minimum of any integers over what the node reduces.

    Engines compare in float32. So halves of words are reduced one after another, the highest first,
    each only where the higher ones are those of the result. The smallest number is the complement
    of the largest complement.
    """
    if is_small(range_of(x)):
        return extended(b, b.cast(b.reduce(name, small_operand(x)), torch.int32), range_of(x))
    parts = words(b, x)
    kept = parts[:1] if fits(range_of(x), WORD_RANGE) else parts
    flip = -1 if name == "minimum" else 0
    found: list[Operand] = []
    among: Value | None = None
    for place, word in enumerate(reversed(kept)):
        change = flip ^ (0 if place else SIGN_BIT)
        if change:
            word = bitwise(b, word, ("bitwise_xor", change))
        results = []
        for half in reversed(halves(b, word)):
            digit = half if among is None else b.select(among, half, -1, torch.int32)
            largest = b.cast(b.reduce("maximum", digit), torch.int32)
            is_largest = compare_small(b, "equal", half, largest)
            among = (
                is_largest if among is None else b.alu("logical_and", among, is_largest, torch.bool)
            )
            results.append(largest)
        whole = on_bits(b, "bitwise_or", bitwise(b, results[0], ("left_shift", 16)), results[1])
        found.append(bitwise(b, whole, ("bitwise_xor", change)) if change else whole)
    if len(found) == 1:
        return extended(b, found[0], WORD_RANGE)
    return pack(b, Words(low=found[1], high=found[0]))
