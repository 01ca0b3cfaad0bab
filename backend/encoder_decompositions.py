"""`nn.TransformerEncoderLayer` at inference, one op of torch, as the ops that kernels take.

Masks mean what eager's op makes of them, which reads numbers as bools: what is not zero is masked,
and a query without a key gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from trnx.nki_kernels import canonical_ops  # noqa: F401  registers trnx::sdpa

aten = torch.ops.aten

_COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
# Of the op's `mask_type`, the shape in which a mask broadcasts to scores [B, H, L, L].
_OF_QUERIES, _OF_KEYS = 0, 1


def _kept(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor | None:
    """Where queries attend, with four dimensions; None for a mask of an unknown kind."""
    kept = mask.to(torch.bool).logical_not()
    if mask_type == _OF_QUERIES and mask.ndim == 2:
        return kept[None, None]
    if mask_type == _OF_KEYS and mask.ndim == 2:
        return kept[:, None, None]
    return kept if mask.ndim == 4 else None


def _attention(
    x: torch.Tensor, heads: int, qkv: tuple[torch.Tensor, ...], kept: torch.Tensor | None
) -> torch.Tensor:
    """Self-attention of [B, L, E], without the product behind it."""
    batch, length, width = x.shape
    shape = (batch, length, 3, heads, width // heads)
    q, k, v = F.linear(x, *qkv).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
    scale = float(width // heads) ** -0.5
    out, _ = torch.ops.trnx.sdpa(q, k, v, kept, None, 0.0, False, scale)
    if kept is not None:
        out = torch.where(kept.any(-1, keepdim=True), out, float("nan"))
    merged: torch.Tensor = out.transpose(1, 2).reshape(batch, length, width)
    return merged


def _layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """[B, L, E] -> [B, L, E]."""
    kept = None if mask is None else _kept(mask, mask_type)
    is_plain = src.ndim == 3 and src.numel() > 0 and src.dtype in _COMPUTED
    if not is_plain or qkv_weight.dtype != src.dtype or (mask is not None and kept is None):
        return NotImplemented
    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)

    def norm(x: torch.Tensor, parameters: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        weight, bias = parameters
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, first) if norm_first else src
    x = F.linear(_attention(x, num_heads, (qkv_weight, qkv_bias), kept), proj_weight, proj_bias)
    x = x + src
    middle = x if norm_first else norm(x, first)
    x = F.linear(norm(middle, second) if norm_first else middle, ffn_weight_1, ffn_bias_1)
    x = F.linear(F.gelu(x) if use_gelu else F.relu(x), ffn_weight_2, ffn_bias_2) + middle
    return x if norm_first else norm(x, second)


ENCODER_DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten._transformer_encoder_layer_fwd.default: _layer,
}
