"""Lowerings of backward ops. `g` is the gradient of the output."""

from __future__ import annotations

import math
from typing import Any

import torch

from trnx.nki_kernels.generator.ir import Builder, Operand, Value
from trnx.nki_kernels.generator.table import along, lowers

aten = torch.ops.aten


@lowers(aten.tanh_backward, flops=3)
def tanh_backward(b: Builder, g: Operand, output: Operand) -> Value:
    return b.mul(g, b.sub(1.0, b.mul(output, output)))


@lowers(aten.sigmoid_backward, flops=3)
def sigmoid_backward(b: Builder, g: Operand, output: Operand) -> Value:
    return b.mul(b.mul(g, b.sub(1.0, output)), output)


@lowers(aten.threshold_backward, flops=2)
def threshold_backward(b: Builder, g: Operand, x: Operand, limit: Any) -> Value:
    return b.select(b.compare("less_equal", x, limit), 0.0, b.to_float(g))


@lowers(aten.gelu_backward, flops=12)
def gelu_backward(b: Builder, g: Operand, x: Operand, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return b.mul(g, _gelu_tanh_slope(b, x))
    return b.mul(g, b.unary("gelu_dx", x))


def _gelu_tanh_slope(b: Builder, x: Operand) -> Value:
    scale, cubic = math.sqrt(2.0 / math.pi), 0.044715
    square = b.mul(x, x)
    t = b.unary("tanh", b.mul(b.mul(b.add(b.mul(square, cubic), 1.0), x), scale))
    left = b.add(b.mul(t, 0.5), 0.5)
    inner = b.add(b.mul(square, 3.0 * cubic * scale), scale)
    slope = b.mul(b.sub(1.0, b.mul(t, t)), inner)
    return b.add(left, b.mul(b.mul(slope, 0.5), x))


@lowers(aten.silu_backward, flops=6)
def silu_backward(b: Builder, g: Operand, x: Operand) -> Value:
    return b.mul(g, b.unary("silu_dx", x))


@lowers(aten.log_sigmoid_backward, flops=3)
def log_sigmoid_backward(b: Builder, g: Operand, x: Operand, _buffer: Operand) -> Value:
    return b.mul(g, b.unary("sigmoid", b.mul(x, -1.0)))


@lowers(aten.leaky_relu_backward, flops=3)
def leaky_relu_backward(b: Builder, g: Operand, x: Operand, slope: Any, is_result: bool) -> Value:
    del is_result  # the result has the sign of the input
    return b.select(b.compare("greater", x, 0.0), b.to_float(g), b.mul(g, slope), torch.float32)


@lowers(aten.hardtanh_backward, flops=3)
def hardtanh_backward(b: Builder, g: Operand, x: Operand, low: Any, high: Any) -> Value:
    outside = b.alu(
        "logical_or",
        b.compare("less_equal", x, low),
        b.compare("greater_equal", x, high),
        torch.bool,
    )
    return b.select(outside, 0.0, b.to_float(g))


@lowers(aten.hardsigmoid_backward, flops=4)
def hardsigmoid_backward(b: Builder, g: Operand, x: Operand) -> Value:
    inside = b.alu(
        "logical_and", b.compare("greater", x, -3.0), b.compare("less", x, 3.0), torch.bool
    )
    return b.select(inside, b.mul(g, 1.0 / 6.0), 0.0)


@lowers(aten.hardswish_backward, flops=6)
def hardswish_backward(b: Builder, g: Operand, x: Operand) -> Value:
    middle = b.mul(g, b.add(b.mul(x, 1.0 / 3.0), 0.5))
    result = b.select(b.compare("less_equal", x, -3.0), 0.0, middle)
    return b.select(b.compare("greater_equal", x, 3.0), b.to_float(g), result, torch.float32)


@lowers(aten.elu_backward, flops=6)
def elu_backward(
    b: Builder, g: Operand, alpha: Any, scale: Any, inner: Any, is_result: bool, x: Operand
) -> Value:
    if is_result:
        negative = b.mul(b.mul(g, inner), b.add(x, alpha * scale))
    else:
        negative = b.mul(b.mul(g, inner * alpha * scale), b.unary("exp", b.mul(x, inner)))
    positive = b.mul(g, scale)
    return b.select(b.compare("less_equal", x, 0.0), negative, positive)


@lowers(aten.softplus_backward, flops=5)
def softplus_backward(b: Builder, g: Operand, x: Operand, beta: Any, threshold: Any) -> Value:
    scaled = b.mul(x, beta)
    slope = b.mul(g, b.unary("sigmoid", scaled))
    return b.select(b.compare("greater", scaled, threshold), b.to_float(g), slope, torch.float32)


@lowers(aten.native_dropout_backward, flops=2)
def native_dropout_backward(b: Builder, g: Operand, mask: Operand, scale: Any) -> Value:
    return b.mul(b.mul(g, mask), scale)


@lowers(aten._softmax_backward_data, reduction=along(2), flops=4)
def softmax_backward(b: Builder, g: Operand, output: Operand, dim: int, dtype: Any) -> Value:
    del dim, dtype  # the builder's labels and out dtype say both
    weighted = b.mul(g, output)
    return b.sub(weighted, b.mul(output, b.reduce("add", weighted)))


@lowers(aten._log_softmax_backward_data, reduction=along(2), flops=5)
def log_softmax_backward(b: Builder, g: Operand, output: Operand, dim: int, dtype: Any) -> Value:
    del dim, dtype
    return b.sub(g, b.mul(b.unary("exp", output), b.reduce("add", g)))
