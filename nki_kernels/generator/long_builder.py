"""The builder whose operands may be int64."""

from __future__ import annotations

import torch

from trnx.nki_kernels.generator import integer_casts, integers
from trnx.nki_kernels.generator.ir import Builder, Dims, Operand, Value, values_of
from trnx.nki_kernels.generator.words import is_integral, loaded, spread, words
from trnx.simulator.errors import Reject

_HALVES = (torch.bfloat16, torch.float16)


class LongBuilder(Builder):
    """Builds values of integers of any width; the rules see no difference."""

    def load(self, name: str, dtype: torch.dtype, axes: frozenset[int], dims: Dims) -> Value:
        """A region input; `dims` are the labels of its dimensions."""
        tile = super().load(name, dtype, axes, dims)
        return loaded(self, tile) if dtype is torch.int64 else tile

    def spread(self, x: Operand, dtype: torch.dtype, axes: frozenset[int]) -> Value:
        """`x` as a tile of `dtype` that varies over all `axes`."""
        return spread(self, x, axes) if dtype is torch.int64 else super().spread(x, dtype, axes)

    def to_float(self, x: Operand) -> Operand:
        """`x` as an operand of float arithmetic; half precision takes integers rounded to it."""
        if not isinstance(x, Value) or x.dtype not in (torch.int32, torch.int64):
            return super().to_float(x)
        found = integer_casts.to_float(self, x) if x.dtype is torch.int64 else super().to_float(x)
        assert isinstance(found, Value)
        return self.cast(found, self.out) if self.out in _HALVES else found

    def to_int(self, x: Operand) -> Value:
        """`x`, which holds integers, as int32: of int64 the low word."""
        return super().to_int(words(self, x).low if is_integral(x) else x)

    def to_long(self, x: Operand) -> Value | Reject:
        """The result of a rule as int64; a Reject where the rule computed it in another type."""
        if isinstance(x, Value) and x.dtype is torch.int64:
            return x
        if isinstance(x, Value) and x.dtype is not torch.bool:
            return Reject("int64 has no exact rule for this op")
        return spread(self, x, x.axes if isinstance(x, Value) else frozenset())

    def compare(self, name: str, a: Operand, b: Operand) -> Value:
        """A comparison, exact for integers; with a half, of the integer rounded to it."""
        kinds = {v.dtype for v in values_of((a, b))}
        if torch.int64 in kinds and is_integral(a) and is_integral(b):
            return integers.compare(self, name, a, b)
        halves = kinds & set(_HALVES)
        if len(kinds) == 2 and len(halves) == 1:
            a, b = (self._in_half(x, *halves) for x in (a, b))
        return super().compare(name, a, b)

    def _in_half(self, x: Operand, half: torch.dtype) -> Operand:
        if not isinstance(x, Value) or x.dtype not in (torch.int32, torch.int64):
            return x
        found = self.to_float(x)
        assert isinstance(found, Value)
        return self.cast(found, half)
