"""Where the elements of a tensor are: storage, offset and strides in elements, dynamic address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from trnx.simulator.errors import IllegalInstructionError, OutOfBoundsError
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import MemoryRegion, Storage
from trnx.simulator.memory.views import Shape, form, is_row_major

if TYPE_CHECKING:
    from trnx.simulator.language.tensor import NkiTensor


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


# First byte, end byte, first partition, partitions; bytes count within a partition on chip.
Span = tuple[int, int, int, int]


class _Nowhere:
    """The storage of a view of what does not exist: the first use of the view is the finding."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        raise OutOfBoundsError("out-of-bounds", self._message, kernel_location())


def nowhere_of(message: str) -> Storage:
    """In place of the storage of a view that may be made but not used."""
    return cast(Storage, _Nowhere(message))


class TensorView:
    """The elements of an `NkiTensor` in memory; `NkiTensor` adds what makes other views of it."""

    __slots__ = (
        "_key",
        "_span",
        "_view",
        "dtype",
        "form",
        "form_number",
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
        self._span: Span | None = None
        self.form = form(shape, strides)
        # Its row in the instruction table, once it has one, and its number in `isa.templates`.
        self.row: tuple[int, ...] | None = None
        self.form_number = 0

    @property
    def buffer(self) -> MemoryRegion:
        """Where it lives, as a kernel sees it; see `Storage.region`."""
        return self.storage.region

    @property
    def has_column_index(self) -> bool:
        """True for a view by `.indirect()`, tensor indirection."""
        return self.indirection is not None and self.indirection.base is not None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.form.size

    @property
    def free_size(self) -> int:
        """Elements per partition."""
        return self.form.free_size

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

    def span(self) -> Span:
        """Where it lies, indirection apart."""
        span = self._span
        if span is None:
            size, form = self.dtype.itemsize, self.form
            if self.storage.is_on_chip:
                first, column = divmod(self.offset, self.pitch)
                end = column + form.free_reach + 1
                span = (column * size, end * size, first, self.shape[0])
            else:
                span = (self.offset * size, (self.offset + form.reach + 1) * size, 0, 1)
            self._span = span
        return span

    @property
    def is_placed(self) -> bool:
        """True for a tensor on chip whose address the kernel chose."""
        return self.storage.place is not None

    def byte_range(self) -> Span:
        """Where it may reach: in HBM all that there is from its first element on, if values, which
        are never negative, decide that."""
        span = self.span()
        if self.indirection is None:
            return span
        if self.is_on_chip:
            return 0, self.pitch * self.dtype.itemsize, span[2], span[3]
        return span[0], self.storage.nbytes, 0, 1

    def region_key(self) -> tuple[Any, ...]:
        """Equal for views of the same elements in the same order."""
        key = self._key
        if key is None:
            key = self._key = (self.offset, self.shape, self.strides, self.dtype.itemsize)
        return key

    def same_elements(self, other: TensorView) -> bool:
        """True where both views walk the same locations in the same order."""
        return self.storage is other.storage and self.region_key() == other.region_key()

    def torch_view(self) -> torch.Tensor:
        """The strided torch view of its elements, as stored."""
        if self._view is None:
            self._view = self.storage.view(self.dtype, self.shape, self.strides, self.offset)
        return self._view

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

    def describe(self) -> str:
        """For messages: name, shape, dtype and place."""
        name = self.name or self.storage.name
        return (
            f"{name + ' ' if name else ''}{self.shape} {self.dtype} in {self.storage.buffer.value}"
        )

    def __repr__(self) -> str:
        return f"NkiTensor({self.describe()}, strides={self.strides}, offset={self.offset})"

    def _fail(self, message: str) -> NoReturn:
        raise IllegalInstructionError("view", f"{message} ({self.describe()})", kernel_location())

    def _out_of_bounds(self, message: str) -> NoReturn:
        raise OutOfBoundsError("out-of-bounds", f"{message} ({self.describe()})", kernel_location())


def has_overlap(a: TensorView, b: TensorView) -> bool:
    """True where two views of one storage may share a location (never misses one)."""
    low_a, high_a, start_a, count_a = a.byte_range()
    low_b, high_b, start_b, count_b = b.byte_range()
    return (
        low_a < high_b
        and low_b < high_a
        and start_a < start_b + count_b
        and start_b < start_a + count_a
    )
