"""NKI helpers for sums of float32 over the partitions, by products with ones, that lose next to
nothing.

TensorE adds up 128 values one after another, and what each step rounds off grows with the sum so
far: twice what torch's sum in pairs loses. The three parts of a value have 8 significant bits each,
so that a sum of the first ones is exact unless values are 65536 times smaller than it.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl


class FloatParts(NamedTuple):
    """`first` and both of `more` add up to a float32 tensor exactly; all are bfloat16. Where that
    is not finite, `first` is what it is, and `more` is NaN; a NaN that has no bit but of its lower
    half, which no operation makes, is infinite."""

    first: nl.NkiTensor
    more: list[nl.NkiTensor]


def parts_of(data: nl.NkiTensor, engine: object) -> FloatParts:
    """Of float32 `[partitions, chunks, columns]`, in two steps, by VectorE or GpSimd."""
    first = _first_bits(data)
    behind = _without(data, first, engine)
    second = _first_bits(behind)
    return FloatParts(first, [second, _first_bits(_without(behind, second, engine))])


def _first_bits(data: nl.NkiTensor) -> nl.NkiTensor:
    """Each value without its last 16 bits: the upper halves of little-endian words."""
    halves = data.view(nl.bfloat16).reshape_dim(2, (data.shape[2], 2))
    return halves[:, :, :, 1]


def _without(data: nl.NkiTensor, part: nl.NkiTensor, engine: object) -> nl.NkiTensor:
    """`data - part`, which is exact."""
    rest = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=rest, data1=data, data2=part, op=nl.subtract, engine=engine)
    return rest


def add_sums(dst: nl.NkiTensor, first: nl.NkiTensor, more: nl.NkiTensor) -> None:
    """`dst` = the sums of first parts and of the others, both float32 `[partitions, columns]`;
    what is not finite is what the first ones are."""
    rest = nl.ndarray(more.shape, dtype=nl.float32, buffer=nl.sbuf)
    is_nan = nl.ndarray(more.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.activation(dst=rest, op=nl.copy, data=more)
    nisa.tensor_tensor(dst=is_nan, data1=rest, data2=rest, op=nl.not_equal)
    nisa.tensor_copy_predicated(dst=rest, src=0.0, predicate=is_nan)
    nisa.tensor_tensor(dst=dst, data1=first, data2=rest, op=nl.add)
