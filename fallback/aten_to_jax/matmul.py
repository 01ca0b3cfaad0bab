"""Matrix products, and what of linear algebra XLA has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from trnx.fallback.aten_to_jax.dtypes import cast, compute, is_floating, promote, wide
from trnx.fallback.aten_to_jax.table import register


def product(a: Any, b: Any) -> Any:
    """`a @ b`, accumulated in float32 where the operands are half precision; not rounded yet."""
    if not is_floating(a):
        return jnp.matmul(a, b)
    wanted = wide(jnp.zeros((), a.dtype)).dtype
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST, preferred_element_type=wanted)


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * cast(factor, x.dtype)


@register("mm", "bmm", "mv", "dot", "vdot", "matmul", "linalg_matmul")
def _mm(a: Any, b: Any) -> Any:
    return product(a, b)


def _add_product(x: Any, value: Any, beta: Any, alpha: Any) -> Any:
    value = _scaled(value, alpha)
    if beta == 0:
        return value
    return value + _scaled(cast(x, value.dtype), beta)


@register("addmm", "addmv", "baddbmm")
def _addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    value = product(a, b)
    if beta == 0:
        return _scaled(value, alpha)
    return _add_product(x, value, beta, alpha)


@register("addbmm")
def _addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """One product added after the other, as eager does: another order rounds otherwise."""
    shape = (a.shape[1], b.shape[2])
    first = jnp.zeros(shape, x.dtype) if beta == 0 else jnp.broadcast_to(_scaled(x, beta), shape)

    def add(total: Any, value: Any) -> tuple[Any, None]:
        return cast(total + _scaled(value, alpha), x.dtype), None

    return lax.scan(add, first, product(a, b))[0]


@register("addr")
def _addr(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    x, a, b = compute(x, a, b)
    return _add_product(x, a[:, None] * b[None, :], beta, alpha)


@register("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    value = product(x, weight.T)
    return value if bias is None else value + cast(bias, value.dtype)


@register("_trilinear")
def _trilinear(
    a: Any, b: Any, c: Any, expand_a: Sequence[int], expand_b: Sequence[int],
    expand_c: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Any:  # fmt: skip
    for dims, which in ((expand_a, 0), (expand_b, 1), (expand_c, 2)):
        for dim in sorted(dims):
            if which == 0:
                a = jnp.expand_dims(a, dim)
            elif which == 1:
                b = jnp.expand_dims(b, dim)
            else:
                c = jnp.expand_dims(c, dim)
    value = wide(a) * wide(b) * wide(c)
    return jnp.sum(value, tuple(sumdim)) if sumdim else value


@register("outer")
def _outer(a: Any, b: Any) -> Any:
    a, b = compute(a, b)
    return a[:, None] * b[None, :]


@register("linalg_cross")
def _cross(a: Any, b: Any, *, dim: int = -1) -> Any:
    a, b = jnp.broadcast_arrays(*promote(a, b))
    return jnp.cross(a, b, axis=dim)


@register("_cdist_forward")
def _cdist(a: Any, b: Any, p: float, mode: int | None = None) -> Any:
    return _norm(jnp.abs(wide(a)[..., :, None, :] - wide(b)[..., None, :, :]), p)


def _norm(gap: Any, p: float) -> Any:
    """The p-norm over the last axis of what is not negative."""
    if p == 0:
        return jnp.sum(jnp.minimum(jnp.ceil(gap), 1), -1)  # a NaN counts as NaN
    if p == float("inf"):
        return jnp.max(gap, -1) if gap.shape[-1] else jnp.sum(gap, -1)
    if p == 1:
        return jnp.sum(gap, -1)
    return jnp.sqrt(jnp.sum(gap * gap, -1)) if p == 2 else jnp.sum(gap**p, -1) ** (1 / p)


@register("_euclidean_dist")
def _euclidean_dist(a: Any, b: Any) -> Any:
    return _cdist(a, b, 2.0)


@register("_pdist_forward")
def _pdist(x: Any, p: float = 2.0) -> Any:
    rows, columns = jnp.triu_indices(x.shape[0], 1)
    return _norm(jnp.abs(x[rows] - x[columns]), p)


@register("linalg_solve_triangular")
def _solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )
