"""Integers of 64 bits as two words, and what is known of their ranges.

NKI has no 64-bit types. An int64 is a `pack` of two int32 values, the low and the high word. Of
every value the range is known in which it lies: all of int64 for what comes from outside, less for
masks, numbers and what is computed from them. By the range an operation is computed

* where operands and result lie within 2^24, in float32 on VectorE, which is exact there;
* where they lie within 32 bits, on the low words, by GpSimd's exact arithmetic of int32
  (SDK nki.isa.tensor_tensor: native integers where all tiles are int32);
* else on both words with carry, which wraps around as eager does.

Bit operations and shifts act on bits without conversion (SDK nki.isa.tensor_scalar); shifts to the
right bring in zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from trnx.nki_kernels.generator.ir import INTEGER_DTYPES, Builder, Operand, Value

EXACT = 2**24  # float32 holds all integers up to here
SIGN_BIT = -(2**31)
_WORD = 0xFFFFFFFF
WORD_RANGE = (-(2**31), 2**31 - 1)
LONG_RANGE = (-(2**63), 2**63 - 1)
_RANGES = {torch.bool: (0, 1), torch.int32: WORD_RANGE, torch.int64: LONG_RANGE}

Range = tuple[int, int]


class Words(NamedTuple):
    """The two words of an integer: int32 values or numbers of 32 bits with sign."""

    low: Operand
    high: Operand


def as_word(number: int) -> int:
    """The low 32 bits of `number`, with sign."""
    number &= _WORD
    return number - 2**32 if number >= 2**31 else number


def fits(found: Range, limits: Range) -> bool:
    """Whether `found` lies within `limits`."""
    return limits[0] <= found[0] and found[1] <= limits[1]


def is_small(*ranges: Range) -> bool:
    """Whether float32 holds all integers of these ranges."""
    return all(fits(r, (-EXACT, EXACT)) for r in ranges)


def is_integral(x: Operand) -> bool:
    """Whether `x` holds integers."""
    return x.dtype in INTEGER_DTYPES if isinstance(x, Value) else isinstance(x, int)


def range_of(x: Operand) -> Range:
    """The smallest and the largest number that `x`, which holds integers, can be."""
    if not isinstance(x, Value):
        return (int(x), int(x))
    if x.op in ("pack", "alu") and x.dtype in INTEGER_DTYPES and isinstance(x.attribute, tuple):
        return x.attribute
    return _RANGES[x.dtype]


# -- words ---------------------------------------------------------------------------------------


def loaded(b: Builder, tile: Value) -> Value:
    """The int64 of a loaded tile."""
    low, high = (b.make("word", f"word{i}", (tile,), torch.int32, attribute=i) for i in range(2))
    return pack(b, Words(low, high))


def pack(b: Builder, words: Words, within: Range = LONG_RANGE) -> Value:
    """The int64 of two words, which is known to lie `within` these limits."""
    return b.make("pack", "long", tuple(words), torch.int64, attribute=within)


def extended(b: Builder, word: Operand, within: Range) -> Operand:
    """The int64 whose low word is `word`, an int32 that lies `within` these limits."""
    if not isinstance(word, Value):
        return word
    return pack(b, Words(word, _sign(b, word, within)), within)


def _sign(b: Builder, word: Value, within: Range) -> Operand:
    """-1 where `word` is negative, else 0."""
    if within[0] >= 0:
        return 0
    return small(b, "multiply", compare_small(b, "less", word, 0), -1, (-1, 0))


def words(b: Builder, x: Operand) -> Words:
    """The words of any integer."""
    if not isinstance(x, Value):
        return Words(as_word(int(x)), as_word(int(x) >> 32))
    if x.dtype is torch.int64:
        return Words(*x.args)
    word = b.cast(x, torch.int32)
    return Words(word, _sign(b, word, range_of(x)))


def small_operand(x: Operand) -> Operand:
    """Any integer within 2^24 for arithmetic in float32: engines convert what they read."""
    if not isinstance(x, Value):
        return float(x)
    return x.args[0] if x.dtype is torch.int64 else x


def spread(b: Builder, x: Operand, axes: frozenset[int]) -> Value:
    """`x` as an int64 tile that varies over all `axes`, to be stored."""
    low, high = (b.spread(word, torch.int32, axes) for word in words(b, x))
    if low.op == high.op == "word" and low.args == high.args:
        return low.args[0]  # type: ignore[return-value]  # a tile as it was loaded
    return pack(b, Words(low, high))


# -- instructions --------------------------------------------------------------------------------


def small(b: Builder, name: str, x: Operand, y: Operand, within: Range) -> Value:
    """An operator on integers within 2^24, in float32, whose result lies `within` these limits."""
    operands = small_operand(x), small_operand(y)
    return b.make("alu", name, operands, torch.int32, attribute=within)


def compare_small(b: Builder, name: str, x: Operand, y: Operand) -> Value:
    """A comparison in float32."""
    return b.make("alu", name, (small_operand(x), small_operand(y)), torch.bool)


def bitwise(b: Builder, x: Operand, *steps: tuple[str, int]) -> Operand:
    """Bit operations with numbers, one after another, on a word."""
    if isinstance(x, Value):
        for step in steps:
            if step in _IDENTITIES:
                continue
            x = b.make("bitwise", step[0], (x,), torch.int32, attribute=step)
        return x
    number = x & _WORD if isinstance(x, int) else int(x) & _WORD
    for name, operand in steps:
        number = _ON_NUMBERS[name](number, operand) & _WORD
    return as_word(number)


_IDENTITIES = frozenset(
    [
        *((name, 0) for name in ("bitwise_or", "bitwise_xor", "left_shift", "right_shift")),
        ("bitwise_and", -1),
    ]
)
_ON_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "left_shift": lambda x, y: x << y,
    "right_shift": lambda x, y: x >> y,
}


def on_bits(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """A bit operation on two words."""
    if not isinstance(x, Value):
        x, y = y, x
    if not isinstance(y, Value):
        return bitwise(b, x, (name, int(y)))
    return b.integer(name, x, y)


def halves(b: Builder, word: Operand) -> tuple[Operand, Operand]:
    """The low and the high 16 bits of a word, without sign."""
    return bitwise(b, word, ("bitwise_and", 0xFFFF)), bitwise(b, word, ("right_shift", 16))


WRAPPING: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
}


def wrapping(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """x <op> y on words, which wraps around."""
    if not isinstance(x, Value) and not isinstance(y, Value):
        return as_word(WRAPPING[name](int(x), int(y)))
    if name in ("add", "subtract") and not isinstance(y, Value) and y == 0:
        return x
    if name == "add" and not isinstance(x, Value) and x == 0:
        return y
    if name == "multiply" and 0 in [n for n in (x, y) if not isinstance(n, Value)]:
        return 0
    return b.integer(name, x, y)


def is_below(b: Builder, x: Operand, y: Operand) -> Operand:
    """1 where x < y as words without sign."""
    flipped = (bitwise(b, word, ("bitwise_xor", SIGN_BIT)) for word in (x, y))
    return compare_words(b, "less", *flipped)


def compare_words(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """A comparison of words with sign, 0 or 1 in int32."""
    if not isinstance(x, Value) and not isinstance(y, Value):
        return int({"less": x < y, "equal": x == y}[name])
    return b.integer(name, x, y)
