"""`cat`: 1 to 16 tensors one after another along any dimension, as transfers alone.

Floats, integers and bools of one dtype, any strides, pieces of any size; empty ones are left out.
`stack` is a `cat` of views in the canonical graph. The result lies in memory as in eager: in the
order of the operands' dimensions where they agree on one (`channels_last`), else row-major.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.kernels._copies import MOST_SOURCES, Piece, reject_copies
from trnx.nki_kernels.kernels._copy_spec import copies_spec
from trnx.nki_kernels.kernels._patterns import pattern_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_NAMES = tuple(f"x{i}" for i in range(MOST_SOURCES))


def _pattern(count: int) -> Pattern:
    """The pattern of `count` operands; the others are None."""

    def function(*values: Any) -> Any:
        return aten.cat.default(list(values[:-1]), values[-1])

    return pattern_of(function, (*_NAMES[:count], "dim"), {"dim": int}, _NAMES[count:])


def reference(dim: int, **operands: torch.Tensor | None) -> torch.Tensor:
    """torch.cat of those that are not None."""
    return torch.cat([x for name in _NAMES if (x := operands[name]) is not None], dim)


def _pieces(result: torch.Tensor, dim: int, **operands: torch.Tensor | None) -> Iterator[Piece]:
    start = 0
    for name in _NAMES:
        x = operands[name]
        if x is None or x.numel() == 0:
            continue
        yield Piece(result.narrow(dim, start, x.shape[dim]), name, x)
        start += x.shape[dim]


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes."""
    del hw
    return reject_copies(b, _NAMES)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Every dimension, short and long runs, ragged sizes, strides, empty operands, dtypes."""

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).mul(9).to(dtype)

    def sample(note: str, dim: int, *operands: torch.Tensor) -> Sample:
        named = dict.fromkeys(_NAMES) | dict(zip(_NAMES, operands, strict=False))
        return Sample({**named, "dim": dim}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", 1, draw(size, 3), draw(size, 5))
        yield sample(f"{size} after 4", 1, draw(3, 4, 70), draw(3, size, 70))
    yield sample("many short rows", 1, draw(70000, 3), draw(70000, 1), draw(70000, 2))
    yield sample("halves of heads", -1, *(draw(2, 3, 130, 32, dtype=torch.bfloat16),) * 2)
    yield sample("first dimension", 0, draw(2, 70), draw(1, 70), draw(5, 70))
    yield sample("an empty operand", 1, draw(3, 4), draw(3, 0), draw(3, 2))
    yield sample("an empty one of one dimension", 1, draw(0), draw(3, 4), draw(3, 2))
    yield sample("transposed", 1, draw(7, 130).t(), draw(130, 7)[:, ::2])
    yield sample("expanded", 2, draw(4, 1, 6).expand(4, 9, 6), draw(4, 9, 1))
    yield sample("one", 0, draw(5, 130).t())
    yield sample("sixteen", 1, *(draw(129, i + 1) for i in range(MOST_SOURCES)))
    for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", 1, draw(130, 3, dtype=dtype), draw(130, 4, dtype=dtype))


register(
    copies_spec(
        "cat",
        tuple(_pattern(count) for count in range(1, MOST_SOURCES + 1)),
        _NAMES,
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
    )
)
