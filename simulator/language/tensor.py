"""`NkiTensor`: a strided view of a storage, with the view operations of NKI 0.6.

Offset and strides count elements of the view's dtype. SBUF and PSUM views keep the partition
dimension first: no operation moves, splits, merges or broadcasts it. Source of the rules: SDK
nki.language.NkiTensor and SDK/nki/deep-dives/nki-aps.rst.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from trnx.simulator.errors import KernelSubsetError, UnknownNkiNameError
from trnx.simulator.kernel_lines import is_simulator_frame, kernel_location
from trnx.simulator.language.indexing import index_view
from trnx.simulator.language.patterns import Patterned
from trnx.simulator.language.rearrange import rearrange_view
from trnx.simulator.language.recorder import current, current_or_none
from trnx.simulator.language.tensor_view import Indirect
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.memory.views import Shape, is_row_major, reshape_strides, split_sizes
from trnx.simulator.older_dialects import changed_name

# Name of the tiles that functions of nki.language make for their results.
RESULT = "result"


class NkiTensor(Patterned):
    """See the module's docstring. Made by `nl.ndarray`; arguments of a kernel are NkiTensors in
    HBM.
    """

    __slots__ = ()

    def _unknown(self, *_: object) -> NoReturn:
        raise KernelSubsetError(
            "kernel-subset",
            "the value of a tensor is not known while a kernel is traced, and tensors have no "
            "Python operators; use nl.where, nl.add, ... or a register loop",
            kernel_location(),
        )

    def __bool__(self) -> bool:
        simulator = current_or_none()
        if simulator is None:
            self._unknown()
        if not simulator.is_interactive:
            # `if argument:` asks whether an optional argument was given, which public kernels do
            # with tensors on chip, too (nki-library's mlp_tkg_constants.py). One element on chip,
            # or what a function of nki.language gave, is a value branched on by mistake.
            # What asks within an instruction is a flag that got a tensor.
            is_value = self.is_on_chip and (self.size == 1 or self.storage.name == RESULT)
            if is_value or is_simulator_frame(sys._getframe(1)):
                self._unknown()
            return True
        return bool((simulator.values_of(self) != 0).all())

    def __eq__(self, other: object) -> bool:
        """The same tensor; equality with a number would be one of values."""
        if isinstance(other, bool | int | float):
            self._unknown()
        return self is other

    def __hash__(self) -> int:
        return id(self)

    __int__ = __index__ = __float__ = __iter__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __truediv__ = __rtruediv__ = __matmul__ = __mod__ = __pow__ = __and__ = __or__ = _unknown

    def __getattr__(self, name: str) -> NoReturn:
        change = changed_name("NkiTensor", name)
        about = f"; {change}" if change is not None else "; docs/nki_api.md lists its members"
        raise UnknownNkiNameError(f"a tensor has no {name!r}{about}")

    def _like(self, shape: Shape, strides: Shape, offset: int | None = None) -> NkiTensor:
        start = self.offset if offset is None else offset
        return NkiTensor(
            self.storage, self.dtype, shape, strides, start, self.name, self.indirection
        )

    def _guard_indirect(self, dim: int, what: str) -> None:
        indirect = self.indirection
        if indirect is not None and indirect.is_vector and dim == 0:
            self._fail(f"{what}: dimension 0 takes part in the indirection")

    def __getitem__(self, key: Any) -> NkiTensor:
        """A view: slices, numbers, `nl.ds`, `...`; a slice may end behind the last element."""
        return index_view(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy a tile or a number to a view."""
        current("tensor[key] = value").assign(self[key], value)

    @property
    def base_tensor(self) -> NkiTensor:
        """What this tensor is another dtype's view of; itself where it is no view. NKI's reference
        does not have it: the MX kernels of nki-library load the weights that they are given by it.
        """
        storage = self.storage
        is_whole = self.size * self.dtype.itemsize == storage.nbytes
        is_plain = self.indirection is None and is_row_major(self.shape, self.strides)
        if not (is_whole and is_plain):
            self._fail("base_tensor: this is a view of a part; ask the tensor itself")
        return self if self.dtype == storage.dtype else self.view(storage.dtype)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """Dimensions in the order `dims`; the partition dimension stays first."""
        order = tuple(dim + self.ndim if dim < 0 else dim for dim in dims)
        if sorted(order) != list(range(self.ndim)):
            self._fail(f"permute: {tuple(dims)} is no permutation of {self.ndim} dimensions")
        if self._first_is_fixed and order[0] != 0:
            self._fail("permute: dimension 0 is the partition dimension, which stays first")
        return self._like(
            tuple(self.shape[dim] for dim in order), tuple(self.strides[dim] for dim in order)
        )

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dimension of size 1 repeated `size` times, with stride 0."""
        index = self._dim(dim, "broadcast", free=True)
        if self.shape[index] != 1:
            self._fail(f"broadcast: dimension {dim} has size {self.shape[index]}, not 1")
        if not isinstance(size, int) or size < 1:
            self._fail(f"broadcast: size {size!r} is no positive number")
        shape, strides = list(self.shape), list(self.strides)
        shape[index], strides[index] = size, 0
        return self._like(tuple(shape), tuple(strides))

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new dimension of size 1 at `dim`."""
        index = self._dim(dim, "expand_dim", free=True, extra=1)
        stride = self.strides[index] * self.shape[index] if index < self.ndim else 1
        shape = (*self.shape[:index], 1, *self.shape[index:])
        return self._like(shape, (*self.strides[:index], stride, *self.strides[index:]))

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without the dimension `dim`, which has size 1."""
        index = self._dim(dim, "squeeze_dim", free=True)
        if self.shape[index] != 1:
            self._fail(f"squeeze_dim: dimension {dim} has size {self.shape[index]}, not 1")
        return self._like(
            (*self.shape[:index], *self.shape[index + 1 :]),
            (*self.strides[:index], *self.strides[index + 1 :]),
        )

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """One dimension split into `shape`, of which one size may be -1."""
        index = self._dim(dim, "reshape_dim")
        if index == 0 and self._first_is_fixed and len(shape) != 1:
            self._fail("reshape_dim: dimension 0 is the partition dimension, which is not split")
        sizes = split_sizes(self.shape[index], tuple(shape))
        if sizes is None:
            self._fail(
                f"reshape_dim: {self.shape[index]} elements do not split into {tuple(shape)}"
            )
        inner: list[int] = []
        step = self.strides[index]
        for size in reversed(sizes):
            inner.append(step)
            step *= size
        return self._like(
            (*self.shape[:index], *sizes, *self.shape[index + 1 :]),
            (*self.strides[:index], *reversed(inner), *self.strides[index + 1 :]),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions `start_dim` to `end_dim` (inclusive) merged into one."""
        first = self._dim(start_dim, "flatten_dims", free=True)
        last = self._dim(end_dim, "flatten_dims")
        if first > last:
            self._fail(f"flatten_dims: {start_dim} comes after {end_dim}")
        sizes, steps = self.shape[first : last + 1], self.strides[first : last + 1]
        merged = reshape_strides(sizes, steps, (math.prod(sizes),))
        if merged is None:
            self._fail(f"flatten_dims: dimensions {start_dim}..{end_dim} are not contiguous")
        return self._like(
            (*self.shape[:first], math.prod(sizes), *self.shape[last + 1 :]),
            (*self.strides[:first], *merged, *self.strides[last + 1 :]),
        )

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """The same elements in the same order with other sizes; never copies."""
        sizes = split_sizes(self.size, tuple(shape))
        if sizes is None:
            self._fail(f"reshape: {self.size} elements do not fit {tuple(shape)}")
        if not self._first_is_fixed:
            strides = reshape_strides(self.shape, self.strides, sizes)
        else:
            if sizes[0] != self.shape[0]:
                self._fail(f"reshape: the partition dimension {self.shape[0]} became {sizes[0]}")
            free = reshape_strides(self.shape[1:], self.strides[1:], sizes[1:])
            strides = None if free is None else (self.strides[0], *free)
        if strides is None:
            self._fail(f"reshape: strides {self.strides} do not allow {sizes} without a copy")
        return self._like(sizes, strides)

    def rearrange(
        self,
        src_pattern: Sequence[Any],
        dst_pattern: Sequence[Any],
        fixed_sizes: Mapping[str, int] | None = None,
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name."""
        return rearrange_view(self, tuple(src_pattern), tuple(dst_pattern), dict(fixed_sizes or {}))

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements `start` to `end` (exclusive) of one dimension; bounds are not clamped."""
        index = self._dim(dim, "slice")
        self._guard_indirect(index, "slice")
        size = self.shape[index]
        if step < 1 or not 0 <= start < end <= size:
            self._out_of_bounds(f"slice {start}:{end}:{step} of dimension {dim} of size {size}")
        shape, strides = list(self.shape), list(self.strides)
        shape[index], strides[index] = -(-(end - start) // step), strides[index] * step
        return self._like(tuple(shape), tuple(strides), self.offset + start * self.strides[index])

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One element of a dimension, which is removed; `index` may be a tensor or a register."""
        at = self._dim(dim, "select", free=True)
        self._guard_indirect(at, "select")
        shape = (*self.shape[:at], *self.shape[at + 1 :])
        strides = (*self.strides[:at], *self.strides[at + 1 :])
        if isinstance(index, int):
            if not 0 <= index < self.shape[at]:
                self._out_of_bounds(f"select {index} of dimension {dim} of size {self.shape[at]}")
            return self._like(shape, strides, self.offset + index * self.strides[at])
        return self._indirect(
            shape,
            strides,
            self.offset,
            Indirect(index, False, self.strides[at], self.shape[at], at),
        )

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row `vector_offset[p]` of dimension 0 for every p; HBM alone."""
        if dim != 0 or self.is_on_chip:
            self._fail("vector_select takes dimension 0 of a tensor in HBM")
        shape = (vector_offset.shape[0], *self.shape[1:])
        indirect = Indirect(vector_offset, True, self.strides[0], self.shape[0], 0)
        return self._indirect(shape, self.strides, self.offset, indirect)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Columns of a tile by value (NeuronCore-v4): gathers as an operand, scatters as dst."""
        simulator = current_or_none()
        if simulator is not None and simulator.hardware.generation < 4:
            self._fail(f"indirect: needs trn3, not {simulator.hardware.target}")
        if not self.is_on_chip or self.ndim != 2:
            self._fail("indirect: it takes a tile [partitions, elements] in SBUF or PSUM")
        if not isinstance(index, NkiTensor):
            self._fail(f"indirect: the index must be a tile [P, K] in SBUF, not {index!r}")
        count = index.size if num_elem is None else num_elem
        if index.buffer is not MemoryRegion.sbuf or index.ndim != 2:
            self._fail(f"indirect: the index {index.describe()} must be a tile [P, K] in SBUF")
        if index.shape[0] != self.shape[0] or not index.dtype.is_integer:
            self._fail(f"indirect: the index {index.describe()} must be integers of all partitions")
        if not isinstance(count, int) or not 0 < count <= index.size:
            self._fail(f"indirect: {count} elements of an index with {index.size}")
        indirect = Indirect(index, False, self.strides[1], self.shape[1], 1, self)
        return self._indirect((self.shape[0], count), self.strides, self.offset, indirect)
