"""The `trnx::` ops of the canonical graph: composites that kernels want whole, as custom ops.

    trnx::sdpa(q, k, v, attn_mask, dropout_mask, dropout_p, is_causal, scale, window=0)
        -> (out, lse)
    trnx::sdpa_backward(grad_out, q, k, v, out, lse, attn_mask, dropout_mask, dropout_p, is_causal,
                        scale, mask_grad, window=0) -> (dq, dk, dv, dmask)
    trnx::rms_norm(x, weight, eps, offset, rounds) -> Tensor
    trnx::cross_entropy(x, target, reduction, ignore_index) -> (loss, weight, top, total)
    trnx::cross_entropy_backward(grad, x, target, weight, top, total, reduction, ignore_index) -> dx
    trnx::quick_gelu(x) -> Tensor
    trnx::linear(x, weight, bias, is_turned) -> Tensor
    trnx::grouped_mm(x, weight, offsets) -> Tensor, see `grouped_ops.py`
    trnx::grouped_mm_weight_gradient(x, grad, offsets) -> Tensor, the same
    trnx::recurrent, trnx::recurrent_backward: see `recurrent_ops.py`

Shapes: q [B, Hq, L, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv], Hq a multiple of Hkv (grouped query
attention: query head h reads head h // (Hq // Hkv)). `attn_mask` broadcasts to [B, Hq, L, S]: bool
(True attends) or float (added to the scaled scores). `dropout_mask` [B, Hq, L, S], bool, says which
probabilities are kept; these are scaled by 1 / (1 - dropout_p). `is_causal` lets query i see keys
0..i, and applies together with `attn_mask`; of these a `window` other than 0, which needs
`is_causal`, leaves the last: keys i - window + 1..i. A row that attends to nothing gives out 0 and
lse 0, as torch's CPU kernel does. `lse` [B, Hq, L] is the logarithm of the row sums of exp(scores),
float32 (float64 for float64 inputs); it has no gradient.

Layouts are those of torch on the CPU: `out` has the layout of q where its fused kernel would be
taken (Dv == D, no dropout, last dimension dense), else it is contiguous; dq, dk and dv have their
heads inside the sequence ([B, L, H, D] storage). `dmask` is contiguous and has the mask's shape and
dtype; where `mask_grad` is False it is a placeholder, one zero (a kernel has no empty outputs).

`eps` of rms_norm is a number: torch's default for None is resolved by the caller.

Cross-entropy: logits x [N, C], class labels `target` [N]; `reduction` as at::Reduction (0 none, 1
mean, 2 sum). `loss` has the dtype of x, [N] where nothing is reduced, else [1]. For the gradient:
`weight` [1] counts the labels other than `ignore_index`, `top` and `total` [N] are each row's
maximum and the sum of exp(x - top), float32 (float64 for float64). The logits are all that the
backward pass reads besides: their log-softmax is never in memory. Two numbers, not one logarithm
of a sum, because large logits would round it.

Every op has a fake, an eager (any device) and, but for backward ops, quick_gelu, which is made
after autograd, and linear, which is made where autograd does not look, an autograd implementation.
Importing this module registers the ops and does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from trnx.nki_kernels import (  # noqa: F401  registers their ops
    grouped_ops,
    recurrent_ops,
)

_CPU_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_CPU_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that computes on `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _out_like(q: torch.Tensor, v: torch.Tensor, dropped: bool) -> torch.Tensor:
    """An unfilled `out`, in the layout that torch gives it."""
    if not dropped and v.shape[-1] == q.shape[-1] and q.stride(-1) == 1:
        return torch.empty_like(q)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _is_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropped: bool, mask_grad: bool
) -> bool:
    """Whether the gradients are those of torch's fused CPU kernel, not those of single products."""
    if dropped or mask_grad or q.shape[-1] != v.shape[-1]:
        return False
    return all(x.stride(-1) == 1 for x in (q, k, v))


def _empty_grads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, fused: bool
) -> tuple[torch.Tensor, ...]:
    """Unfilled gradients of q, k and v, [B, H, N, D], in the layout that torch gives them: fused in
    [B, N, H, D] storage; else dense, but for that of k, a transposed product unless it is a sum
    over the heads of a group."""
    if fused:
        return tuple(
            x.new_empty((x.shape[0], x.shape[2], x.shape[1], x.shape[3])).transpose(1, 2)
            for x in (q, k, v)
        )
    dk = k.new_empty(k.shape)
    if q.shape[1] == k.shape[1]:
        dk = k.new_empty((*k.shape[:2], k.shape[3], k.shape[2])).transpose(-1, -2)
    return q.new_empty(q.shape), dk, v.new_empty(v.shape)


# ---- sdpa


def _flash_mask(q: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
    """The mask as torch's CPU kernel takes it: additive, of q's dtype."""
    if attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=q.dtype)
        return bias.masked_fill_(attn_mask.logical_not(), float("-inf"))
    return attn_mask


def _added(q: torch.Tensor, attn_mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask as eager's attention with dropout has it: added, so that an infinite score of a
    hidden key is NaN."""
    return None if attn_mask is None else _flash_mask(q, attn_mask)


def _flash_takes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor | None
) -> bool:
    """True where torch's fused CPU kernel computes the same thing."""
    if q.device.type != "cpu" or q.numel() == 0 or k.numel() == 0:
        return False
    if q.shape[-1] != v.shape[-1] or any(x.stride(-1) != 1 for x in (q, k, v)):
        return False
    if attn_mask is None:
        return True
    return attn_mask.ndim in (2, 4) and attn_mask.dtype in (torch.bool, q.dtype)


def _in_window(
    attn_mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, window: int
) -> torch.Tensor | None:
    """The mask without the keys that a window leaves out; is_causal takes the other end."""
    if window == 0:
        return attn_mask
    shape = (q.shape[-2], k.shape[-2])
    near = torch.ones(shape, dtype=torch.bool, device=q.device).triu(1 - window)
    if attn_mask is None:
        return near
    if attn_mask.dtype == torch.bool:
        return attn_mask & near
    return attn_mask.masked_fill(~near, float("-inf"))


def _repeat_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """x [B, Hkv, S, D] in the computing dtype, with each head repeated for its queries."""
    return x.to(_wide(x.dtype)).repeat_interleave(heads // x.shape[1], dim=1)


def _probabilities(
    q: torch.Tensor,
    k: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax of the scores [B, Hq, L, S] and its logsumexp [B, Hq, L], in the computing dtype."""
    scores = (q.to(_wide(q.dtype)) @ _repeat_heads(k, q.shape[1]).transpose(-1, -2)) * scale
    if is_causal:
        below = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~below, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    if scores.shape[-1] == 0:
        return scores, scores.new_zeros(scores.shape[:-1])
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == float("-inf"), 0.0)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    lse = (total.log() + top).masked_fill(empty, 0.0)
    return weights / total.masked_fill(empty, 1.0), lse.squeeze(-1)


def _keep_factor(dropout_mask: torch.Tensor, dropout_p: float, dtype: torch.dtype) -> torch.Tensor:
    kept = (dropout_mask != 0).to(dtype)
    return kept * (0.0 if dropout_p >= 1.0 else 1.0 / (1.0 - dropout_p))


@torch.library.custom_op(
    "trnx::sdpa",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? attn_mask, Tensor? dropout_mask, "
    "float dropout_p, bool is_causal, float scale, int window=0) -> (Tensor out, Tensor lse)",
)
def sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot product attention and the logsumexp of its rows; see the module's docstring."""
    attn_mask = _in_window(attn_mask, q, k, window)
    out = _out_like(q, v, dropout_mask is not None)
    if dropout_mask is None and _flash_takes(q, k, v, attn_mask):
        bias = None if attn_mask is None else _flash_mask(q, attn_mask)
        fused, lse = _CPU_FLASH(q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale)
        return fused if fused.stride() == out.stride() else out.copy_(fused), lse.contiguous()
    if dropout_mask is not None:
        attn_mask = _added(q, attn_mask)
    weights, lse = _probabilities(q, k, attn_mask, is_causal, scale)
    if dropout_mask is not None:
        weights = weights * _keep_factor(dropout_mask, dropout_p, weights.dtype)
    return out.copy_(weights @ _repeat_heads(v, q.shape[1])), lse


@sdpa.register_fake
def _sdpa_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    del k, attn_mask, dropout_p, is_causal, scale, window
    lse = q.new_empty(q.shape[:-1], dtype=_wide(q.dtype))
    return _out_like(q, v, dropout_mask is not None), lse


# ---- sdpa, backward


def _ungroup(grad: torch.Tensor, heads: int) -> torch.Tensor:
    """Sum the gradients of repeated heads: [B, Hq, S, D] -> [B, Hkv, S, D]."""
    batch, repeated, length, width = grad.shape
    return grad.reshape(batch, heads, repeated // heads, length, width).sum(2)


def _mask_like(attn_mask: torch.Tensor | None, q: torch.Tensor, mask_grad: bool) -> torch.Tensor:
    """An unfilled `dmask`; the placeholder is filled, with its zero."""
    if attn_mask is None or not mask_grad:
        return q.new_zeros((1,))
    return attn_mask.new_empty(attn_mask.shape)


@torch.library.custom_op(
    "trnx::sdpa_backward",
    mutates_args=(),
    schema="(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    "Tensor? attn_mask, Tensor? dropout_mask, float dropout_p, bool is_causal, float scale, "
    "bool mask_grad, int window=0) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dmask)",
)
def sdpa_backward(
    grad_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    mask_grad: bool,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `sdpa` to q, k, v and, where `mask_grad`, to a float `attn_mask`."""
    dmask = _mask_like(attn_mask, q, mask_grad)
    results = _empty_grads(q, k, v, _is_fused(q, k, v, dropout_mask is not None, mask_grad))
    attn_mask = _in_window(attn_mask, q, k, window)
    if dropout_mask is None and not mask_grad and _flash_takes(q, k, v, attn_mask):
        bias = None if attn_mask is None else _flash_mask(q, attn_mask)
        grads = _CPU_FLASH_BACKWARD(
            grad_out, q, k, v, out, lse, 0.0, is_causal, attn_mask=bias, scale=scale
        )
        dq, dk, dv = (x.copy_(g) for x, g in zip(results, grads, strict=True))
        return dq, dk, dv, dmask
    wide = _wide(q.dtype)
    if dropout_mask is not None:
        attn_mask = _added(q, attn_mask)
    weights, _ = _probabilities(q, k, attn_mask, is_causal, scale)
    grad = grad_out.to(wide)
    dweights = grad @ _repeat_heads(v, q.shape[1]).transpose(-1, -2)
    kept = weights
    if dropout_mask is not None:
        keep = _keep_factor(dropout_mask, dropout_p, wide)
        kept, dweights = weights * keep, dweights * keep
    dv = _ungroup(kept.transpose(-1, -2) @ grad, v.shape[1])
    dscores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True))
    dq = (dscores @ _repeat_heads(k, q.shape[1])) * scale
    dk = _ungroup(dscores.transpose(-1, -2) @ q.to(wide), k.shape[1]) * scale
    if attn_mask is not None and mask_grad:
        dmask.copy_(dscores.sum_to_size(dmask.shape))
    dq, dk, dv = (x.copy_(g) for x, g in zip(results, (dq, dk, dv), strict=True))
    return dq, dk, dv, dmask


@sdpa_backward.register_fake
def _sdpa_backward_fake(
    grad_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    mask_grad: bool,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    del grad_out, out, lse, dropout_p, is_causal, scale, window
    fused = _is_fused(q, k, v, dropout_mask is not None, mask_grad)
    dq, dk, dv = _empty_grads(q, k, v, fused)
    return dq, dk, dv, _mask_like(attn_mask, q, mask_grad)


def _sdpa_setup(ctx: Any, inputs: Sequence[Any], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, attn_mask, dropout_mask, ctx.dropout_p, ctx.is_causal, ctx.scale, ctx.window = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse, attn_mask, dropout_mask)


def _sdpa_autograd(ctx: Any, grad_out: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    q, k, v, out, lse, attn_mask, dropout_mask = ctx.saved_tensors
    mask_grad = ctx.needs_input_grad[3]
    dq, dk, dv, dmask = torch.ops.trnx.sdpa_backward(
        grad_out, q, k, v, out, lse, attn_mask, dropout_mask,
        ctx.dropout_p, ctx.is_causal, ctx.scale, mask_grad, ctx.window,
    )  # fmt: skip
    return dq, dk, dv, dmask if mask_grad else None, None, None, None, None, None


sdpa.register_autograd(_sdpa_autograd, setup_context=_sdpa_setup)


# ---- rms_norm


@torch.library.custom_op(
    "trnx::rms_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor? weight, float eps, float offset=0.0, bool rounds=False) -> Tensor",
)
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    rounds: bool = False,
) -> torch.Tensor:
    """x / sqrt(mean(x ** 2, -1) + eps) * (weight + offset), computed in float32 (float64 for
    float64); what weight multiplies is rounded to the dtype of x first where it `rounds`.
    """
    shape = (x.shape[-1],)
    if weight is None or (weight.dtype == x.dtype and offset == 0.0 and not rounds):
        return F.rms_norm(x, shape, weight, eps)
    wide = _wide(x.dtype)
    factor = weight.to(wide) + offset
    if rounds:
        return (F.rms_norm(x, shape, None, eps).to(wide) * factor).to(x.dtype)
    return F.rms_norm(x.to(wide), shape, factor, eps).to(x.dtype)


@rms_norm.register_fake
def _rms_norm_fake(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    rounds: bool = False,
) -> torch.Tensor:
    del weight, eps, offset, rounds
    return x.new_empty(x.shape)


def _rms_norm_setup(ctx: Any, inputs: Sequence[Any], output: torch.Tensor) -> None:
    del output
    x, weight, ctx.eps, ctx.offset, ctx.rounds = inputs
    ctx.save_for_backward(x, weight)


def _rms_norm_autograd(
    ctx: Any, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, None, None, None]:
    x, weight = ctx.saved_tensors
    wide = _wide(x.dtype)
    x_wide, scaled = x.to(wide), grad.to(wide)
    rstd = torch.rsqrt((x_wide * x_wide).mean(-1, keepdim=True) + ctx.eps)
    normal = x_wide * rstd
    dweight = None
    if weight is not None:
        if ctx.needs_input_grad[1]:
            factor = normal.to(x.dtype).to(wide) if ctx.rounds else normal
            dweight = (scaled * factor).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
        scaled = scaled * (weight.to(wide) + ctx.offset)
    dx = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return dx.to(x.dtype), dweight, None, None, None


rms_norm.register_autograd(_rms_norm_autograd, setup_context=_rms_norm_setup)


# ---- cross_entropy

_REDUCTIONS = ("none", "mean", "sum")


@torch.library.custom_op(
    "trnx::cross_entropy",
    mutates_args=(),
    schema="(Tensor x, Tensor target, int reduction, int ignore_index) "
    "-> (Tensor loss, Tensor weight, Tensor top, Tensor total)",
)
def cross_entropy(
    x: torch.Tensor, target: torch.Tensor, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss, and what its gradient needs; see the module's docstring."""
    wide = x.to(_wide(x.dtype))
    how = _REDUCTIONS[reduction]
    loss = F.cross_entropy(wide, target, ignore_index=ignore_index, reduction=how)
    weight = (target != ignore_index).sum().to(wide.dtype)
    top = wide.amax(-1)
    total = (wide - top[:, None]).exp().sum(-1)
    return loss.to(x.dtype).reshape(-1), weight.reshape(1), top, total


@cross_entropy.register_fake
def _cross_entropy_fake(
    x: torch.Tensor, target: torch.Tensor, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    del target, ignore_index
    rows, dtype = x.shape[0], _wide(x.dtype)
    loss = x.new_empty((rows if reduction == 0 else 1,))
    top, total = (x.new_empty((rows,), dtype=dtype) for _ in range(2))
    return loss, x.new_empty((1,), dtype=dtype), top, total


@torch.library.custom_op(
    "trnx::cross_entropy_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor target, Tensor weight, Tensor top, Tensor total, "
    "int reduction, int ignore_index) -> Tensor",
)
def cross_entropy_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    top: torch.Tensor,
    total: torch.Tensor,
    reduction: int,
    ignore_index: int,
) -> torch.Tensor:
    """The gradient of `cross_entropy` with respect to x."""
    counts = target != ignore_index
    slope = grad.to(top.dtype) / weight if reduction == 1 else grad.to(top.dtype)
    slope = slope.where(counts, 0)
    dx = (x.to(top.dtype) - top[:, None]).exp() * (slope / total)[:, None]
    place = target.where(counts, 0)[:, None]
    return dx.scatter_add(1, place, -slope[:, None]).to(x.dtype)


@cross_entropy_backward.register_fake
def _cross_entropy_backward_fake(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    top: torch.Tensor,
    total: torch.Tensor,
    reduction: int,
    ignore_index: int,
) -> torch.Tensor:
    del grad, target, weight, top, total, reduction, ignore_index
    return x.new_empty(x.shape)


def _cross_entropy_setup(ctx: Any, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    x, target, ctx.reduction, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, target, *output[1:])


def _cross_entropy_autograd(
    ctx: Any, grad: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, None, None, None]:
    dx = torch.ops.trnx.cross_entropy_backward(
        grad, *ctx.saved_tensors, ctx.reduction, ctx.ignore_index
    )
    return dx, None, None, None


cross_entropy.register_autograd(_cross_entropy_autograd, setup_context=_cross_entropy_setup)


# ---- quick_gelu


@torch.library.custom_op(
    "trnx::quick_gelu",
    mutates_args=(),
    schema="(Tensor x) -> Tensor",
    tags=(torch.Tag.pointwise,),
)
def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x), computed in float32 (float64 for float64) and rounded once; the layout
    is that of `torch.empty_like`.
    """
    wide = x.to(_wide(x.dtype))
    return torch.empty_like(x).copy_(wide * torch.sigmoid(1.702 * wide))


@quick_gelu.register_fake
def _quick_gelu_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


# ---- linear


@torch.library.custom_op(
    "trnx::linear",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, bool is_turned) -> Tensor",
)
def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_turned: bool
) -> torch.Tensor:
    """x [..., K] times weight [N, K], or [K, N] where `is_turned`, plus bias [N]; dense."""
    return F.linear(x, weight.t() if is_turned else weight, bias).contiguous()


@linear.register_fake
def _linear_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_turned: bool
) -> torch.Tensor:
    rows, common = (1, 0) if is_turned else (0, 1)
    torch._check(x.shape[-1] == weight.shape[common])
    if bias is not None:
        torch._check(bias.shape[0] == weight.shape[rows])
    return x.new_empty((*x.shape[:-1], weight.shape[rows]))
