"""Explicit access patterns (`.ap`), views as another dtype, and how indirect views are made.

`.ap` addresses the storage, not the view: of the view it keeps the offset alone, to which a given
offset is added; only the partition stride may be the view's own. A pattern out of bounds may be
made; to use it is the finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from trnx.simulator.language.tensor_view import Indirect, TensorView, nowhere_of
from trnx.simulator.memory.dtypes import DType, resolve
from trnx.simulator.memory.views import Shape, last_element, reshape_strides

if TYPE_CHECKING:
    from trnx.simulator.language.tensor import NkiTensor


class Patterned(TensorView):
    """Views of an `NkiTensor` that do not follow its dimensions."""

    __slots__ = ()

    @property
    def _first_is_fixed(self) -> bool:
        indirect = self.indirection
        return self.is_on_chip or (indirect is not None and indirect.is_vector)

    def _dim(self, dim: int, what: str, *, free: bool = False, extra: int = 0) -> int:
        """`dim` made non-negative; with `free`, not the partition dimension."""
        rank = self.ndim + extra
        index = dim + rank if dim < 0 else dim
        if not 0 <= index < rank:
            self._fail(f"{what}: dimension {dim} is not one of {rank}")
        if free and index == 0 and self._first_is_fixed:
            self._fail(f"{what}: dimension 0 is the partition dimension, which stays as it is")
        return index

    def _indirect(
        self,
        shape: Shape,
        strides: Shape,
        offset: int,
        indirect: Indirect,
        dtype: DType | None = None,
    ) -> Self:
        if self.indirection is not None:
            self._fail("an indirect view cannot be made indirect again")
        return type(self)(
            self.storage, dtype or self.dtype, shape, strides, offset, self.name, indirect
        )

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> Self:
        """An explicit access pattern `[[stride, count], ...]` on the storage."""
        kind = self.dtype if dtype is None else resolve(dtype)
        shape = tuple(int(count) for _, count in pattern)
        strides = tuple(int(stride) for stride, _ in pattern)
        base = self._scaled(self.offset, kind, "ap: offset")
        moved = 0 if offset is None else int(offset)
        if self._is_by_own_partition(strides, shape, kind):
            pitch = self._scaled(self.pitch, kind, "ap: a partition")
            partition, column = divmod(moved, strides[0])
            moved = partition * pitch + column
            strides = (pitch, *strides[1:])
        start = base + moved
        view = type(self)(self.storage, kind, shape, strides, start, self.name)
        outside = view._check_pattern(vector_offset is not None)
        if outside:
            return view._outside(outside)
        if scalar_offset is None and vector_offset is None:
            return view
        if scalar_offset is not None and vector_offset is not None:
            self._fail("ap: scalar_offset and vector_offset exclude each other")
        dim = self._dim(indirect_dim, "ap: indirect_dim")
        if vector_offset is not None and (dim != 0 or self.is_on_chip):
            self._fail("ap: vector_offset takes indirect_dim 0 of a tensor in HBM")
        index = scalar_offset if vector_offset is None else vector_offset
        scale = self._scaled(self.strides[dim], kind, "ap: stride of indirect_dim")
        limit = self._indices(dim) if vector_offset is None else self.shape[dim]
        indirect = Indirect(index, vector_offset is not None, scale, limit, dim)
        return self._indirect(shape, strides, start, indirect, kind)

    def _indices(self, dim: int) -> int:
        """How many indices a dimension has. On chip, its size; beside a dimension of size 1, which
        has the same stride, both are meant. In HBM what counts is the address, which has to be in
        the tensor: nkilib counts the tokens of a cache of blocks along the tokens of one block
        (attention_block_tkg.py, _update_block_cache_scalar), and takes a dimension by its stride.
        """
        here = self.strides[dim]
        if not self.is_on_chip and here > 0:
            return max(1, self.storage.nbytes // self.dtype.itemsize // here)
        sizes = zip(self.shape, self.strides, strict=True)
        return max(size for size, stride in sizes if stride == here)

    def _is_by_own_partition(self, strides: Shape, shape: Shape, dtype: DType) -> bool:
        """True for a pattern whose partition stride is the view's elements per partition, fewer
        than the storage's. Made from the shape of a view as if that were a tensor, it counts the
        view's partitions: the bias of nkilib/core/mlp/mlp_tkg/mlp_tkg_gate_up_projection.py is
        added through such patterns.
        """
        if not self.is_on_chip or not shape or shape[0] < 2:
            return False
        if strides[0] * dtype.itemsize != self.free_size * self.dtype.itemsize:
            return False
        if self.free_size == self.pitch or self.strides[0] != self.pitch:
            return False
        return reshape_strides(self.shape[1:], self.strides[1:], (self.free_size,)) == (1,)

    def _scaled(self, elements: int, dtype: DType, what: str) -> int:
        """A number of elements of this dtype in elements of `dtype`."""
        nbytes = elements * self.dtype.itemsize
        if nbytes % dtype.itemsize:
            self._fail(f"{what} of {nbytes} bytes is no multiple of a {dtype}")
        return nbytes // dtype.itemsize

    def _check_pattern(self, skip_first: bool) -> str:
        """The partition pair of an explicit pattern on chip; says what of it is out of bounds."""
        if not self.shape or min(self.shape) < 1 or min(self.strides) < 0 or self.offset < 0:
            self._fail(
                f"ap: counts must be positive, strides and offset {self.offset} not negative"
            )
        total = self.storage.nbytes // self.dtype.itemsize
        if not self.is_on_chip:
            first = 1 if skip_first else 0
            end = self.offset + last_element(self.shape[first:], self.strides[first:])
            return f"ap reaches element {end} of {total}" if end >= total else ""
        partition, column = divmod(self.offset, self.pitch)
        if self.shape[0] > 1 and self.strides[0] != self.pitch:
            self._fail(
                f"ap: the partition stride is {self.strides[0]}; it must be the "
                f"elements of one partition, {self.pitch}"
            )
        last = partition + self.shape[0] - 1
        if last >= self.storage.partitions:
            return f"ap reaches partition {last} of {self.storage.partitions}"
        end = column + last_element(self.shape[1:], self.strides[1:])
        if end >= self.pitch:
            return f"ap reaches element {end} of {self.pitch} in a partition"
        return ""

    def _outside(self, message: str) -> Self:
        """In place of a view with elements that do not exist. Kernels make such patterns and then
        ask whether to use them: nkilib/core/output_projection/output_projection_tkg.py, whose last
        tile is not full.
        """
        nowhere = nowhere_of(f"{message} ({self.describe()})")
        return type(self)(nowhere, self.dtype, self.shape, self.strides, 0, self.name)

    def view(self, dtype: Any) -> Self:
        """The same bytes as another dtype; the last dimension is rescaled."""
        kind = resolve(dtype)
        old, new = self.dtype.itemsize, kind.itemsize
        if self.indirection is not None:
            self._fail("view: not on an indirect view")
        if old == new:
            return type(self)(self.storage, kind, self.shape, self.strides, self.offset, self.name)
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            self._fail("view: the last dimension must be contiguous")
        last = self.shape[-1] * old
        if last % new:
            self._fail(f"view: {last} bytes of the last dimension are no multiple of {kind}")
        strides = tuple(self._scaled(stride, kind, "view: stride") for stride in self.strides[:-1])
        offset = self._scaled(self.offset, kind, "view: offset")
        shape = (*self.shape[:-1], last // new)
        return type(self)(self.storage, kind, shape, (*strides, 1), offset, self.name)

    reinterpret_cast = view
