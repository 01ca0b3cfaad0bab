"""Tensors from numbers. What eager leaves unfilled (`empty`) is zero here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from torch import fx

from trnx.fallback.aten_to_jax.dtypes import F32, I64, JAX_DTYPES, cast, result_dtype
from trnx.fallback.aten_to_jax.table import dtype_of, register
from trnx.simulator.errors import Reject


def _number_dtype(value: Any) -> Any:
    if isinstance(value, bool):
        return np.dtype(bool)
    return I64 if isinstance(value, int) else F32


def _filled(size: Sequence[int], value: Any, dtype: Any) -> Any:
    return jnp.broadcast_to(cast(value, dtype), size)


@register("full")
def _full(size: Sequence[int], value: Any, dtype: Any = None) -> Any:
    return _filled(size, value, dtype or _number_dtype(value))


@register("zeros", "empty.memory_format")
def _zeros(size: Sequence[int], dtype: Any = None) -> Any:
    return jnp.zeros(size, dtype or F32)


@register("empty_strided", "empty_permuted")
def _empty_strided(size: Sequence[int], _: Sequence[int], dtype: Any = None) -> Any:
    return jnp.zeros(size, dtype or F32)


@register("ones")
def _ones(size: Sequence[int], dtype: Any = None) -> Any:
    return jnp.ones(size, dtype or F32)


@register("scalar_tensor")
def _scalar_tensor(value: Any, dtype: Any = None) -> Any:
    return cast(value, dtype or F32)


@register("zeros_like", "empty_like")
def _zeros_like(x: Any, dtype: Any = None) -> Any:
    return jnp.zeros(x.shape, dtype or x.dtype)


@register("ones_like")
def _ones_like(x: Any, dtype: Any = None) -> Any:
    return jnp.ones(x.shape, dtype or x.dtype)


@register("full_like")
def _full_like(x: Any, value: Any, dtype: Any = None) -> Any:
    return _filled(x.shape, value, dtype or x.dtype)


@register("new_zeros", "new_empty")
def _new_zeros(x: Any, size: Sequence[int], dtype: Any = None) -> Any:
    return jnp.zeros(size, dtype or x.dtype)


@register("new_empty_strided")
def _new_empty_strided(x: Any, size: Sequence[int], _: Sequence[int], dtype: Any = None) -> Any:
    return jnp.zeros(size, dtype or x.dtype)


@register("new_ones")
def _new_ones(x: Any, size: Sequence[int], dtype: Any = None) -> Any:
    return jnp.ones(size, dtype or x.dtype)


@register("new_full")
def _new_full(x: Any, size: Sequence[int], value: Any, dtype: Any = None) -> Any:
    return _filled(size, value, dtype or x.dtype)


def _range(start: Any, end: Any, step: Any, dtype: Any) -> Any:
    if dtype is None:
        dtype = JAX_DTYPES[result_dtype(start, end, step)]
    values = np.arange(start, end, step, dtype=I64 if dtype.kind in "iu" else np.float64)
    return jnp.asarray(values.astype(dtype))


@register("arange")
def _arange(end: Any, dtype: Any = None) -> Any:
    return _range(0, end, 1, dtype)


@register("arange.start")
def _arange_start(start: Any, end: Any, dtype: Any = None) -> Any:
    return _range(start, end, 1, dtype)


@register("arange.start_step")
def _arange_start_step(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Any:
    return _range(start, end, step, dtype)


def _floating_result(node: fx.Node) -> Reject | None:
    made = dtype_of(node)
    if made is None or made.is_floating_point:
        return None
    return Reject(f"{node.target} of integers is rounded step by step in eager", node)


@register("linspace", guard=_floating_result)
def _linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Any:
    return jnp.linspace(start, end, steps, dtype=np.float64).astype(dtype or F32)


@register("logspace", guard=_floating_result)
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None) -> Any:
    dtype = dtype or F32
    return jnp.power(float(base), jnp.linspace(start, end, steps, dtype=np.float64)).astype(dtype)


@register("eye")
def _eye(n: int, dtype: Any = None) -> Any:
    return jnp.eye(n, dtype=dtype or F32)


@register("eye.m")
def _eye_m(n: int, m: int, dtype: Any = None) -> Any:
    return jnp.eye(n, m, dtype=dtype or F32)


@register("tril_indices")
def _tril_indices(rows: int, columns: int, offset: int = 0, dtype: Any = None) -> Any:
    return jnp.asarray(np.stack(np.tril_indices(rows, offset, columns)), dtype or I64)


@register("triu_indices")
def _triu_indices(rows: int, columns: int, offset: int = 0, dtype: Any = None) -> Any:
    return jnp.asarray(np.stack(np.triu_indices(rows, offset, columns)), dtype or I64)
