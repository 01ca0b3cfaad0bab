"""`trnx::grouped_mm(x, weight, offsets) -> Tensor`: rows in groups, each times a matrix of its own,
as the experts of a mixture take the tokens that are sorted by expert.

x [S, K], weight [E, K, N], offsets [E] (int32 or int64): where each group ends, not decreasing.
Group e are the rows offsets[e-1] .. offsets[e]; rows behind the last one give zeros. The result is
[S, N], contiguous, in x's dtype. Made after autograd, so it has no gradient of its own.
Importing this module registers the op and does nothing else.
"""

from __future__ import annotations

import torch

# The operators of other packages that it stands for, by the names of their schemas: those of
# `torch.nn.functional.grouped_mm`, and of transformers where that one does not take the dtype.
GROUPED_PRODUCTS = frozenset({"aten::_grouped_mm", "transformers::grouped_mm_fallback"})


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
