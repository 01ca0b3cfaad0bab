"""Activation functions and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trnx.fallback.aten_to_jax.dtypes import F32, axis, cast, compute, is_floating, wide
from trnx.fallback.aten_to_jax.pointwise import add, clamp, divide
from trnx.fallback.aten_to_jax.table import register


def gradient(function: Callable[..., Any], grad: Any, *primals: Any) -> Any:
    """The gradients of `function` to its primals; one value for one primal."""
    out, pull = jax.vjp(function, *primals)
    grads = pull(cast(grad, out.dtype))
    return grads[0] if len(primals) == 1 else grads


@register("gelu")
def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return jax.nn.gelu(wide(x), approximate=approximate == "tanh")


@register("trnx::quick_gelu")
def _quick_gelu(x: Any) -> Any:
    return wide(x) * jax.nn.sigmoid(1.702 * wide(x))


@register("gelu_backward")
def _gelu_backward(grad: Any, x: Any, *, approximate: str = "none") -> Any:
    grad, x = compute(grad, x)
    if approximate == "none":
        density = jnp.exp(-0.5 * x * x) * (0.5 * math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5)
        return grad * (0.5 * (1 + lax.erf(x * math.sqrt(0.5))) + x * density)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    curve = jnp.tanh(scale * (x + cubic * x * x * x))
    slope = 0.5 * x * ((1 - curve * curve) * (scale * (1 + 3 * cubic * x * x)))
    return grad * (0.5 * (1 + curve) + slope)


@register("silu")
def _silu(x: Any) -> Any:
    return wide(x) * jax.nn.sigmoid(wide(x))


@register("silu_backward")
def _silu_backward(grad: Any, x: Any) -> Any:
    grad, x = compute(grad, x)
    gate = jax.nn.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


@register("mish")
def _mish(x: Any) -> Any:
    return wide(x) * jnp.tanh(jax.nn.softplus(wide(x)))


@register("mish_backward")
def _mish_backward(grad: Any, x: Any) -> Any:
    grad, x = compute(grad, x)
    gate = jax.nn.sigmoid(x)
    curve = jnp.tanh(jnp.log1p(jnp.exp(x)))
    return grad * (curve + x * gate * (1 - curve * curve))


@register("sigmoid_backward")
def _sigmoid_backward(grad: Any, out: Any) -> Any:
    grad, out = compute(grad, out)
    return grad * (1 - out) * out


@register("tanh_backward")
def _tanh_backward(grad: Any, out: Any) -> Any:
    grad, out = compute(grad, out)
    return grad * (1 - out * out)


@register("threshold")
def _threshold(x: Any, threshold: Any, value: Any) -> Any:
    (v,) = compute(x)
    return jnp.where(v <= cast(threshold, v.dtype), cast(value, v.dtype), v)


@register("threshold_backward")
def _threshold_backward(grad: Any, x: Any, threshold: Any) -> Any:
    grad, x = compute(grad, x)
    return jnp.where(x <= cast(threshold, x.dtype), 0, grad)


@register("leaky_relu")
def _leaky_relu(x: Any, slope: float = 0.01) -> Any:
    x = wide(x)
    return jnp.where(x > 0, x, x * cast(float(slope), x.dtype))


@register("leaky_relu_backward")
def _leaky_relu_backward(grad: Any, x: Any, slope: float, is_result: bool) -> Any:
    if is_result and slope < 0:
        raise ValueError("eager refuses a negative slope with the result")
    grad, x = compute(grad, x)
    return jnp.where(x > 0, grad, grad * cast(float(slope), x.dtype))


@register("hardtanh")
def _hardtanh(x: Any, low: float = -1, high: float = 1) -> Any:
    (v,) = compute(x)
    return clamp(v, low, high)


@register("hardtanh_backward")
def _hardtanh_backward(grad: Any, x: Any, low: float, high: float) -> Any:
    grad, x = compute(grad, x)
    return jnp.where((x > low) & (x < high), grad, 0)


@register("hardsigmoid")
def _hardsigmoid(x: Any) -> Any:
    return divide(jnp.clip(wide(x) + 3, 0, 6), cast(6, wide(x).dtype))


@register("hardsigmoid_backward")
def _hardsigmoid_backward(grad: Any, x: Any) -> Any:
    grad, x = compute(grad, x)
    return jnp.where((x > -3) & (x < 3), grad * (1 / 6), 0)


@register("hardswish")
def _hardswish(x: Any) -> Any:
    return divide(wide(x) * jnp.clip(wide(x) + 3, 0, 6), cast(6, wide(x).dtype))


@register("hardswish_backward")
def _hardswish_backward(grad: Any, x: Any) -> Any:
    grad, x = compute(grad, x)
    inner = grad * (divide(x, cast(3, x.dtype)) + 0.5)
    return jnp.where(x <= -3, 0, jnp.where(x >= 3, grad, inner))


@register("elu")
def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    x = wide(x)
    return jnp.where(x > 0, x * scale, jnp.expm1(x * input_scale) * (alpha * scale))


@register("elu_backward")
def _elu_backward(
    grad: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any
) -> Any:
    grad, x = compute(grad, x)
    slope = input_scale * alpha * scale
    if is_result:
        below = grad * input_scale * add(x, float(alpha * scale))
    else:
        below = grad * slope * jnp.exp(x * input_scale)
    return jnp.where(x > 0, grad * scale, below)


@register("softplus")
def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    x = wide(x)
    scaled = x * beta
    return jnp.where(scaled > threshold, x, jnp.log1p(jnp.exp(scaled)) / beta)


@register("softplus_backward")
def _softplus_backward(grad: Any, x: Any, beta: float, threshold: float) -> Any:
    grad, x = compute(grad, x)
    power = jnp.exp(x * beta)
    return jnp.where(x * beta > threshold, grad, divide(grad * power, power + 1))


@register("log_sigmoid_forward")
def _log_sigmoid(x: Any) -> Any:
    v = wide(x)
    # The second result is scratch space of eager's vectorised kernel: it has no defined values.
    return jnp.minimum(v, 0) - jnp.log1p(jnp.exp(-jnp.abs(v))), jnp.exp(-jnp.abs(v))


@register("log_sigmoid_backward")
def _log_sigmoid_backward(grad: Any, x: Any, _buffer: Any) -> Any:
    grad, x = compute(grad, x)
    return grad * jax.nn.sigmoid(-x)


@register("softshrink")
def _softshrink(x: Any, bound: float = 0.5) -> Any:
    v = wide(x)
    shrunk = jnp.where(v > bound, v - bound, jnp.where(v < -bound, v + bound, 0))
    return jnp.where(jnp.isnan(v), v, shrunk)


@register("hardshrink")
def _hardshrink(x: Any, bound: float = 0.5) -> Any:
    v = wide(x)
    return jnp.where((v >= -bound) & (v <= bound), 0, v)


@register("softshrink_backward", "hardshrink_backward")
def _shrink_backward(grad: Any, x: Any, bound: float) -> Any:
    bound = wide(cast(float(bound), x.dtype))
    grad, x = compute(grad, x)
    return jnp.where((x > bound) | (x < -bound), grad, 0)


@register("_prelu_kernel")
def _prelu(x: Any, weight: Any) -> Any:
    x, weight = compute(x, weight)
    return jnp.where(x > 0, x, x * weight)


@register("_prelu_kernel_backward")
def _prelu_backward(grad: Any, x: Any, weight: Any) -> Any:
    grad, x, weight = compute(grad, x, weight)
    return jnp.where(x > 0, grad, weight * grad), jnp.where(x > 0, 0, x * grad)


def _halves(x: Any, dim: int) -> tuple[Any, Any]:
    first, second = jnp.split(x, 2, axis(dim, x.ndim))
    return first, second


@register("glu")
def _glu(x: Any, dim: int = -1) -> Any:
    first, second = _halves(wide(x), dim)
    return first * jax.nn.sigmoid(second)


@register("glu_backward")
def _glu_backward(grad: Any, x: Any, dim: int) -> Any:
    def function(v: Any) -> Any:
        first, second = _halves(v, dim)
        return first * jax.nn.sigmoid(second)

    return gradient(function, grad, wide(x))


def _logit_of(x: Any) -> Any:
    return jnp.log(divide(x, 1 - x))


def _limits(eps: float, dtype: Any) -> tuple[Any, Any]:
    """eps and 1 - eps, rounded to the input's dtype as in eager."""
    low = cast(float(eps), dtype)
    return low, 1 - low


@register("logit")
def _logit(x: Any, eps: float | None = None) -> Any:
    x = x if is_floating(x) else cast(x, F32)
    return _logit_of(wide(x if eps is None else jnp.clip(x, *_limits(eps, x.dtype))))


@register("logit_backward")
def _logit_backward(grad: Any, x: Any, eps: float | None = None) -> Any:
    low, high = _limits(0.0 if eps is None else eps, x.dtype)
    inside = (x >= low) & (x <= high)
    grad, x = compute(grad, x)
    return jnp.where(inside, divide(grad, x * (1 - x)), jnp.nan if eps is None else 0.0)
