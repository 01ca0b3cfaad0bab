"""Losses and their gradients. `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trnx.fallback.aten_to_jax.dtypes import cast, compute, wide
from trnx.fallback.aten_to_jax.table import register, require


def _reduce(loss: Any, reduction: int) -> Any:
    return loss if reduction == 0 else jnp.mean(loss) if reduction == 1 else jnp.sum(loss)


def _enter(name: str, function: Callable[..., Any], defaults: tuple[Any, ...] = ()) -> None:
    """Enter a loss of (x, target, *parameters) and its gradient to x."""

    @register(name)
    def _(x: Any, target: Any, reduction: int = 1, *parameters: Any, **named: Any) -> Any:
        parameters = (*parameters, *named.values()) or defaults
        x, target = compute(x, target)
        return _reduce(function(x, target, *parameters), reduction)

    @register(f"{name}_backward")
    def _(grad: Any, x: Any, target: Any, reduction: int, *parameters: Any) -> Any:
        x, target = compute(x, target)
        loss, pull = jax.vjp(lambda v: _reduce(function(v, target, *parameters), reduction), x)
        return pull(jnp.broadcast_to(cast(grad, loss.dtype), loss.shape))[0]


def _mse(x: Any, target: Any) -> Any:
    return (x - target) ** 2


def _smooth_l1(x: Any, target: Any, beta: float) -> Any:
    gap = x - target
    far = jnp.abs(gap) - 0.5 * beta
    if beta == 0:
        return jnp.abs(gap)
    return jnp.where(jnp.abs(gap) < beta, 0.5 * gap * gap / beta, far)


def _huber(x: Any, target: Any, delta: float) -> Any:
    gap = x - target
    far = delta * (jnp.abs(gap) - 0.5 * delta)
    return jnp.where(jnp.abs(gap) <= delta, 0.5 * gap * gap, far)


def _soft_margin(x: Any, target: Any) -> Any:
    return jnp.log1p(jnp.exp(-x * target))


_enter("mse_loss", _mse)
_enter("smooth_l1_loss", _smooth_l1, (1.0,))
_enter("huber_loss", _huber, (1.0,))
_enter("soft_margin_loss", _soft_margin)


def _weighted(loss: Any, weight: Any) -> Any:
    return loss if weight is None else loss * cast(weight, loss.dtype)


@register("binary_cross_entropy")
def _bce(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    x, target = compute(x, target)
    require((x >= 0) & (x <= 1) & (target >= 0) & (target <= 1))
    left = (target - 1) * jnp.maximum(jnp.log1p(-x), -100)
    return _reduce(_weighted(left - target * jnp.maximum(jnp.log(x), -100), weight), reduction)


@register("binary_cross_entropy_backward")
def _bce_backward(grad: Any, x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    grad, x, target = compute(grad, x, target)
    out = grad * (x - target) / jnp.maximum((1 - x) * x, 1e-12)
    out = _weighted(out, weight)
    return out / x.size if reduction == 1 else out


@register("binary_cross_entropy_with_logits")
def _bce_logits(
    x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    x, target = compute(x, target)
    scale = 1 if pos_weight is None else (cast(pos_weight, x.dtype) - 1) * target + 1
    log_sigmoid = jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))
    return _reduce(_weighted((1 - target) * x - scale * log_sigmoid, weight), reduction)


def _picked(target: Any, classes: int, ignore: int) -> tuple[Any, Any]:
    """The class of each element, safe to index with, and which elements count."""
    counts = target != ignore
    require(~counts | ((target >= 0) & (target < classes)))
    return jnp.where(counts, target, 0), counts


def _nll_weights(x: Any, target: Any, weight: Any, ignore: int) -> tuple[Any, Any]:
    classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    safe, counts = _picked(target, classes, ignore)
    factor = jnp.ones(target.shape, x.dtype) if weight is None else cast(weight, x.dtype)[safe]
    return safe, jnp.where(counts, factor, 0)


@register("nll_loss_forward", "nll_loss2d_forward")
def _nll(x: Any, target: Any, weight: Any, reduction: int, ignore: int) -> tuple[Any, Any]:
    x = wide(x)
    safe, factor = _nll_weights(x, target, weight, ignore)
    dim = 1 if x.ndim > 1 else 0
    taken = jnp.take_along_axis(x, jnp.expand_dims(safe, dim), dim).squeeze(dim)
    loss = jnp.where(factor == 0, 0, -taken * factor)
    total = jnp.sum(factor)
    if reduction == 0:
        # Eager leaves the total weight unfilled or zero when nothing is reduced.
        return loss, jnp.zeros((), x.dtype)
    return jnp.sum(loss) / total if reduction == 1 else jnp.sum(loss), total


@register("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(
    grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore: int, total: Any
) -> Any:
    grad, x = wide(grad), wide(x)
    safe, factor = _nll_weights(x, target, weight, ignore)
    scale = -factor * grad
    if reduction == 1:
        scale = scale / cast(total, x.dtype)
    dim = 1 if x.ndim > 1 else 0
    hot = jax.nn.one_hot(safe, x.shape[dim], axis=dim, dtype=x.dtype)
    return hot * jnp.expand_dims(jnp.where(factor == 0, 0, scale), dim)


@register("trnx::cross_entropy")
def _cross_entropy(x: Any, target: Any, reduction: int, ignore: int) -> tuple[Any, Any, Any, Any]:
    x = wide(x)
    top = jnp.max(x, 1)
    total = jnp.sum(jnp.exp(x - top[:, None]), 1)
    logs = x - top[:, None] - jnp.log(total)[:, None]
    loss, _ = _nll(logs, target, None, reduction, ignore)
    weight = jnp.sum(cast(target != ignore, x.dtype))
    return jnp.reshape(loss, -1), jnp.reshape(weight, 1), top, total


@register("trnx::cross_entropy_backward")
def _cross_entropy_backward(
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    top: Any,
    total: Any,
    reduction: int,
    ignore: int,
) -> Any:
    x = wide(x)
    safe, counts = _nll_weights(x, target, None, ignore)
    slope = wide(grad) * counts
    if reduction == 1:
        slope = slope / weight
    hot = jax.nn.one_hot(safe, x.shape[1], dtype=x.dtype)
    return jnp.exp(x - top[:, None]) * (slope / total)[:, None] - hot * slope[:, None]
