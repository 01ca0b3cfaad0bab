"""Ops that are made of other ops, as those, which kernels take: copies of views, means with
variances, medians, windows of any size, distances, products with factors.

A rule returns NotImplemented where the ops round otherwise than eager does, or take more memory;
the op then stays as it is. Results are row-major where eager's are, whatever the operands are.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_LONGEST_SORTED = 4096  # what the kernel `sort` takes
# Differences of all pairs of rows; above, distances of order 2 are made of a product.
_MOST_DIFFERENCES = 1 << 20
_LONGEST_DIRECT = 25  # rows, as in eager


def _copy_of(view: Callable[..., Any]) -> Callable[..., Any]:
    """The row-major copy of what `view` gives."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        found = view(*args, **kwargs)
        return found.clone(memory_format=torch.contiguous_format)

    return rule


def _unbind_copy(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    return [
        x.select(dim, i).clone(memory_format=torch.contiguous_format) for i in range(x.shape[dim])
    ]


def _with_mean(spread_of: Any) -> Callable[..., Any]:
    """`var_mean` and `std_mean`, `spread_of` being `var` or `std`."""

    def rule(
        x: torch.Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Any:
        dims = list(dim) if dim else list(range(x.ndim))
        count = math.prod(x.shape[d] for d in dims)
        if not x.is_floating_point() or count <= max(1, 1 if correction is None else correction):
            return NotImplemented
        spread = spread_of(x, dims, correction=correction, keepdim=keepdim)
        # Eager updates a mean by differences: its sum cannot overflow, and infinities make it NaN.
        scale = float(1 << (count - 1).bit_length())
        scaled = aten.sum.dim_IntList(x * (1.0 / scale), dims, keepdim) * (scale / count)
        mean = aten.mean.dim(x, dims, keepdim)
        mean = torch.where(mean.abs() < math.inf, mean, scaled)
        return spread, torch.where(spread.isnan(), spread, mean)

    return rule


def _round_decimals(x: torch.Tensor, *, decimals: int) -> Any:
    if x.dtype is not torch.float32:
        return NotImplemented  # eager rounds every step of half precision
    factor = ctypes.c_float(10.0 ** abs(decimals)).value
    if decimals == 0:
        return x.round()
    return (x / factor).round() * factor if decimals < 0 else (x * factor).round() / factor


def _median(x: torch.Tensor) -> Any:
    """The lower one of the two in the middle; NaN where there is one."""
    if not x.is_floating_point() or not 0 < x.numel() <= _LONGEST_SORTED:
        return NotImplemented
    ordered, _ = aten.sort.default(x.reshape(-1))
    last = ordered[-1]
    return torch.where(last.isnan(), last, ordered[(x.numel() - 1) // 2])


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> Any:
    if x.dtype in (torch.bfloat16, torch.float16):
        return NotImplemented  # eager rounds to it, though the power has the exponent's dtype
    return x * torch.pow(2.0, exponent)


def _batch_norm_with_update(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> Any:
    """The op that older graphs have; of the CPU's nothing is reserved for backward."""
    found = aten._native_batch_norm_legit_functional.default(
        x, weight, bias, mean, variance, True, momentum, eps
    )
    return (*found[:3], x.new_empty((0,), dtype=torch.uint8), *found[3:])


# -- distances -------------------------------------------------------------------------------------


def _dist(x: torch.Tensor, y: torch.Tensor, p: float = 2) -> torch.Tensor:
    return aten.linalg_vector_norm.default(x - y, p)  # type: ignore[no-any-return]


def _cdist(x: torch.Tensor, y: torch.Tensor, p: float, mode: int | None) -> Any:
    rows, others = x.shape[-2], y.shape[-2]
    by_product = mode == 1 or (mode != 2 and max(rows, others) > _LONGEST_DIRECT)
    if 0 in (x.numel(), y.numel()):
        return NotImplemented
    if p == 2 and by_product:
        return _euclidean(x, y)
    batch: torch.Size = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])  # type: ignore[no-untyped-call]
    if math.prod(batch) * rows * others * x.shape[-1] > _MOST_DIFFERENCES:
        return NotImplemented
    differences = x.contiguous().unsqueeze(-2) - y.contiguous().unsqueeze(-3)
    if p == 0:  # a NaN counts as NaN, where a norm counts it as not zero
        return differences.abs().ceil().clamp(max=1).sum(-1)
    return aten.linalg_vector_norm.default(differences, p, [-1])


def _euclidean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The root of |x|^2 - 2 x y + |y|^2, all as one product, as in eager."""
    squares, others = (z.pow(2).sum(-1, keepdim=True) for z in (x, y))
    left = torch.cat([x * -2, squares, torch.ones_like(squares)], -1)
    right = torch.cat([y, torch.ones_like(others), others], -1)
    return torch.matmul(left, right.mT).clamp_min(0).sqrt()


# -- products with factors -------------------------------------------------------------------------


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1 else x * factor


def _sum_of(added: torch.Tensor, product: torch.Tensor, beta: float, alpha: float) -> torch.Tensor:
    """beta * added + alpha * product, where a beta of 0 leaves out what is added, NaN or not."""
    product = _scaled(product, alpha)
    total = product.clone() if beta == 0 else _scaled(added, beta) + product
    return total.contiguous()


def _are_float32(*tensors: torch.Tensor) -> bool:
    """Half precision would round between the steps, where eager does not."""
    return all(x.dtype is torch.float32 and x.numel() > 0 for x in tensors)


def _addmm(
    added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if (beta, alpha) == (1, 1) or not _are_float32(added, a, b):
        return NotImplemented
    return _sum_of(added, aten.mm.default(a, b), beta, alpha)


def _addmv(
    added: torch.Tensor, a: torch.Tensor, vector: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if not _are_float32(added, a, vector):
        return NotImplemented
    return _sum_of(added, aten.mm.default(a, vector.unsqueeze(-1)).squeeze(-1), beta, alpha)


def _addbmm(
    added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if not _are_float32(added, a, b):
        return NotImplemented
    # The sum of the batch's products is one product.
    left = a.transpose(0, 1).reshape(a.shape[1], -1)
    return _sum_of(added, aten.mm.default(left, b.reshape(-1, b.shape[2])), beta, alpha)


COMPOSITE_DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.as_strided_copy.default: _copy_of(torch.as_strided),
    aten.narrow_copy.default: _copy_of(torch.narrow),
    aten.permute_copy.default: _copy_of(torch.permute),
    aten.view_copy.default: _copy_of(torch.reshape),
    aten.unbind_copy.int: _unbind_copy,
    aten.var_mean.correction: _with_mean(aten.var.correction),
    aten.std_mean.correction: _with_mean(aten.std.correction),
    aten.round.decimals: _round_decimals,
    aten.median.default: _median,
    aten.ldexp.Tensor: _ldexp,
    aten._batch_norm_with_update_functional.default: _batch_norm_with_update,
    aten.dist.default: _dist,
    aten._cdist_forward.default: _cdist,
    aten.addmm.default: _addmm,
    aten.addmv.default: _addmv,
    aten.addbmm.default: _addbmm,
}
