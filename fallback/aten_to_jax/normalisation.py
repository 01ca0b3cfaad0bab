"""Layer, group, batch and RMS normalisation with their gradients, and dropout's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from torch import fx

from trnx.fallback.aten_to_jax.dtypes import cast, wide
from trnx.fallback.aten_to_jax.table import argument, register
from trnx.simulator.errors import Reject


def _normal(x: Any, dims: Any, eps: float) -> tuple[Any, Any, Any]:
    """x normalised over `dims`, the mean and 1/std (both keep their dimensions)."""
    mean = jnp.mean(x, dims, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, dims, keepdims=True)
    rstd = lax.rsqrt(variance + eps)
    return (x - mean) * rstd, mean, rstd


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        x = x * cast(weight, x.dtype)
    return x if bias is None else x + cast(bias, x.dtype)


@register("native_layer_norm")
def _layer_norm(
    x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any]:
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    normal, mean, rstd = _normal(wide(x), dims, eps)
    return _affine(normal, weight, bias), mean, rstd


def _normal_backward(grad: Any, normal: Any, rstd: Any, dims: Any) -> Any:
    """Gradient through `normal` with statistics taken over `dims`."""
    mean_grad = jnp.mean(grad, dims, keepdims=True)
    projection = jnp.mean(grad * normal, dims, keepdims=True)
    return rstd * (grad - mean_grad - normal * projection)


@register("native_layer_norm_backward")
def _layer_norm_backward(
    grad: Any, x: Any, shape: Sequence[int], mean: Any, rstd: Any, weight: Any, bias: Any,
    mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    lead = x.ndim - len(shape)
    dims, rows = tuple(range(lead, x.ndim)), tuple(range(lead))
    grad, x = wide(grad), wide(x)
    mean, rstd = cast(mean, x.dtype), cast(rstd, x.dtype)
    normal = (x - mean) * rstd
    dx = _normal_backward(_affine(grad, weight, None), normal, rstd, dims) if mask[0] else None
    dweight = jnp.sum(grad * normal, rows) if mask[1] and weight is not None else None
    dbias = jnp.sum(grad, rows) if mask[2] and bias is not None else None
    return dx, dweight, dbias


def _by_group(x: Any, n: int, groups: int) -> Any:
    return wide(x).reshape((n, groups, -1))


@register("native_group_norm")
def _group_norm(
    x: Any,
    weight: Any,
    bias: Any,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    eps: float,
) -> tuple[Any, Any, Any]:
    normal, mean, rstd = _normal(_by_group(x, n, groups), 2, eps)
    channels = (1, c) + (1,) * (x.ndim - 2)
    weight, bias = (v if v is None else v.reshape(channels) for v in (weight, bias))
    out = _affine(normal.reshape(x.shape), weight, bias)
    return out, mean[..., 0], rstd[..., 0]


@register("native_group_norm_backward")
def _group_norm_backward(
    grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int,
    mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    rstd = cast(rstd, wide(x).dtype)[..., None]
    normal = (_by_group(x, n, groups) - cast(mean, rstd.dtype)[..., None]) * rstd
    grad = wide(grad).reshape((n, c, hxw))
    scaled = grad if weight is None else grad * cast(weight, grad.dtype).reshape((1, c, 1))
    dx = None
    if mask[0]:
        dx = _normal_backward(scaled.reshape(normal.shape), normal, rstd, 2).reshape(x.shape)
    dweight = jnp.sum(grad * normal.reshape((n, c, hxw)), (0, 2)) if mask[1] else None
    return dx, dweight, jnp.sum(grad, (0, 2)) if mask[2] else None


# ----------------------------------------------------------------------------------- batch norm


def _channels(v: Any, ndim: int) -> Any:
    return None if v is None else v.reshape((1, -1) + (1,) * (ndim - 2))


def _others(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _batch_stats(x: Any, eps: float) -> tuple[Any, Any, Any]:
    """Mean, biased variance and 1/std of each channel."""
    mean = jnp.mean(x, _others(x))
    variance = jnp.mean((x - _channels(mean, x.ndim)) ** 2, _others(x))
    return mean, variance, lax.rsqrt(variance + eps)


def _batch_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any) -> Any:
    mean, rstd, weight, bias = (
        _channels(None if v is None else cast(v, x.dtype), x.ndim)
        for v in (mean, rstd, weight, bias)
    )
    return _affine((x - mean) * rstd, weight, bias)


def _batch_norm_eval(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float
) -> tuple[Any, Any, Any]:
    x = wide(x)
    rstd = lax.rsqrt(cast(variance, x.dtype) + eps)
    empty = jnp.zeros((0,), x.dtype)
    return _batch_apply(x, weight, bias, mean, rstd), empty, empty


def _batch_norm_train(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    """Output, mean, 1/std, and the unbiased variance for the running statistics."""
    x = wide(x)
    mean, variance, rstd = _batch_stats(x, eps)
    count = x.size // max(x.shape[1], 1)
    unbiased = variance * (count / max(count - 1, 1))
    return _batch_apply(x, weight, bias, mean, rstd), mean, rstd, unbiased


def _keeps_statistics(node: fx.Node) -> Reject | None:
    if argument(node, 5, "training") and argument(node, 3, "running_mean") is not None:
        return Reject("native_batch_norm in training writes its running statistics", node)
    return None


@register("native_batch_norm", guard=_keeps_statistics)
def _native_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float,
    eps: float,
) -> tuple[Any, Any, Any]:  # fmt: skip
    if training:
        return _batch_norm_train(x, weight, bias, eps)[:3]
    return _batch_norm_eval(x, weight, bias, mean, variance, eps)


@register("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    x: Any,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any]:
    return _batch_norm_train(x, weight, bias, eps)[:3]


@register("_native_batch_norm_legit_no_training")
def _batch_norm_no_training(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any]:
    return _batch_norm_eval(x, weight, bias, mean, variance, eps)


@register("_native_batch_norm_legit_functional")
def _batch_norm_functional(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float,
    eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    if not training:
        return (*_batch_norm_eval(x, weight, bias, mean, variance, eps), mean, variance)
    out, now, rstd, unbiased = _batch_norm_train(x, weight, bias, eps)
    running = [
        momentum * new + (1 - momentum) * cast(old, new.dtype)
        for new, old in ((now, mean), (unbiased, variance))
    ]
    return out, now, rstd, *running


@register("native_batch_norm_backward")
def _batch_norm_backward(
    grad: Any, x: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any,
    save_rstd: Any, train: bool, eps: float, mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    grad, x = wide(grad), wide(x)
    if train:
        mean, rstd = save_mean, save_rstd
    else:
        mean, rstd = running_mean, lax.rsqrt(cast(running_var, x.dtype) + eps)
    mean, rstd = (_channels(cast(v, x.dtype), x.ndim) for v in (mean, rstd))
    normal = (x - mean) * rstd
    scaled = _affine(grad, _channels(weight, x.ndim), None)
    dx = None
    if mask[0]:
        dx = _normal_backward(scaled, normal, rstd, _others(x)) if train else scaled * rstd
    dweight = jnp.sum(grad * normal, _others(x)) if mask[1] else None
    return dx, dweight, jnp.sum(grad, _others(x)) if mask[2] else None


# -------------------------------------------------------------------------------------- the rest


def _rms(x: Any, dims: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    rstd = lax.rsqrt(jnp.mean(x * x, dims, keepdims=True) + eps)
    return _affine(x * rstd, weight, None), rstd


@register("trnx::rms_norm")
def _rms_norm(x: Any, weight: Any, eps: float, offset: float = 0.0, rounds: bool = False) -> Any:
    factor = weight if weight is None or offset == 0.0 else wide(weight) + offset
    if rounds:
        return _affine(wide(cast(_rms(wide(x), -1, None, eps)[0], x.dtype)), factor, None)
    return _rms(wide(x), -1, factor, eps)[0]


@register("_fused_rms_norm")
def _fused_rms_norm(
    x: Any, shape: Sequence[int], weight: Any, eps: float | None
) -> tuple[Any, Any]:
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    limit = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    return _rms(wide(x), dims, weight, limit)


@register("renorm")
def _renorm(x: Any, p: Any, dim: int, limit: Any) -> Any:
    others = tuple(d for d in range(x.ndim) if d != dim % x.ndim)
    v = wide(x)
    if p == float("inf"):
        norm = jnp.max(jnp.abs(v), others, keepdims=True)
    else:
        norm = jnp.sum(jnp.abs(v) ** p, others, keepdims=True) ** (1.0 / p)
    return jnp.where(norm > limit, v * (limit / (norm + 1e-7)), v)


@register("native_dropout_backward")
def _dropout_backward(grad: Any, mask: Any, scale: float) -> Any:
    return wide(grad) * cast(mask, wide(grad).dtype) * scale
