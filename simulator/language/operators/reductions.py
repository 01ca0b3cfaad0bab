"""Reductions by an operator over the last dimension, on torch views.

Each is a function `(x, out=out)` that writes op-reduce of `x[..., n]` into `out[..., 1]`.
Sums are taken in float32 in torch's order, which is not specified; the hardware's is not either.
Subtraction folds from the left: x[0] - x[1] - x[2] ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

Reduction = Callable[..., object]

# Without a Python function, whose call costs as much as the reduction of a small tile.
sum_last: Reduction = partial(torch.sum, dim=-1, keepdim=True)
max_last: Reduction = partial(torch.amax, dim=-1, keepdim=True)
min_last: Reduction = partial(torch.amin, dim=-1, keepdim=True)


def product_last(x: torch.Tensor, out: torch.Tensor) -> None:
    """Product."""
    torch.prod(x, -1, True, out=out)


def subtract_last(x: torch.Tensor, out: torch.Tensor) -> None:
    """The first element minus the sum of the others."""
    first = x[..., :1].clone()
    torch.sum(x[..., 1:], -1, True, out=out)
    torch.sub(first, out, out=out)


def all_last(x: torch.Tensor, out: torch.Tensor) -> None:
    """1 where no element is 0."""
    out.copy_((x != 0).all(-1, True))


def any_last(x: torch.Tensor, out: torch.Tensor) -> None:
    """1 where an element is not 0."""
    out.copy_((x != 0).any(-1, True))


def parity_last(x: torch.Tensor, out: torch.Tensor) -> None:
    """1 where an odd number of elements is not 0."""
    out.copy_((x != 0).sum(-1, True) % 2)


def abs_max_last(x: torch.Tensor, out: torch.Tensor) -> None:
    """The element with the largest magnitude."""
    index = x.abs().argmax(-1, True)
    out.copy_(x.gather(-1, index))


def abs_min_last(x: torch.Tensor, out: torch.Tensor) -> None:
    """The element with the smallest magnitude."""
    index = x.abs().argmin(-1, True)
    out.copy_(x.gather(-1, index))


def fold_last(function: Callable[..., torch.Tensor]) -> Reduction:
    """Fold by halves: torch has no bitwise reductions."""

    def reduce(x: torch.Tensor, out: torch.Tensor) -> None:
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            folded = function(x[..., :half], x[..., half : 2 * half])
            x = torch.cat((folded, x[..., 2 * half :]), -1) if x.shape[-1] % 2 else folded
        out.copy_(x)

    return reduce
