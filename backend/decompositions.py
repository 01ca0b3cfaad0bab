"""Which ATen ops AOTAutograd decomposes: the core table, but for what kernels want whole.

The table is torch's core ATen decompositions, norms over channels, and ops on lists, minus
* the operators in the registered kernels' patterns, so that a new kernel needs no entry here;
* `KEPT`: ops whose decomposition loses something that no pass can restore;
and plus Dynamo's fused multiply-add, as the ATen op that it was before, and rules for ops whose
results, by torch's own decomposition or meta function, have other strides than eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from trnx.backend.composite_decompositions import COMPOSITE_DECOMPOSITIONS
from trnx.backend.encoder_decompositions import ENCODER_DECOMPOSITIONS
from trnx.backend.foreach_decompositions import FOREACH_DECOMPOSITIONS
from trnx.backend.grid_decompositions import grid_sampler
from trnx.backend.indexing_decompositions import INDEXING_DECOMPOSITIONS
from trnx.backend.norm_decompositions import NORM_DECOMPOSITIONS, NORM_LAYOUTS, NORMS_AS_OTHERS
from trnx.backend.torch_internals import (
    FUSED_MULTIPLY_ADD,
    core_decompositions,
    every_decomposition,
    exported_decompositions,
    suggest_memory_format,
)
from trnx.fx_passes.match import pattern_targets
from trnx.nki_kernels.spec import Kernel

aten = torch.ops.aten

KEPT = frozenset(
    {
        # One kernel in eager and in XLA; decomposed they are chains that round between the steps.
        aten.silu.default,
        aten.mish.default,
        aten.softplus.default,
        aten.softplus_backward.default,
        aten.log_sigmoid_backward.default,
        aten.logaddexp.default,
        aten.logit.default,
        aten.hardsigmoid.default,
        aten.hardswish.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish_backward.default,
        aten.addcdiv.default,
        aten.addcmul.default,
        aten.lerp.Scalar,
        aten.lerp.Tensor,
        aten.gelu_backward.default,
        aten.silu_backward.default,
        aten._softmax_backward_data.default,
        aten._log_softmax_backward_data.default,
        aten.native_layer_norm_backward.default,
        aten.embedding_dense_backward.default,
        aten.nll_loss_forward.default,
        aten.nll_loss_backward.default,
        # The variance of large float32 values has no float32, but its root in eager.
        aten.std.correction,
        aten.std_mean.correction,
        # Eager raises for values that their decompositions take, or raises another error.
        aten.binary_cross_entropy.default,
        aten.index_copy.default,
        aten.masked_fill.Scalar,
        aten.max_unpool2d.default,
        aten.max_unpool3d.default,
        aten.multi_margin_loss.default,
        aten.multilabel_margin_loss_forward.default,
        aten.nll_loss2d_forward.default,
        # Its decomposition draws other random numbers than eager for the same seed.
        aten.bernoulli.default,
        # Attention that the rewrite left alone: the decomposition materialises the scores.
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)

# Eager's results are row-major whatever the operands are; those of torch's decompositions are not.
ROW_MAJOR = frozenset(
    {
        aten.baddbmm.default,
        aten.log_sigmoid_forward.default,
        aten.upsample_nearest1d.default,
        aten._upsample_nearest_exact1d.default,
    }
)

# Torch has them with the composites, though they have kernels.
_UPSAMPLES = (
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
)


def decomposition_table(
    kernels: Iterable[Kernel], *, is_exported: bool = False
) -> dict[Any, Callable[..., Any]]:
    """Operator overload -> decomposition, for these registered kernels; for a graph of torch.export
    with the composites."""
    kept = KEPT | pattern_targets(kernels)
    core = exported_decompositions() if is_exported else core_decompositions()
    rules = every_decomposition()
    every = core | {op: rules[op] for op in _UPSAMPLES}
    every |= NORM_DECOMPOSITIONS | FOREACH_DECOMPOSITIONS
    every |= {op: _row_major(every[op]) for op in ROW_MAJOR}
    every |= {
        aten.channel_shuffle.default: _channel_shuffle(every[aten.channel_shuffle.default]),
        aten.native_dropout_backward.default: _dropout_backward,
    }
    table = {op: rule for op, rule in every.items() if op not in kept}
    return {
        **table,
        **_windows(),
        **COMPOSITE_DECOMPOSITIONS,
        **ENCODER_DECOMPOSITIONS,
        **INDEXING_DECOMPOSITIONS,
        **NORM_LAYOUTS,
        **NORMS_AS_OTHERS,
        aten.roll.default: _roll,
        aten.max_unpool2d.default: _max_unpool2d,
        FUSED_MULTIPLY_ADD: _multiply_add,
    }


def _windows() -> dict[Any, Callable[..., Any]]:
    """Torch's own rules for ops that no kernel takes whole."""
    rules = every_decomposition()
    mean, largest = aten._adaptive_avg_pool2d.default, aten.adaptive_max_pool2d.default
    return {
        mean: _where_windows_differ(rules[mean]),
        largest: rules[largest],
        aten.grid_sampler_2d.default: grid_sampler,
    }


def _where_windows_differ(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Windows of one size are a kernel's."""

    def pool(x: torch.Tensor, size: Sequence[int]) -> Any:
        differ = any(out and n % out for n, out in zip(x.shape[-2:], size, strict=True))
        if not differ or 0 in (*x.shape, *size):
            return NotImplemented
        return rule(x, size).contiguous(memory_format=suggest_memory_format(x))

    return pool


def _row_major(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: tree_map(torch.Tensor.contiguous, rule(*args, **kwargs))


def _channel_shuffle(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps channels last, as eager does."""
    return lambda x, groups: rule(x, groups).contiguous(memory_format=suggest_memory_format(x))


def _dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """In the order of the gradient's dimensions, where torch's decomposition makes it row-major."""
    return grad * (mask.to(grad.dtype) * scale)


def _max_unpool2d(x: torch.Tensor, indices: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Keeps channels last, as eager does; the op's meta function says row-major."""
    if x.is_contiguous():
        return NotImplemented  # type: ignore[no-any-return]  # the op stays as it is
    result = aten.max_unpool2d.default(x.contiguous(), indices.contiguous(), size)
    return result.contiguous(memory_format=suggest_memory_format(x))  # type: ignore[no-any-return]


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """`torch.roll` as eager makes it, by one `cat` a dimension, which keeps the order of x's
    dimensions; the op's meta function says row-major, and so that is when the op stays."""
    if not dims or x.is_contiguous() or 0 in x.shape:
        return NotImplemented  # type: ignore[no-any-return]
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


def _multiply_add(a: torch.Tensor, b: torch.Tensor | float, c: torch.Tensor) -> torch.Tensor:
    """a * b + c, rounded as often as in eager's `addcmul` and `add`."""
    if isinstance(b, torch.Tensor):
        return torch.addcmul(c, a, b)
    return torch.add(c, a, alpha=b)
