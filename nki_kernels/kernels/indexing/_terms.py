"""How the result of an indexing op is divided into rows, and the address of each.

An *axis* is a dimension of the result as it lies in memory: its size, its stride in the operand
that is indexed (0 where an index decides), and its stride in each index tensor. The last axes that
lie in the operand as in the result make a row; the others count positions. The address of a row is
a sum of terms: an index times the stride of the dimension that it indexes, and the offset of the
axes that no index decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from trnx.nki_kernels.kernels.indexing._addresses import EXACT, Term
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.memory.tensor_spec import TensorSpec

INDEX_DTYPES = (torch.int32, torch.int64)
VALUE_DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16),
    *(torch.int32, torch.int64, torch.bool, torch.uint8, torch.int8),
)
_LARGEST = 1 << 31


class Axis(NamedTuple):
    """A dimension of the result: `step` is its stride in the indexed operand."""

    size: int
    step: int
    index_steps: tuple[int, ...]


class Index(NamedTuple):
    """One index tensor: the operand's number, the size and stride of the dimension it indexes, and
    whether a negative one counts from the end."""

    number: int
    words: int
    extent: int
    stride: int
    wraps: bool


class Rows(NamedTuple):
    """`positions` rows of `width` elements at addresses in units of `unit` elements."""

    positions: int
    width: int
    unit: int
    terms: tuple[Term, ...]


def words_of(dtype: torch.dtype) -> int:
    """32-bit words that an int64 arrives as, 1 for other types."""
    return 2 if dtype is torch.int64 else 1


def broadcast_strides(spec: TensorSpec, ndim: int) -> tuple[int, ...]:
    """Strides of a tensor that is broadcast to `ndim` dimensions: 0 where it repeats."""
    own = [0 if n == 1 else step for n, step in zip(spec.shape, spec.strides, strict=True)]
    return (0,) * (ndim - spec.ndim) + tuple(own)


def reject_index(name: str, spec: TensorSpec, extent: int) -> Reject | None:
    """A Reject for an index tensor into a dimension of `extent` elements."""
    if spec.dtype in (torch.bool, torch.uint8):
        return Reject(
            f"{name} is a mask ({spec.dtype}), whose result has a size that depends on data"
        )
    if spec.dtype not in INDEX_DTYPES:
        return Reject(f"the dtype {spec.dtype} of {name} is not int32 or int64")
    if extent >= EXACT:
        return Reject(
            f"{name} indexes {extent} elements; float32 counts fewer than {EXACT} exactly"
        )
    return None


def reject_values(b: Bindings, *names: str) -> Reject | None:
    """A Reject where one of these operands has no elements, more than 32 bits count, or another
    dtype than bytes are moved of."""
    for name in names:
        spec = b[name]
        if spec.dtype not in VALUE_DTYPES:
            return Reject(f"dtype {spec.dtype} of {name} is none that is moved")
        if spec.numel == 0:
            return Reject(f"{name}{spec.shape} has no elements")
        if spec.numel * words_of(spec.dtype) >= _LARGEST:
            return Reject(f"{name}{spec.shape} has elements that an int32 does not count")
    return None


def reject_sums(name: str, count: int) -> Reject | None:
    """A Reject where float32 does not count the `count` addresses that are compared in it."""
    if count >= EXACT:
        return Reject(f"{name} has {count} addresses; float32 tells fewer than {EXACT} apart")
    return None


def axes_of_index(
    x: TensorSpec, given: Sequence[TensorSpec | None]
) -> tuple[list[Axis], list[Index]]:
    """The axes of `x[given]` in row-major order, and the indices; None takes a dimension whole."""
    strides = TensorSpec.dense(x.shape, x.dtype).strides
    chosen = [(dim, spec) for dim, spec in enumerate(given) if spec is not None]
    shape = torch.broadcast_shapes(*(spec.shape for _, spec in chosen))
    steps = [broadcast_strides(spec, len(shape)) for _, spec in chosen]
    picked = [Axis(n, 0, tuple(s[i] for s in steps)) for i, n in enumerate(shape)]
    dims = [dim for dim, _ in chosen]
    none = (0,) * len(chosen)
    whole = [Axis(x.shape[d], strides[d], none) for d in range(x.ndim) if d not in dims]
    # Where the index tensors are not side by side, their dimensions come first.
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    indices = [
        Index(dim, words_of(spec.dtype), x.shape[dim], strides[dim], wraps=True)
        for dim, spec in chosen
    ]
    return [*whole[:first], *picked, *whole[first:]], indices


def axes_of_dim(x: TensorSpec, dim: int, index: TensorSpec) -> tuple[list[Axis], Index]:
    """The axes of x with the elements of `index` in the place of `dim`, and the index, which counts
    from 0."""
    dim %= x.ndim
    strides = TensorSpec.dense(x.shape, x.dtype).strides
    axes = [Axis(n, strides[d], (0,)) for d, n in enumerate(x.shape)]
    axes[dim] = Axis(index.numel, 0, (index.strides[0] if index.ndim else 0,))
    return axes, Index(0, words_of(index.dtype), x.shape[dim], strides[dim], wraps=False)


def axes_along(x: TensorSpec, dim: int, index: TensorSpec) -> tuple[list[Axis], Index]:
    """The axes of an `index` with an element for each of a result, which indexes `dim` of x, and
    the index, which counts from 0."""
    strides = TensorSpec.dense(x.shape, x.dtype).strides
    axes = [
        Axis(n, 0 if d == dim else strides[d], (index.strides[d],))
        for d, n in enumerate(index.shape)
    ]
    return axes, Index(0, words_of(index.dtype), x.shape[dim], strides[dim], wraps=False)


def values_pattern(
    values: TensorSpec, axes: Sequence[Axis], words: int
) -> tuple[tuple[int, int], ...]:
    """The access pattern that broadcasts `values` to these axes, () where memory has that order."""
    steps = broadcast_strides(values, len(axes))
    if values.is_contiguous and values.numel == math.prod(axis.size for axis in axes):
        return ()
    pattern = tuple((step * words, axis.size) for step, axis in zip(steps, axes, strict=True))
    return (*pattern, (1, 2)) if words == 2 else pattern or ((0, 1),)


def rows_of(axes: Sequence[Axis], indices: Sequence[Index], words: int) -> Rows:
    """The rows of a result with these axes, outermost first; an element has `words` of memory."""
    kept = [axis for axis in axes if axis.size != 1]
    width = 1
    while kept and kept[-1].step == width and not any(kept[-1].index_steps):
        width *= kept.pop().size
    merged = _merged(kept)
    factors = [index.stride for index in indices] + [axis.step for axis in merged if axis.step]
    unit = math.gcd(*factors)
    terms = [_index_term(i, index, merged, index.stride // unit) for i, index in enumerate(indices)]
    for place, axis in enumerate(merged):
        if axis.step:
            steps = tuple((1 if i == place else 0, a.size) for i, a in enumerate(merged))
            pattern = () if len(merged) == 1 else steps
            terms.append((-1, 1, axis.size, axis.step // unit, False, pattern))
    positions = math.prod(axis.size for axis in merged)
    return Rows(positions, width * words, unit * words, tuple(terms))


def _merged(axes: Sequence[Axis]) -> list[Axis]:
    """Neighbours of which the outer is a multiple of the inner, in every tensor, as one."""
    merged: list[Axis] = []
    for axis in axes:
        if merged:
            outer = merged[-1]
            inner = (axis.step, *axis.index_steps)
            if (outer.step, *outer.index_steps) == tuple(axis.size * step for step in inner):
                merged[-1] = Axis(outer.size * axis.size, axis.step, axis.index_steps)
                continue
        merged.append(axis)
    return merged


def _index_term(place: int, index: Index, axes: Sequence[Axis], factor: int) -> Term:
    steps = [(axis.index_steps[place], axis.size) for axis in axes]
    if steps in ([], [(1, steps[0][1])] if steps else []):
        pattern: tuple[tuple[int, int], ...] = ()
    else:
        pattern = tuple((step * index.words, count) for step, count in steps)
        pattern += ((1, 2),) * (index.words == 2)
    return (index.number, index.words, index.extent, factor, index.wraps, pattern)
