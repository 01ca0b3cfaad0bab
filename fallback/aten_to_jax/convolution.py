"""Convolutions of one to three dimensions, transposed ones, their gradients, im2col and col2im."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trnx.fallback.aten_to_jax.dtypes import cast, wide
from trnx.fallback.aten_to_jax.table import register

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def _each(values: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(values) * count if len(values) == 1 else tuple(values)


def _swap_groups(weight: Any, groups: int) -> Any:
    """[in, out/groups, ...] of a transposed convolution as [out, in/groups, ...], flipped."""
    inputs, outputs, *kernel = weight.shape
    split = weight.reshape((groups, inputs // groups, outputs, *kernel))
    swapped = jnp.swapaxes(split, 1, 2).reshape((groups * outputs, inputs // groups, *kernel))
    return jnp.flip(swapped, tuple(range(2, weight.ndim)))


def _forward(
    x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    spatial = weight.ndim - 2
    stride, padding, dilation, output_padding = (
        _each(v, spatial) for v in (stride, padding, dilation, output_padding)
    )
    unbatched = x.ndim == weight.ndim - 1
    x = x[None] if unbatched else x
    pads = [(p, p) for p in padding]
    lhs_dilation = (1,) * spatial
    if transposed:
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(r - p, r - p + o) for r, p, o in zip(reach, padding, output_padding, strict=True)]
        lhs_dilation, stride = stride, (1,) * spatial
        weight = _swap_groups(weight, groups)
    letters = _SPATIAL[spatial]
    out = lax.conv_general_dilated(
        x,
        weight,
        stride,
        pads,
        lhs_dilation,
        dilation,
        dimension_numbers=(f"NC{letters}", f"OI{letters}", f"NC{letters}"),
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )
    return out[0] if unbatched else out


@register("convolution")
def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    out = _forward(
        wide(x), wide(weight), stride, padding, dilation, transposed, output_padding, groups
    )
    if bias is None:
        return out
    return out + cast(bias, out.dtype).reshape((-1,) + (1,) * (weight.ndim - 2))


@register("convolution_backward")
def _convolution_backward(
    grad: Any, x: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    grad = wide(grad)

    def function(a: Any, b: Any) -> Any:
        return _forward(a, b, stride, padding, dilation, transposed, output_padding, groups)

    _, pull = jax.vjp(function, wide(x), wide(weight))
    dx, dweight = pull(grad)
    channel = grad.ndim - (weight.ndim - 1)
    others = tuple(d for d in range(grad.ndim) if d != channel)
    dbias = jnp.sum(grad, others) if output_mask[2] else None
    return dx if output_mask[0] else None, dweight if output_mask[1] else None, dbias


def _columns(size: int, kernel: int, dilation: int, padding: int, stride: int) -> Any:
    """Positions in a padded dimension: [kernel, blocks]."""
    blocks = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(kernel)[:, None] * dilation + np.arange(blocks)[None, :] * stride


@register("im2col")
def _im2col(x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    unbatched = x.ndim == 3
    x = x[None] if unbatched else x
    batch, channels, height, width = x.shape
    rows = _columns(height, kernel[0], dilation[0], padding[0], stride[0])
    columns = _columns(width, kernel[1], dilation[1], padding[1], stride[1])
    x = jnp.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    taken = x[:, :, rows[:, None, :, None], columns[None, :, None, :]]
    blocks = rows.shape[1] * columns.shape[1]
    out = taken.reshape((batch, channels * kernel[0] * kernel[1], blocks))
    return out[0] if unbatched else out


@register("col2im")
def _col2im(x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    unbatched = x.ndim == 2
    x = x[None] if unbatched else x
    channels = x.shape[1] // (kernel[0] * kernel[1])
    shape = (x.shape[0], channels, *size)

    def unfold(image: Any) -> Any:
        return _im2col(image, kernel, dilation, padding, stride)

    _, pull = jax.vjp(unfold, jnp.zeros(shape, wide(x).dtype))
    out = pull(wide(x))[0]
    return out[0] if unbatched else out
