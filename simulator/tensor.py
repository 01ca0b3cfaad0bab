"""`NkiTensor`: a strided view of a storage, with the view operations of NKI 0.6.

Offset and strides count elements of the view's dtype. SBUF and PSUM views keep the partition
dimension first: no operation moves, splits, merges or broadcasts it. Source of the rules: SDK
nki.language.NkiTensor and SDK/nki/deep-dives/nki-aps.rst. `.ap` addresses the storage, not the
view: of the view it keeps the offset alone, to which a given offset is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from trnx.simulator.context import current_or_none, kernel_location
from trnx.simulator.dtypes import DType, resolve
from trnx.simulator.errors import IllegalInstructionError, KernelSubsetError, OutOfBoundsError
from trnx.simulator.indexing import index_view
from trnx.simulator.rearrange import rearrange_view
from trnx.simulator.storage import MemoryRegion, Storage
from trnx.simulator.views import (
    Geometry,
    Shape,
    geometry,
    is_row_major,
    last_element,
    reshape_strides,
    split_sizes,
)

if TYPE_CHECKING:
    from trnx.simulator.registers import VirtualRegister


@dataclass(frozen=True)
class Indirect:
    """A dynamic address: the index times `scale` elements is added to the view's offset.

    A scalar index is one value; a vector index has one value for each step of the first dimension,
    whose own stride is ignored. An index must be below `limit`. `scale` counts elements of the
    view's dtype. With a `base` it is tensor indirection: the indices are columns of `base`, a list
    for every group of partitions (see `isa.indirect`).
    """

    index: NkiTensor | VirtualRegister
    is_vector: bool
    scale: int
    limit: int
    dim: int
    base: NkiTensor | None = None


class NkiTensor:
    """See the module's docstring. Made by `nl.ndarray`; arguments of a kernel are NkiTensors in
    HBM.
    """

    __slots__ = (
        "_geometry",
        "_key",
        "_view",
        "dtype",
        "indirection",
        "name",
        "offset",
        "row",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self,
        storage: Storage,
        dtype: DType,
        shape: Shape,
        strides: Shape,
        offset: int = 0,
        name: str = "",
        indirection: Indirect | None = None,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.name = name
        self.indirection = indirection
        self._view: torch.Tensor | None = None
        self._key: tuple[Any, ...] | None = None
        self._geometry: Geometry | None = None
        # How the module `rows` writes it down, once it has.
        self.row: tuple[int, ...] | None = None

    # ---- properties ----

    @property
    def buffer(self) -> MemoryRegion:
        """Where it lives."""
        return self.storage.buffer

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.geometry().size

    @property
    def free_size(self) -> int:
        """Elements per partition."""
        return math.prod(self.shape[1:])

    @property
    def is_on_chip(self) -> bool:
        """True in SBUF and PSUM."""
        return self.storage.is_on_chip

    @property
    def pitch(self) -> int:
        """Elements of this dtype in one partition of the storage."""
        return self.storage.pitch * self.storage.dtype.itemsize // self.dtype.itemsize

    @property
    def start_partition(self) -> int:
        """First partition in the chip's memory (an automatic tensor is taken to start at 0)."""
        return self.storage.start_partition + self.offset // self.pitch

    def geometry(self) -> Geometry:
        """What follows from shape, strides and offset; see `views.geometry`."""
        found = self._geometry
        if found is None:
            storage, dtype = self.storage, self.dtype
            pitch = 0
            if storage.is_on_chip:
                pitch = storage.pitch * storage.dtype.itemsize // dtype.itemsize
            found = geometry(self.shape, self.strides, self.offset, dtype.itemsize, pitch)
            self._geometry = found
        return found

    @property
    def is_placed(self) -> bool:
        """True for a tensor on chip whose address the kernel chose."""
        allocation = self.storage.allocation
        return allocation is not None and allocation.address is not None

    def byte_range(self) -> tuple[int, int, int, int]:
        """(first byte, end byte, first partition, partitions); bytes within a partition on chip."""
        span = self.geometry().span
        if self.indirection is None:
            return span
        if self.is_on_chip:
            return 0, self.pitch * self.dtype.itemsize, span[2], span[3]
        return 0, self.storage.nbytes, 0, 1

    def region_key(self) -> tuple[Any, ...]:
        """Equal for views of the same elements in the same order."""
        key = self._key
        if key is None:
            key = self._key = (self.offset, self.shape, self.strides, self.dtype.itemsize)
        return key

    def same_elements(self, other: NkiTensor) -> bool:
        """True where both views walk the same locations in the same order."""
        return self.storage is other.storage and self.region_key() == other.region_key()

    def torch_view(self) -> torch.Tensor:
        """The strided torch view of its elements, as stored."""
        if self._view is None:
            self._view = self.storage.view(self.dtype, self.shape, self.strides, self.offset)
        return self._view

    def describe(self) -> str:
        """For messages: name, shape, dtype and place."""
        name = self.name or self.storage.name
        return f"{name + ' ' if name else ''}{self.shape} {self.dtype} in {self.buffer.value}"

    def __repr__(self) -> str:
        return f"NkiTensor({self.describe()}, strides={self.strides}, offset={self.offset})"

    def _unknown(self, *_: object) -> NoReturn:
        raise KernelSubsetError(
            "kernel-subset",
            "the value of a tensor is not known while a kernel is traced, and tensors have no "
            "Python operators; use nl.where, nl.add, ... or a register loop",
            kernel_location(),
        )

    def __bool__(self) -> bool:
        simulator = current_or_none()
        if simulator is not None and not (simulator.is_interactive or self.is_on_chip):
            # `if argument:` asks whether an optional argument was given; public kernels do this.
            return True
        if simulator is None or not simulator.is_interactive:
            self._unknown()
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

    def is_contiguous(self) -> bool:
        """True where the walk is row-major without gaps; on chip, of the free dimensions alone."""
        first = 1 if self.is_on_chip else 0
        return is_row_major(self.shape[first:], self.strides[first:])

    def get_pattern(self) -> list[list[int]]:
        """`[[stride, count], ...]` of the dimensions."""
        return [[stride, size] for size, stride in zip(self.shape, self.strides, strict=True)]

    def is_indirect(self) -> bool:
        """True where the address depends on a value."""
        return self.indirection is not None

    # ---- helpers ----

    def _fail(self, message: str) -> NoReturn:
        raise IllegalInstructionError("view", f"{message} ({self.describe()})", kernel_location())

    def _out_of_bounds(self, message: str) -> NoReturn:
        raise OutOfBoundsError("out-of-bounds", f"{message} ({self.describe()})", kernel_location())

    def _like(self, shape: Shape, strides: Shape, offset: int | None = None) -> NkiTensor:
        start = self.offset if offset is None else offset
        return NkiTensor(
            self.storage, self.dtype, shape, strides, start, self.name, self.indirection
        )

    def _dim(self, dim: int, what: str, *, free: bool = False, extra: int = 0) -> int:
        """`dim` made non-negative; with `free`, not the partition dimension."""
        rank = self.ndim + extra
        index = dim + rank if dim < 0 else dim
        if not 0 <= index < rank:
            self._fail(f"{what}: dimension {dim} is not one of {rank}")
        if free and index == 0 and self._first_is_fixed:
            self._fail(f"{what}: dimension 0 is the partition dimension, which stays as it is")
        return index

    @property
    def _first_is_fixed(self) -> bool:
        indirect = self.indirection
        return self.is_on_chip or (indirect is not None and indirect.is_vector)

    def _guard_indirect(self, dim: int, what: str) -> None:
        indirect = self.indirection
        if indirect is not None and indirect.is_vector and dim == 0:
            self._fail(f"{what}: dimension 0 takes part in the indirection")

    # ---- views ----

    def __getitem__(self, key: Any) -> NkiTensor:
        return index_view(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        from trnx.simulator.language import assign

        assign(self[key], value)

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

    def _indirect(
        self,
        shape: Shape,
        strides: Shape,
        offset: int,
        indirect: Indirect,
        dtype: DType | None = None,
    ) -> NkiTensor:
        if self.indirection is not None:
            self._fail("an indirect view cannot be made indirect again")
        return NkiTensor(
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
    ) -> NkiTensor:
        """An explicit access pattern `[[stride, count], ...]` on the storage."""
        kind = self.dtype if dtype is None else resolve(dtype)
        shape = tuple(int(count) for _, count in pattern)
        strides = tuple(int(stride) for stride, _ in pattern)
        base = self._scaled(self.offset, kind, "ap: offset")
        start = base + (0 if offset is None else int(offset))
        view = NkiTensor(self.storage, kind, shape, strides, start, self.name)
        view._check_pattern(vector_offset is not None)
        if scalar_offset is None and vector_offset is None:
            return view
        if scalar_offset is not None and vector_offset is not None:
            self._fail("ap: scalar_offset and vector_offset exclude each other")
        dim = self._dim(indirect_dim, "ap: indirect_dim")
        if vector_offset is not None and (dim != 0 or self.is_on_chip):
            self._fail("ap: vector_offset takes indirect_dim 0 of a tensor in HBM")
        index = scalar_offset if vector_offset is None else vector_offset
        scale = self._scaled(self.strides[dim], kind, "ap: stride of indirect_dim")
        indirect = Indirect(index, vector_offset is not None, scale, self.shape[dim], dim)
        return self._indirect(shape, strides, start, indirect, kind)

    def _scaled(self, elements: int, dtype: DType, what: str) -> int:
        """A number of elements of this dtype in elements of `dtype`."""
        nbytes = elements * self.dtype.itemsize
        if nbytes % dtype.itemsize:
            self._fail(f"{what} of {nbytes} bytes is no multiple of a {dtype}")
        return nbytes // dtype.itemsize

    def _check_pattern(self, skip_first: bool) -> None:
        """Bounds of an explicit pattern, and the partition pair of an on-chip one."""
        if not self.shape or min(self.shape) < 1 or min(self.strides) < 0 or self.offset < 0:
            self._fail(
                f"ap: counts must be positive, strides and offset {self.offset} not negative"
            )
        total = self.storage.nbytes // self.dtype.itemsize
        if not self.is_on_chip:
            first = 1 if skip_first else 0
            end = self.offset + last_element(self.shape[first:], self.strides[first:])
            if end >= total:
                self._out_of_bounds(f"ap reaches element {end} of {total}")
            return
        partition, column = divmod(self.offset, self.pitch)
        if self.shape[0] > 1 and self.strides[0] != self.pitch:
            self._fail(
                f"ap: the partition stride is {self.strides[0]}; it must be the "
                f"elements of one partition, {self.pitch}"
            )
        if partition + self.shape[0] > self.storage.partitions:
            self._out_of_bounds(
                f"ap reaches partition {partition + self.shape[0] - 1} of {self.storage.partitions}"
            )
        end = column + last_element(self.shape[1:], self.strides[1:])
        if end >= self.pitch:
            self._out_of_bounds(f"ap reaches element {end} of {self.pitch} in a partition")

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dimension is rescaled."""
        kind = resolve(dtype)
        old, new = self.dtype.itemsize, kind.itemsize
        if self.indirection is not None:
            self._fail("view: not on an indirect view")
        if old == new:
            return NkiTensor(self.storage, kind, self.shape, self.strides, self.offset, self.name)
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            self._fail("view: the last dimension must be contiguous")
        last = self.shape[-1] * old
        if last % new:
            self._fail(f"view: {last} bytes of the last dimension are no multiple of {kind}")
        strides = tuple(self._scaled(stride, kind, "view: stride") for stride in self.strides[:-1])
        offset = self._scaled(self.offset, kind, "view: offset")
        shape = (*self.shape[:-1], last // new)
        return NkiTensor(self.storage, kind, shape, (*strides, 1), offset, self.name)

    reinterpret_cast = view

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Columns of a tile by value (NeuronCore-v4): gathers as an operand, scatters as dst."""
        simulator = current_or_none()
        if simulator is not None and simulator.hardware.generation < 4:
            self._fail(f"indirect: needs trn3, not {simulator.hardware.target}")
        count = index.size if num_elem is None else num_elem
        if not self.is_on_chip or self.ndim != 2:
            self._fail("indirect: it takes a tile [partitions, elements] in SBUF or PSUM")
        if index.buffer is not MemoryRegion.sbuf or index.ndim != 2:
            self._fail(f"indirect: the index {index.describe()} must be a tile [P, K] in SBUF")
        if index.shape[0] != self.shape[0] or not index.dtype.is_integer:
            self._fail(f"indirect: the index {index.describe()} must be integers of all partitions")
        if not 0 < count <= index.size:
            self._fail(f"indirect: {count} elements of an index with {index.size}")
        indirect = Indirect(index, False, self.strides[1], self.shape[1], 1, self)
        return self._indirect((self.shape[0], count), self.strides, self.offset, indirect)
