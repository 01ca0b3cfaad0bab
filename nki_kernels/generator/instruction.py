"""What generated kernels consist of: NKI instructions, their arguments, and numbers as source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trnx.nki_kernels.generator.ir import Number, Value


@dataclass(frozen=True)
class Tile:
    """A value as an argument: spread over the axes of `like`, or as it is where that is None; of an
    int64 one of its words; its bits taken as `seen_as` where that is given.
    """

    value: Value
    like: Value | None
    word: int | None = None
    seen_as: torch.dtype | None = None


# The label of what tiles of a phase differ in, and no axis of the tile says so.
EACH_TILE = -2
Argument = Tile | str
BIT_OPERATORS = frozenset(
    f"nl.{name}"
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
)


@dataclass(frozen=True)
class Beside:
    """What another engine computes of a tile: `instruction`, which gives the same values, has the
    last `count` of the `size` elements of the axis `label`."""

    instruction: Instruction
    label: int
    count: int
    size: int


class Overlap(NamedTuple):
    """What parts of an axis share (`overlaps.py`): they begin a `step` of its elements apart. In
    all of the `parts` but the last one the elements from that on become the `identity`."""

    label: int
    step: int
    parts: int
    identity: float = 0.0


@dataclass(frozen=True)
class Instruction:
    """`nisa.<call>(dst=..., <arguments>)`; `result` is the tile that `reduce_res` fills.

    `on_bits` says that the float32 tiles are taken as int32; `word` is the word of an int64 that it
    writes; `engine` runs it, which is NKI's choice where it is None (`engines.py`); another engine
    may compute a part of the tile `beside` it. Where `by_row` is an axis, the first free one of its
    tiles, it is an instruction for each element of that (`row_by_row.py`). It changes what parts
    of an axis share where there is an `overlap`.
    """

    call: str
    dst: Value
    arguments: tuple[tuple[str, Argument], ...]
    result: Value | None = None
    on_bits: bool = False
    engine: str | None = None
    word: int | None = None
    beside: Beside | None = None
    by_row: int | None = None
    overlap: Overlap | None = None

    def reads(self) -> list[Value]:
        """The values that it reads."""
        return [a.value for _, a in self.arguments if isinstance(a, Tile)]

    def writes(self) -> list[Value]:
        """The values that it writes."""
        return [self.dst] + ([self.result] if self.result else [])


def literal(number: Number) -> str:
    """A number as kernel source; INF and NAN are constants of the module."""
    if isinstance(number, float):
        if math.isnan(number):
            return "NAN"
        if math.isinf(number):
            return "INF" if number > 0 else "-INF"
        return repr(number)
    return str(int(number))
