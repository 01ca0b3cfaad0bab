"""`TensorSpec`: what is known of a tensor before there are values."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@functools.lru_cache(maxsize=512)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of `shape`, in elements; a size of 0 counts as 1, as torch does."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype and strides (in elements) of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of `tensor`, which may be real or fake but has concrete sizes."""
        return cls(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()))

    @classmethod
    def dense(cls, shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
        """A row-major spec."""
        return cls(shape, dtype, contiguous_strides(shape))

    def permuted(self, dims: Sequence[int]) -> TensorSpec:
        """The spec of a view with the dimensions in the order `dims`."""
        shape = tuple(self.shape[dim] for dim in dims)
        return TensorSpec(shape, self.dtype, tuple(self.strides[dim] for dim in dims))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps that strides may leave."""
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """True where the elements lie row-major without gaps; sizes of 1 do not count."""
        dense = contiguous_strides(self.shape)
        return self.numel == 0 or all(
            size == 1 or have == want
            for size, have, want in zip(self.shape, self.strides, dense, strict=True)
        )
