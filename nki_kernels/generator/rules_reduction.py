"""Lowerings of reductions and softmax over the labels that `Builder.reduced` names."""

from __future__ import annotations

import math
from typing import Any

import torch

from trnx.nki_kernels import canonical_ops  # noqa: F401  defines trnx::rms_norm
from trnx.nki_kernels.generator import integers
from trnx.nki_kernels.generator.division import divide_total
from trnx.nki_kernels.generator.ir import INTEGER_DTYPES, Builder, Operand, Value
from trnx.nki_kernels.generator.table import along, dims_at, last, lowers, whole
from trnx.nki_kernels.generator.words import is_integral, is_small, range_of
from trnx.simulator.errors import Reject

aten = torch.ops.aten


def _exact(x: Operand) -> Reject | None:
    if isinstance(x, Value) and x.dtype in INTEGER_DTYPES and not is_small(range_of(x)):
        return Reject("engines reduce in float32, which is not exact for integers above 2^24")
    return None


@lowers(aten.sum.dim_IntList, reduction=dims_at())
@lowers(aten.sum.default, reduction=whole)
def total(b: Builder, x: Operand, *_: Any, **__: Any) -> Operand | Reject:
    if b.out is torch.int64 and is_integral(x):
        return integers.total(b, x)
    return _exact(x) or b.reduce("add", x)


@lowers(aten.mean.dim, reduction=dims_at(), flops=2)
@lowers(aten.mean.default, reduction=whole, flops=2)
def mean(b: Builder, x: Operand, *_: Any, **__: Any) -> Value | Reject:
    return divide_total(b, b.reduce("add", x), b.count)


@lowers(aten.amax, reduction=dims_at())
@lowers(aten.max.default, reduction=whole)
def amax(b: Builder, x: Operand, *_: Any, **__: Any) -> Operand:
    return integers.extreme(b, "maximum", x) if is_integral(x) else b.reduce("maximum", x)


@lowers(aten.amin, reduction=dims_at())
@lowers(aten.min.default, reduction=whole)
def amin(b: Builder, x: Operand, *_: Any, **__: Any) -> Operand:
    return integers.extreme(b, "minimum", x) if is_integral(x) else b.reduce("minimum", x)


@lowers(aten.prod.dim_int, reduction=dims_at())
@lowers(aten.prod.default, reduction=whole)
def prod(b: Builder, x: Operand, *_: Any, **__: Any) -> Value | Reject:
    return _exact(x) or b.reduce("multiply", x)


@lowers(aten.any.dim, aten.any.dims, reduction=dims_at())
@lowers(aten.any.default, reduction=whole)
def any_true(b: Builder, x: Operand, *_: Any, **__: Any) -> Value:
    return b.reduce("maximum", b.to_bool(x))


@lowers(aten.all.dim, aten.all.dims, reduction=dims_at())
@lowers(aten.all.default, reduction=whole)
def all_true(b: Builder, x: Operand, *_: Any, **__: Any) -> Value:
    return b.reduce("minimum", b.to_bool(x))


def _variance(b: Builder, x: Operand, correction: Any) -> Value | Reject:
    divisor = b.count - (1 if correction is None else correction)
    if divisor <= 0:
        return Reject(
            f"a variance of {b.count} elements with correction {correction} is not finite"
        )
    centred = b.sub(x, b.mul(b.reduce("add", x), 1.0 / b.count))
    return b.mul(b.reduce("add", b.mul(centred, centred)), 1.0 / divisor)


@lowers(aten.var.correction, reduction=dims_at(keepdim=9), flops=5)
def var(b: Builder, x: Operand, *_: Any, correction: Any = None, **__: Any) -> Value | Reject:
    return _variance(b, x, correction)


@lowers(aten.std.correction, reduction=dims_at(keepdim=9), flops=6)
def std(b: Builder, x: Operand, *_: Any, correction: Any = None, **__: Any) -> Value | Reject:
    # Eager adds squares in float64. Those of numbers beyond 1e19 overflow in float32.
    large = b.compare("greater", b.reduce("maximum", b.unary("abs", x)), 1e18)
    down = b.select(large, 2.0**-96, 1.0, torch.float32)
    variance = _variance(b, b.mul(x, down), correction)
    if isinstance(variance, Reject):
        return variance
    return b.mul(b.unary("sqrt", variance), b.select(large, 2.0**96, 1.0, torch.float32))


@lowers(aten.linalg_vector_norm, reduction=dims_at(2, 3), flops=3)
def vector_norm(b: Builder, x: Operand, order: Any = 2, *_: Any, **__: Any) -> Value:
    size = b.unary("abs", x)
    if b.count == 1 and order != 0:
        return size
    if order == math.inf:
        return b.reduce("maximum", size)
    if order == -math.inf:
        return b.reduce("minimum", size)
    if order == 0:
        return b.reduce("add", b.compare("not_equal", x, 0))
    if order == 1:
        return b.reduce("add", size)
    if order == 2:
        return b.unary("sqrt", b.reduce("add", b.mul(x, x)))
    return b.alu("power", b.reduce("add", b.alu("power", size, float(order))), 1.0 / order)


@lowers(aten._softmax, reduction=along(), flops=5)
def softmax(b: Builder, x: Operand, *_: Any) -> Value:
    weights = b.unary("exp", b.sub(x, b.reduce("maximum", x)))
    return b.mul(weights, b.reciprocal(b.reduce("add", weights)))


@lowers(aten._log_softmax, reduction=along(), flops=5)
def log_softmax(b: Builder, x: Operand, *_: Any) -> Value:
    shifted = b.sub(x, b.reduce("maximum", x))
    return b.sub(shifted, b.unary("log", b.reduce("add", b.unary("exp", shifted))))


@lowers(torch.ops.trnx.rms_norm.default, reduction=last, flops=5)
def rms_norm(
    b: Builder,
    x: Operand,
    weight: Operand | None,
    eps: float,
    offset: float = 0.0,
    rounds: bool = False,
) -> Value:
    """The op of rows that the registry's kernel does not take: those longer than a partition. The
    root is a power, which VectorE has: ScalarE would load a table for it, and another one for what
    comes next."""
    mean = b.mul(b.reduce("add", b.mul(x, x)), 1.0 / b.count)
    normal = b.mul(x, b.alu("power", b.add(mean, eps), -0.5))
    if weight is None:
        return normal
    if rounds:
        normal = b.cast(normal, b.out)
    return b.mul(normal, b.add(weight, offset) if offset else weight)
