"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from trnx.fallback.aten_to_jax.dtypes import compute, wide
from trnx.fallback.aten_to_jax.table import register


@register("_softmax")
def _softmax(x: Any, dim: int, half_to_float: Any = False) -> Any:
    return jax.nn.softmax(wide(x), axis=dim) if x.ndim else jnp.ones((), wide(x).dtype)


@register("_log_softmax")
def _log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    return jax.nn.log_softmax(wide(x), axis=dim) if x.ndim else jnp.zeros((), wide(x).dtype)


@register("_softmax_backward_data")
def _softmax_backward(grad: Any, out: Any, dim: int, dtype: Any) -> Any:
    grad, out = compute(grad, out)
    dim = dim if out.ndim else None  # type: ignore[assignment]
    weighted = grad * out
    return weighted - out * jnp.sum(weighted, dim, keepdims=True)


@register("_log_softmax_backward_data")
def _log_softmax_backward(grad: Any, out: Any, dim: int, dtype: Any) -> Any:
    grad, out = compute(grad, out)
    dim = dim if out.ndim else None  # type: ignore[assignment]
    return grad - jnp.exp(out) * jnp.sum(grad, dim, keepdims=True)


@register("_safe_softmax")
def _safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    x = wide(x)
    masked = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(masked, 0, _softmax(x, dim))
