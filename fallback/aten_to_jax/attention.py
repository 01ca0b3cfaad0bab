"""The `trnx::` attention ops, with the meaning that `trnx.nki_kernels.canonical_ops` gives them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import trnx.nki_kernels.canonical_ops  # registers the ops
from trnx.fallback.aten_to_jax.dtypes import wide
from trnx.fallback.aten_to_jax.matmul import product
from trnx.fallback.aten_to_jax.table import register

assert trnx.nki_kernels.canonical_ops


def _heads(x: Any, heads: int) -> Any:
    """x [B, Hkv, S, D] with each head repeated for its queries."""
    return jnp.repeat(wide(x), heads // max(x.shape[1], 1), axis=1)


def _transposed(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def _probabilities(
    q: Any, k: Any, mask: Any, is_causal: bool, scale: float, window: int
) -> tuple[Any, Any]:
    """Softmax of the scores and its logsumexp; rows that attend to nothing are zero."""
    scores = product(wide(q), _transposed(_heads(k, q.shape[1]))) * scale
    if is_causal:
        below = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        if window:
            below = jnp.triu(below, 1 - window)
        scores = jnp.where(below, scores, -jnp.inf)
    if mask is not None and mask.dtype == np.bool_:
        scores = jnp.where(mask, scores, -jnp.inf)
    elif mask is not None:
        scores = scores + mask
    if scores.shape[-1] == 0:
        return scores, jnp.zeros(scores.shape[:-1], scores.dtype)
    top = jnp.max(scores, -1, keepdims=True)
    top = jnp.where(top == -jnp.inf, 0, top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, -1, keepdims=True)
    lse = jnp.where(total == 0, 0, jnp.log(total) + top)
    return weights / jnp.where(total == 0, 1, total), lse[..., 0]


def _kept(weights: Any, dropout_mask: Any, dropout_p: float) -> Any:
    if dropout_mask is None:
        return weights
    scale = 0.0 if dropout_p >= 1.0 else 1.0 / (1.0 - dropout_p)
    return jnp.where(dropout_mask != 0, weights * scale, 0)


@register("trnx::sdpa")
def _sdpa(
    q: Any, k: Any, v: Any, mask: Any, dropout_mask: Any, dropout_p: float, is_causal: bool,
    scale: float, window: int = 0,
) -> tuple[Any, Any]:  # fmt: skip
    weights, lse = _probabilities(q, k, mask, is_causal, scale, window)
    return product(_kept(weights, dropout_mask, dropout_p), _heads(v, q.shape[1])), lse


def _ungroup(grad: Any, heads: int) -> Any:
    """Sum the gradients of repeated heads."""
    batch, total, *rest = grad.shape
    return grad.reshape((batch, heads, total // max(heads, 1), *rest)).sum(2)


def _sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    lead = x.ndim - len(shape)
    x = jnp.sum(x, tuple(range(lead)))
    dims = tuple(d for d, n in enumerate(shape) if n == 1 and x.shape[d] != 1)
    return jnp.sum(x, dims, keepdims=True)


@register("trnx::sdpa_backward")
def _sdpa_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, mask: Any, dropout_mask: Any,
    dropout_p: float, is_causal: bool, scale: float, mask_grad: bool,
    window: int = 0,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    weights, _ = _probabilities(q, k, mask, is_causal, scale, window)
    grad = wide(grad)
    dweights = product(grad, _transposed(_heads(v, q.shape[1])))
    dweights = _kept(dweights, dropout_mask, dropout_p)
    kept = _kept(weights, dropout_mask, dropout_p)
    dv = _ungroup(product(_transposed(kept), grad), v.shape[1])
    dscores = weights * (dweights - jnp.sum(weights * dweights, -1, keepdims=True))
    dq = product(dscores, _heads(k, q.shape[1])) * scale
    dk = _ungroup(product(_transposed(dscores), wide(q)), k.shape[1]) * scale
    dmask = jnp.zeros((1,), q.dtype)
    if mask is not None and mask_grad:
        dmask = _sum_to(dscores, mask.shape)
    return dq, dk, dv, dmask
