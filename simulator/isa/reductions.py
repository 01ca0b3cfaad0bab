"""Reductions by ALU operator over the last dimension, on torch views.

`reduce_last(op)` is a function `(x, out)` that writes op-reduce of `x[..., n]` into `out[..., 1]`.
Sums are taken in float32 in torch's order, which is not specified; the hardware's is not either.
Subtraction folds from the left: x[0] - x[1] - x[2] ...
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trnx.simulator.isa.alu import AluOp

Reduction = Callable[[torch.Tensor, torch.Tensor], object]


def _sum(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.sum(x, -1, True, out=out)


def _max(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.amax(x, -1, True, out=out)


def _min(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.amin(x, -1, True, out=out)


def _product(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.prod(x, -1, True, out=out)


def _subtract(x: torch.Tensor, out: torch.Tensor) -> None:
    first = x[..., :1].clone()
    torch.sum(x[..., 1:], -1, True, out=out)
    torch.sub(first, out, out=out)


def _all(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_((x != 0).all(-1, True))


def _any(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_((x != 0).any(-1, True))


def _parity(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_((x != 0).sum(-1, True) % 2)


def _abs_max(x: torch.Tensor, out: torch.Tensor) -> None:
    index = x.abs().argmax(-1, True)
    out.copy_(x.gather(-1, index))


def _abs_min(x: torch.Tensor, out: torch.Tensor) -> None:
    index = x.abs().argmin(-1, True)
    out.copy_(x.gather(-1, index))


def _fold(function: Callable[..., torch.Tensor]) -> Reduction:
    """Fold by halves: torch has no bitwise reductions."""

    def reduce(x: torch.Tensor, out: torch.Tensor) -> None:
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            folded = function(x[..., :half], x[..., half : 2 * half])
            x = torch.cat((folded, x[..., 2 * half :]), -1) if x.shape[-1] % 2 else folded
        out.copy_(x)

    return reduce


REDUCTIONS: dict[str, Reduction] = {
    "add": _sum,
    "subtract": _subtract,
    "multiply": _product,
    "maximum": _max,
    "minimum": _min,
    "logical_and": _all,
    "logical_or": _any,
    "logical_xor": _parity,
    "abs_max": _abs_max,
    "abs_min": _abs_min,
    "bitwise_and": _fold(torch.bitwise_and),
    "bitwise_or": _fold(torch.bitwise_or),
    "bitwise_xor": _fold(torch.bitwise_xor),
}


def reduce_last(op: AluOp) -> Reduction:
    """The reduction of `op` over the last dimension."""
    return REDUCTIONS[op.name]
