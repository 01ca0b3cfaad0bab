"""Products of rows in groups, as the experts of a mixture take the tokens sorted by expert.

    trnx::grouped_mm(x, weight, offsets) -> Tensor: rows of a group times the group's matrix
    trnx::grouped_mm_weight_gradient(x, grad, offsets) -> Tensor: x.T @ grad of each group's rows

x [S, K], weight [E, K, N], grad [S, N], offsets [E] (int32 or int64): where each group ends, not
decreasing. Group e are the rows offsets[e-1] .. offsets[e]; rows behind the last one give zeros,
or are left out. The results are [S, N] and [E, K, N], contiguous, in x's dtype. Made after
autograd, so they have no gradients of their own.
Importing this module registers the ops and does nothing else.
"""

from __future__ import annotations

import torch

# The operators of other packages that they stand for, by the names of their schemas: those of
# `torch.nn.functional.grouped_mm`, and of transformers where that one does not take the dtype.
GROUPED_PRODUCTS = frozenset({"aten::_grouped_mm", "transformers::grouped_mm_fallback"})
GROUPED_BACKWARD = "transformers::grouped_mm_fallback_backward"


@torch.library.custom_op("trnx::grouped_mm", mutates_args=())
def grouped_mm(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The products, one group after the other."""
    out = x.new_zeros((x.shape[0], weight.shape[2]))
    start = 0
    for matrix, end in zip(weight, offsets.tolist(), strict=True):
        if end > start:
            out[start:end] = x[start:end] @ matrix
            start = end
    return out


@grouped_mm.register_fake
def _grouped_mm_fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor,  # noqa: ARG001  the op's signature
) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[2]))


@torch.library.custom_op("trnx::grouped_mm_weight_gradient", mutates_args=())
def grouped_mm_weight_gradient(
    x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """The products, one group after the other."""
    out = x.new_zeros((offsets.shape[0], x.shape[1], grad.shape[1]))
    start = 0
    for matrix, end in zip(out, offsets.tolist(), strict=True):
        if end > start:
            torch.mm(x[start:end].T, grad[start:end], out=matrix)
            start = end
    return out


@grouped_mm_weight_gradient.register_fake
def _grouped_mm_weight_gradient_fake(
    x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    return x.new_empty((offsets.shape[0], x.shape[1], grad.shape[1]))
