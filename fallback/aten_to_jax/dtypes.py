"""PyTorch's dtypes and promotion on JAX arrays (JAX's own promotion is never relied on)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from trnx.fallback.aten_to_jax.table import register

JAX_DTYPES: dict[torch.dtype, Any] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.bfloat16: jnp.dtype(jnp.bfloat16),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
TORCH_DTYPES = {dtype: name for name, dtype in JAX_DTYPES.items()}
F32 = np.dtype(np.float32)
I64 = np.dtype(np.int64)
_I32 = np.dtype(np.int32)


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float))


def ndim(x: Any) -> int:
    """Dimensions of an array, 0 for a Python number."""
    return 0 if _is_number(x) else x.ndim


def is_floating(x: Any) -> bool:
    """Whether an array (or a Python number) is floating point."""
    if _is_number(x):
        return isinstance(x, float)
    return TORCH_DTYPES[x.dtype].is_floating_point


def is_integer(x: Any) -> bool:
    """Whether an array is of an integer type or bool."""
    return not is_floating(x)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """PyTorch's rule for two groups of operands, of which the first has the higher priority."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_floating_point:
        return higher
    if higher == torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def result_dtype(*operands: Any) -> torch.dtype:
    """PyTorch's result type: tensors with dimensions, then 0-d tensors, then Python numbers."""
    groups: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if _is_number(x):
            group, dtype = 2, torch.bool if isinstance(x, bool) else torch.int64
            dtype = torch.float32 if isinstance(x, float) else dtype
        else:
            group, dtype = (0 if x.ndim else 1), TORCH_DTYPES[x.dtype]
        seen = groups[group]
        groups[group] = dtype if seen is None else torch.promote_types(seen, dtype)
    result = _combine(groups[0], _combine(groups[1], groups[2]))
    assert result is not None
    return result


# Eager goes through a wider integer and keeps its low bits.
_THROUGH = {np.dtype(np.uint8): I64, np.dtype(np.int8): _I32, np.dtype(np.int16): _I32}


def _truncated(x: Any, dtype: Any) -> Any:
    """Floats as int32 or int64. What does not fit, NaN too, is the least integer, as x86 has it in
    eager; XLA would give the nearest one, and 0 for NaN."""
    x = wide(x)
    fits = x < 2.0 ** (8 * dtype.itemsize - 1)  # below the least integer, XLA gives that too
    return jnp.where(fits, lax.convert_element_type(x, dtype), np.iinfo(dtype).min)


def cast(x: Any, dtype: Any) -> Any:
    """An array of a Python number, or an array in another dtype; floats to ints truncate."""
    if _is_number(x):
        # Infinities and NaN have no integer: int raises, as eager does.
        return jnp.asarray(int(x) if jnp.issubdtype(dtype, jnp.integer) else x, dtype)
    if x.dtype == dtype:
        return x
    if x.dtype == np.dtype(np.bool_) and jnp.issubdtype(dtype, jnp.floating):
        # XLA's simplifier makes a selection of a product with a converted bool: no NaN of inf * 0.
        return jnp.where(x, jnp.ones((), dtype), jnp.zeros((), dtype))
    if dtype == np.dtype(np.bool_):
        return x != 0
    if is_floating(x) and jnp.issubdtype(dtype, jnp.integer):
        x = _truncated(x, _THROUGH.get(dtype, dtype))
    return lax.convert_element_type(x, dtype)


def promote(*operands: Any, floating: bool = False) -> tuple[Any, ...]:
    """The operands in PyTorch's common dtype; `floating` turns integers into float32."""
    dtype = result_dtype(*operands)
    if floating and not dtype.is_floating_point:
        dtype = torch.float32
    return tuple(cast(x, JAX_DTYPES[dtype]) for x in operands)


def compute(*operands: Any, floating: bool = False) -> tuple[Any, ...]:
    """Like `promote`, then bf16 and fp16 become float32, in which eager computes them too.

    So numbers and integers are rounded to half precision first, as in eager.
    """
    return tuple(wide(x) for x in promote(*operands, floating=floating))


def factors(x: Any, y: Any, *, floating: bool = False) -> tuple[Any, Any]:
    """`compute` for products and quotients: in half precision, eager takes a second operand that is
    a number or has no dimensions as float32."""
    x, rounded = compute(x, y, floating=floating)
    return x, rounded if ndim(y) else cast(y, x.dtype)


def wide(x: Any) -> Any:
    """One floating array in the dtype that it is computed in."""
    return cast(x, F32) if x.dtype.itemsize == 2 and is_floating(x) else x


def accumulated(x: Any) -> Any:
    """An array as reductions take it: integers as int64, half precision as float32."""
    return wide(x) if is_floating(x) else cast(x, I64)


def axes(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Non-negative dimensions; None and the empty list mean all. None for a 0-d tensor."""
    if ndim == 0:
        return ()
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(d % ndim for d in dims)


def axis(dim: int, ndim: int) -> int:
    """A non-negative dimension; 0 for 0-d tensors."""
    return dim % ndim if ndim else 0


def pointwise(
    names: str, function: Callable[..., Any], *, floating: bool = False, guard: Any = None
) -> None:
    """Enter `function` of promoted arrays for each of the names (separated by blanks)."""

    def entry(*operands: Any, **settings: Any) -> Any:
        return function(*compute(*operands, floating=floating), **settings)

    register(*names.split(), guard=guard)(entry)
