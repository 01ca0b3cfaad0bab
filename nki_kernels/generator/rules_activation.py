"""Lowerings of elementary functions and activations, forward."""

from __future__ import annotations

import math
from typing import Any

import torch

from trnx.nki_kernels import canonical_ops  # noqa: F401  registers torch.ops.trnx
from trnx.nki_kernels.generator.ir import INTEGER_DTYPES, Builder, Lowering, Operand, Value
from trnx.nki_kernels.generator.rules_arithmetic import arithmetic, choose
from trnx.nki_kernels.generator.table import lowers

aten = torch.ops.aten


def _function(name: str) -> Lowering:
    def lowering(b: Builder, x: Operand) -> Value:
        return b.unary(name, x)

    return lowering


lowers(aten.exp)(_function("exp"))
lowers(aten.log)(_function("log"))
lowers(aten.sqrt)(_function("sqrt"))
lowers(aten.rsqrt)(_function("rsqrt"))
lowers(aten.tanh)(_function("tanh"))
lowers(aten.sigmoid)(_function("sigmoid"))
lowers(aten.silu)(_function("silu"))
lowers(aten.erf)(_function("erf"))
lowers(aten.mish)(_function("mish"))


@lowers(aten.relu)
def relu(b: Builder, x: Operand) -> Operand:
    return arithmetic(b, "maximum", x, 0) if b.out in INTEGER_DTYPES else b.maximum(x, 0.0)


@lowers(aten.log2, flops=2)
def log2(b: Builder, x: Operand) -> Value:
    return b.mul(b.unary("log", x), 1.0 / math.log(2.0))


@lowers(aten.log10, flops=2)
def log10(b: Builder, x: Operand) -> Value:
    return b.mul(b.unary("log", x), 1.0 / math.log(10.0))


def _expm1(b: Builder, x: Operand) -> Value:
    # exp(x) - 1 cancels near 0; tanh(x / 2) (exp(x) + 1), which is the same, does not.
    return b.mul(b.add(b.unary("exp", x), 1.0), b.unary("tanh", b.mul(x, 0.5)))


lowers(aten.expm1, flops=5)(_expm1)


@lowers(aten.log1p, flops=9)
def log1p(b: Builder, x: Operand) -> Value:
    if isinstance(x, Value) and _is_small_exponential(x):
        return b.unary("softplus", x.args[0])
    # Near 0 the rounding of 1 + x is undone by the factor x / ((1 + x) - 1).
    shifted = b.add(x, 1.0)
    far = b.unary("log", shifted)
    near = b.mul(b.mul(far, x), b.unary("reciprocal", b.sub(shifted, 1.0)))
    result = b.select(b.compare("less", b.unary("abs", x), 0.5), near, far)
    return b.select(b.compare("equal", shifted, 1.0), x, result, torch.float32)


def _is_small_exponential(x: Value) -> bool:
    """Whether it is exp(-|z|) or so, at most 1 and not rounded to another dtype: log(1 + exp(z))
    overflows in eager where softplus(z) does not."""
    if (x.op, x.name) != ("unary", "exp"):
        return False
    (power,) = x.args
    if not isinstance(power, Value) or (power.op, power.name) != ("alu", "multiply"):
        return False
    magnitude, factor = power.args
    is_magnitude = isinstance(magnitude, Value) and (magnitude.op, magnitude.name) == (
        "unary",
        "abs",
    )
    return is_magnitude and not isinstance(factor, Value) and factor < 0


@lowers(aten.gelu)
def gelu(b: Builder, x: Operand, *, approximate: str = "none") -> Value:
    return b.unary("gelu_apprx_tanh" if approximate == "tanh" else "gelu", x)


@lowers(torch.ops.trnx.quick_gelu.default, flops=2)
def quick_gelu(b: Builder, x: Operand) -> Value:
    return b.unary("gelu_apprx_sigmoid", x)


@lowers(aten.leaky_relu, flops=2)
def leaky_relu(b: Builder, x: Operand, slope: Any = 0.01) -> Value:
    scaled = b.mul(x, slope)
    if 0 < slope <= 1:
        return b.maximum(scaled, x)
    return b.select(b.compare("greater", x, 0.0), x, scaled, torch.float32)


@lowers(aten.prelu, aten._prelu_kernel, flops=3)
def prelu(b: Builder, x: Operand, weight: Operand) -> Value:
    return b.select(b.compare("greater", x, 0.0), x, b.mul(x, weight), torch.float32)


def _elu(b: Builder, x: Operand, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    negative = b.mul(_expm1(b, b.mul(x, input_scale) if input_scale != 1 else x), alpha * scale)
    positive = x if scale == 1 else b.mul(x, scale)
    return b.select(b.compare("greater", x, 0.0), positive, negative, torch.float32)


lowers(aten.elu, flops=5)(_elu)


@lowers(aten.celu, flops=5)
def celu(b: Builder, x: Operand, alpha: Any = 1.0) -> Value:
    return _elu(b, x, alpha, 1, 1.0 / alpha)


@lowers(aten.selu, flops=5)
def selu(b: Builder, x: Operand) -> Value:
    return _elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _hardtanh(b: Builder, x: Operand, low: Any = -1, high: Any = 1) -> Operand:
    if b.out in INTEGER_DTYPES:
        return arithmetic(b, "minimum", arithmetic(b, "maximum", x, low), high)
    return b.minimum(b.maximum(x, low), high)


lowers(aten.hardtanh, flops=2)(_hardtanh)


@lowers(aten.relu6, flops=2)
def relu6(b: Builder, x: Operand) -> Operand:
    return _hardtanh(b, x, 0, 6)


def _six(b: Builder, x: Operand) -> Value:
    return b.minimum(b.maximum(b.add(x, 3.0), 0.0), 6.0)


@lowers(aten.hardsigmoid, flops=4)
def hardsigmoid(b: Builder, x: Operand) -> Value:
    return b.mul(_six(b, x), 1.0 / 6.0)


@lowers(aten.hardswish, flops=5)
def hardswish(b: Builder, x: Operand) -> Value:
    return b.mul(b.mul(x, _six(b, x)), 1.0 / 6.0)


@lowers(aten.softplus, flops=5)
def softplus(b: Builder, x: Operand, beta: Any = 1, threshold: Any = 20) -> Value:
    scaled = x if beta == 1 else b.mul(x, beta)
    curve: Operand = b.unary("softplus", scaled)
    curve = curve if beta == 1 else b.mul(curve, 1.0 / beta)
    return b.select(b.compare("greater", scaled, threshold), x, curve, torch.float32)


@lowers(aten.log_sigmoid, flops=4)
def log_sigmoid(b: Builder, x: Operand) -> Value:
    # min(x, 0) - log(1 + exp(-|x|)), which neither overflows nor cancels.
    tail = b.unary("softplus", b.mul(b.unary("abs", x), -1.0))
    return b.sub(b.minimum(x, 0.0), tail)


@lowers(aten.logaddexp, flops=6)
def logaddexp(b: Builder, x: Operand, y: Operand) -> Value:
    # Equal infinities have no difference.
    difference = b.select(b.compare("equal", x, y), 0.0, b.sub(x, y), torch.float32)
    tail = b.unary("softplus", b.mul(b.unary("abs", difference), -1.0))
    return b.add(b.maximum(x, y), tail)


@lowers(aten.logit, flops=3)
def logit(b: Builder, x: Operand, eps: Any = None) -> Value:
    if eps is not None:
        x = b.minimum(b.maximum(x, eps), 1.0 - eps)
    return b.unary("log", b.mul(x, b.unary("reciprocal", b.sub(1.0, x))))


@lowers(aten.threshold)
def threshold(b: Builder, x: Operand, limit: Any, value: Any) -> Operand:
    if b.out in INTEGER_DTYPES:
        return choose(b, b.compare("less_equal", x, int(limit)), int(value), x)
    return b.select(b.compare("less_equal", x, limit), float(value), x)


@lowers(aten.softshrink, flops=4)
def softshrink(b: Builder, x: Operand, lambd: Any = 0.5) -> Value:
    result = b.select(b.compare("greater", x, lambd), b.sub(x, lambd), b.mul(x, 0.0))
    return b.select(b.compare("less", x, -lambd), b.add(x, lambd), result)


@lowers(aten.hardshrink, flops=3)
def hardshrink(b: Builder, x: Operand, lambd: Any = 0.5) -> Value:
    inside = b.compare("less_equal", b.unary("abs", x), lambd)
    return b.select(inside, 0.0, x)


@lowers(aten.xlogy, flops=4)
def xlogy(b: Builder, x: Operand, y: Operand) -> Value:
    if not isinstance(y, Value):
        y = b.constant(float(y), torch.float32, frozenset())
    result = b.select(b.compare("equal", x, 0), 0.0, b.mul(x, b.unary("log", y)))
    return b.select(b.compare("equal", y, y), result, y, torch.float32)
