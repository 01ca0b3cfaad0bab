"""Lowerings of comparisons, logic and bits. Masks are 0/1 in uint8 tiles."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trnx.nki_kernels.generator import integer_division, integers
from trnx.nki_kernels.generator.ir import INTEGER_DTYPES, Builder, Lowering, Operand, Value
from trnx.nki_kernels.generator.table import lowers
from trnx.nki_kernels.generator.words import bitwise, compare_small, words
from trnx.simulator.errors import Reject

aten = torch.ops.aten

_LARGEST = 3.4028234663852886e38


def _comparison(name: str) -> Lowering:
    def lowering(b: Builder, x: Operand, y: Operand) -> Value:
        return b.compare(name, x, y)

    return lowering


lowers(aten.eq.Tensor, aten.eq.Scalar)(_comparison("equal"))
lowers(aten.ne.Tensor, aten.ne.Scalar)(_comparison("not_equal"))
lowers(aten.lt.Tensor, aten.lt.Scalar)(_comparison("less"))
lowers(aten.le.Tensor, aten.le.Scalar)(_comparison("less_equal"))
lowers(aten.gt.Tensor, aten.gt.Scalar)(_comparison("greater"))
lowers(aten.ge.Tensor, aten.ge.Scalar)(_comparison("greater_equal"))


def _logical(name: str) -> Lowering:
    def lowering(b: Builder, x: Operand, y: Operand) -> Value:
        return b.alu(name, b.to_bool(x), b.to_bool(y), torch.bool)

    return lowering


lowers(aten.logical_and)(_logical("logical_and"))
lowers(aten.logical_or)(_logical("logical_or"))
lowers(aten.logical_xor)(_logical("logical_xor"))


@lowers(aten.logical_not)
def logical_not(b: Builder, x: Operand) -> Value:
    return b.compare("equal", x, 0)


def _bitwise(bits: str, logic: str) -> Lowering:
    def lowering(b: Builder, x: Operand, y: Operand) -> Operand:
        if b.out is torch.bool:
            return b.alu(logic, b.to_bool(x), b.to_bool(y), torch.bool)
        if b.out is torch.int64:
            return integers.combine(b, bits, x, y)
        return b.integer(bits, x, y)

    return lowering


lowers(aten.bitwise_and)(_bitwise("bitwise_and", "logical_and"))
lowers(aten.bitwise_or)(_bitwise("bitwise_or", "logical_or"))
lowers(aten.bitwise_xor)(_bitwise("bitwise_xor", "logical_xor"))


@lowers(aten.bitwise_not)
def bitwise_not(b: Builder, x: Operand) -> Operand:
    if b.out is torch.bool:
        return b.compare("equal", x, 0)
    if b.out is torch.int64:
        return integers.combine(b, "bitwise_xor", x, -1)
    return b.integer("bitwise_xor", x, -1)


def _shift(move: Callable[[Builder, Value, int], Operand]) -> Lowering:
    def lowering(b: Builder, x: Operand, places: Operand) -> Operand | Reject:
        if b.out not in (torch.int32, torch.int64) or not isinstance(x, Value):
            return Reject(f"shifts have rules for tensors of int32 and int64, not for {b.out}")
        if isinstance(places, Value) or not 0 <= places < 8 * b.out.itemsize:
            return Reject(f"{b.out} is shifted by numbers of places that it has, not by {places}")
        moved = move(b, x, int(places))
        return words(b, moved).low if b.out is torch.int32 else moved

    return lowering


lowers(aten.bitwise_left_shift, aten.__lshift__)(_shift(integer_division.shift_left))
lowers(aten.bitwise_right_shift, aten.__rshift__)(_shift(integer_division.shift_right))


def _always(b: Builder, x: Value, answer: bool) -> Value:
    return b.constant(answer, torch.bool, x.axes)


@lowers(aten.isnan)
def isnan(b: Builder, x: Value) -> Value:
    if x.dtype in INTEGER_DTYPES:
        return _always(b, x, False)
    return b.compare("not_equal", x, x)


@lowers(aten.isinf, flops=2)
def isinf(b: Builder, x: Value) -> Value:
    if x.dtype in INTEGER_DTYPES:
        return _always(b, x, False)
    return b.compare("greater", b.unary("abs", x), _LARGEST)


@lowers(aten.isfinite, flops=2)
def isfinite(b: Builder, x: Value) -> Value:
    if x.dtype in INTEGER_DTYPES:
        return _always(b, x, True)
    return b.compare("less_equal", b.unary("abs", x), _LARGEST)


@lowers(aten.signbit)
def signbit(b: Builder, x: Value) -> Value:
    if x.dtype in INTEGER_DTYPES:
        return b.compare("less", x, 0)
    return is_signed(b, x)


def is_signed(b: Builder, x: Value) -> Value:
    """1 where the float `x` has a sign, -0.0 included, to which comparisons are blind."""
    sign = bitwise(b, b.view(b.cast(x, torch.float32), torch.int32), ("right_shift", 31))
    return compare_small(b, "not_equal", sign, 0)


@lowers(aten.heaviside, flops=3)
def heaviside(b: Builder, x: Operand, values: Operand) -> Operand:
    step = b.compare("greater", x, 0)
    if b.out is torch.bool:
        return b.select(b.compare("equal", x, 0), b.to_bool(values), step, torch.bool)
    if b.out is torch.int64:
        return integers.choose(b, b.compare("equal", x, 0), values, step)
    if b.out is torch.int32:
        return b.select(b.compare("equal", x, 0), b.to_int(values), b.to_int(step), torch.int32)
    return b.select(b.compare("equal", x, 0), values, step, torch.float32)
