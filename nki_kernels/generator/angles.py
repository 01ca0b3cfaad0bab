"""Angles modulo half a turn, exact for every float32: what ScalarE's sine takes.

`nisa.activation` computes sines of [-pi, pi] and does not reduce what lies beyond
(SDK/nki/api/nki.api.shared.rst, "Supported Activation Functions"). So |x| = m * 2^(e - 23), with an
integer m of 24 bits, is multiplied with the bits of 1 / (2 pi) that matter for its exponent e (M.
Payne and R. Hanek, "Radian reduction for trigonometric functions", 1983): the higher ones give
whole turns, the lower ones are below the result's precision. Turns are counted in units of 2^-32,
so that int32 products, which wrap around, drop the whole ones without rounding. The next word of
1 / (2 pi) follows in float32, to a unit or two, 3e-9 radians.

32 exponents share four words of 1 / (2 pi), from which a shift by the exponent's low bits takes
what is needed. bfloat16 has so few bits that one word is enough.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch

from trnx.nki_kernels.generator.ir import Builder, Value
from trnx.nki_kernels.generator.words import SIGN_BIT, as_word, bitwise, compare_small, on_bits

# 1 / (2 pi), 256 bits behind the point (a test computes them).
TURNS_PER_RADIAN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF158
_TURN_BITS = 256
# Below, an angle is taken as it is: the table begins at 2, whose exponent is 128 with its bias.
SMALL = 2.0
_MANTISSA, _HIDDEN_BIT, _MANTISSA_BITS = 0x007FFFFF, 0x00800000, 23
_ODD_BUCKET = 1 << (_MANTISSA_BITS + 5)  # the bit of a float32 that tells buckets 1, 3 from 0, 2
_UPPER_BUCKETS = 2.0**65
_ONE = 0x3F800000
PI_HALVES = (1.57079637050628662109375, -4.37113900018624283e-8)  # pi / 2 in two float32
_RADIANS = math.pi / 2.0**32  # in 2^-32 of half a turn
_UNUSED_BITS = 16  # of the mantissa in float32 values that come from bfloat16


class HalfTurns(NamedTuple):
    """|x| modulo a turn: `turns` are the high 32 bits of its fraction, `rest` the radians of what
    follows, from 0 to 0.013.
    """

    turns: Value
    rest: Value | None


def reduced(b: Builder, x: Value) -> HalfTurns:
    """|x| modulo a turn, for |x| >= `SMALL`; anything for smaller, infinite and NaN ones."""
    dropped = _UNUSED_BITS if x.dtype is torch.bfloat16 else 0
    x = b.cast(x, torch.float32)
    bits = b.view(x, torch.int32)
    mantissa = _word(b, bits, ("bitwise_and", _MANTISSA), ("bitwise_or", _HIDDEN_BIT),
                     ("right_shift", dropped))  # fmt: skip
    window = _window(b, x, bits, dropped)
    turns = b.integer("multiply", mantissa, window[0])
    if len(window) == 1:
        return HalfTurns(turns, None)
    # Half the next word, because engines take words with a sign; a turn is 2 pi.
    low = _word(b, window[1], ("right_shift", 1))
    scaled = b.make("alu", "multiply", (low, 4.0 * _RADIANS * 2.0**-32), torch.float32)
    return HalfTurns(turns, b.make("alu", "multiply", (scaled, mantissa), torch.float32))


def sine_angle(b: Builder, x: Value) -> Value:
    """An angle in [-2, 2] whose sine is that of x, finite."""
    found = reduced(b, x)
    x = b.cast(x, torch.float32)
    doubled = _word(b, found.turns, ("left_shift", 1))
    # What lies nearer to half a turn than to a whole one has the other sign.
    odd = on_bits(b, "bitwise_xor", found.turns, doubled)
    signs = on_bits(b, "bitwise_xor", odd, b.view(x, torch.int32))
    angle = _signed(b, _radians(b, doubled, found.rest), signs, _ONE)
    return b.select(_is_small(b, x), x, angle, torch.float32)


def cosine_angle(b: Builder, x: Value) -> Value:
    """An angle in [-2, 2] whose sine is the cosine of x, finite."""
    found = reduced(b, x)
    x = b.cast(x, torch.float32)
    # A quarter of a turn more: its double changes the highest bit.
    doubled = _word(b, found.turns, ("left_shift", 1), ("bitwise_xor", SIGN_BIT))
    angle = _signed(b, _radians(b, doubled, found.rest), found.turns, _ONE ^ SIGN_BIT)
    high, low = PI_HALVES
    complement = b.add(b.sub(high, b.unary("abs", x)), low)
    return b.select(_is_small(b, x), complement, angle, torch.float32)


def _is_small(b: Builder, x: Value) -> Value:
    return b.compare("less", b.unary("abs", x), SMALL)


def _radians(b: Builder, doubled: Value, rest: Value | None) -> Value:
    """Units of 2^-32 of half a turn, taken with a sign: half a turn about 0."""
    angle = b.make("alu", "multiply", (doubled, _RADIANS), torch.float32)
    return angle if rest is None else b.add(angle, rest)


def _signed(b: Builder, angle: Value, signs: object, one: int) -> Value:
    """`angle` times 1 or -1: `one` with its sign flipped where that of `signs` is set."""
    assert isinstance(signs, Value)
    factor = _word(b, signs, ("bitwise_and", SIGN_BIT), ("bitwise_xor", as_word(one)))
    return b.mul(angle, b.view(factor, torch.float32))


# -- the bits of 1 / (2 pi) ------------------------------------------------------------------------


def _window(b: Builder, x: Value, bits: Value, dropped: int) -> list[Value]:
    """The words of 1 / (2 pi) for the exponent of x: two, or one where few bits are needed."""
    shift = _word(b, bits, ("right_shift", _MANTISSA_BITS), ("bitwise_and", 31))
    back = _word(b, shift, ("bitwise_xor", 31))
    words = _bucket(b, x, bits, 2 if dropped else 3, dropped)
    found = []
    for first, second in itertools.pairwise(words):
        upper = _shifted(b, "left_shift", first, shift)
        # By 32 - shift: one at once, because a shift by 32 is not defined.
        lower = _shifted(b, "right_shift", _word(b, second, ("right_shift", 1)), back)
        both = on_bits(b, "bitwise_or", upper, lower)
        assert isinstance(both, Value)
        found.append(both)
    return found


def _bucket(b: Builder, x: Value, bits: Value, count: int, dropped: int) -> list[Value]:
    """`count` words of 1 / (2 pi) for the 32 exponents among which that of x is."""
    magnitude = b.unary("abs", x)
    is_upper = b.compare("greater_equal", magnitude, _UPPER_BUCKETS)
    mask = b.make("alu", "multiply", (is_upper, -1.0), torch.int32, attribute=(-1, 0))
    is_odd = compare_small(b, "not_equal", _word(b, bits, ("bitwise_and", _ODD_BUCKET)), 0)
    chosen = []
    for index in range(count + 1):
        low, high = _turn_word(index, dropped), _turn_word(index + 2, dropped)
        steps = ("bitwise_and", as_word(low ^ high)), ("bitwise_xor", as_word(low))
        chosen.append(_word(b, mask, *steps))
    return [b.select(is_odd, y, x, torch.int32) for x, y in itertools.pairwise(chosen)]


def _turn_word(index: int, dropped: int) -> int:
    """The word `index` of 1 / (2 pi) times 2^(1 - 23), the mantissa's unit in numbers from 2 on."""
    end = 32 * (index + 1) + 1 - _MANTISSA_BITS + dropped
    return (TURNS_PER_RADIAN >> (_TURN_BITS - end)) & 0xFFFFFFFF


def _word(b: Builder, word: Value, *steps: tuple[str, int]) -> Value:
    found = bitwise(b, word, *steps)
    assert isinstance(found, Value)
    return found


def _shifted(b: Builder, name: str, word: Value, by: Value) -> Value:
    return b.make("alu", name, (word, by), torch.int32)
