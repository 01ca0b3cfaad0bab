"""`tensor[key]`: NumPy-style slicing and selection with NKI's rules.

On chip, an integer on dimension 0 keeps it with size 1, and the result has at least two dimensions;
in HBM an integer removes its dimension, and the result has at least one. The stop of a slice is
clamped as NumPy does (`clipped-slice` tells of it, on request); a start out of range is out of
bounds. An empty slice may be made, but not used (cross_entropy of nki-library's experimental/loss
makes one for a program without positions). An index or the start of `nl.ds` may be a register or a
tensor: the view is then indirect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from trnx.simulator.errors import IllegalInstructionError, OutOfBoundsError, shortened
from trnx.simulator.findings import CLIPPED_SLICE
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.recorder import current_or_none
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor_view import Indirect, TensorView, nowhere_of

if TYPE_CHECKING:
    from trnx.simulator.language.tensor import NkiTensor


@dataclass(frozen=True)
class DynamicSlice:
    """`nl.ds(start, size)`: `size` elements from `start`, which may be a register."""

    start: Any
    size: int


def index_view(tensor: NkiTensor, key: Any) -> NkiTensor:
    """The view `tensor[key]`."""
    view = _plain_view(tensor, key if type(key) is tuple else (key,))
    return _any_view(tensor, key) if view is None else view


def _plain_view(tensor: NkiTensor, items: tuple[Any, ...]) -> NkiTensor | None:
    """The view by integers and by slices that lie within their dimensions, which nearly every key
    of a kernel is, without a call per dimension; None for any other key.
    """
    storage, is_on_chip = tensor.storage, tensor.storage.is_on_chip
    if tensor.indirection is not None or len(items) > len(tensor.shape):
        return None
    offset = tensor.offset
    shape: list[int] = []
    strides: list[int] = []
    for item, size, stride in zip(items, tensor.shape, tensor.strides, strict=False):
        kind = type(item)
        if kind is slice and item.step is None:
            start, stop = item.start, item.stop
            if start is None:
                start = 0
            if stop is None:
                stop = size
        elif kind is int:
            if not 0 <= item < size:
                return None
            offset += item * stride
            if is_on_chip and not shape:
                shape.append(1)
                strides.append(stride)
            continue
        elif kind is DynamicSlice:
            start = item.start
            stop = start + item.size if type(start) is int else None
        else:
            return None
        if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= size:
            return None
        offset += start * stride
        shape.append(stop - start)
        strides.append(stride)
    if len(items) < len(tensor.shape):
        shape += tensor.shape[len(items) :]
        strides += tensor.strides[len(items) :]
    while len(shape) < (2 if is_on_chip else 1):
        shape.append(1)
        strides.append(1)
    return type(tensor)(storage, tensor.dtype, tuple(shape), tuple(strides), offset, tensor.name)


def _any_view(tensor: NkiTensor, key: Any) -> NkiTensor:
    """The view by any key, or the finding that it is none."""
    shape: list[int] = []
    strides: list[int] = []
    offset = tensor.offset
    indirection = tensor.indirection
    storage = tensor.storage
    is_on_chip = storage.is_on_chip
    for dim, item in enumerate(_expand(tensor, key)):
        size, stride = tensor.shape[dim], tensor.strides[dim]
        start, count, step, keep = _bounds(tensor, dim, item)
        if indirection is tensor.indirection and indirection is not None:
            _guard(tensor, dim, item)
        if not isinstance(start, int):
            if indirection is not None:
                _illegal(tensor, "an indirect view cannot be made indirect again")
            # The whole slice stays within the dimension.
            indirection = Indirect(start, False, stride, size - count + 1, dim)
            start = 0
        if count == 0:
            storage = nowhere_of(f"slice {item} of dimension {dim} is empty ({tensor.describe()})")
        offset += start * stride
        if keep or (dim == 0 and is_on_chip):
            shape.append(count)
            strides.append(stride * step)
    while len(shape) < (2 if is_on_chip else 1):
        shape.append(1)
        strides.append(1)
    return type(tensor)(
        storage, tensor.dtype, tuple(shape), tuple(strides), offset, tensor.name, indirection
    )


def _guard(tensor: NkiTensor, dim: int, item: Any) -> None:
    """Dimension 0 of a vector-indirect view must be taken as a whole."""
    indirect = tensor.indirection
    if indirect is None or not indirect.is_vector or dim != 0:
        return
    if item != slice(None):
        _illegal(tensor, "dimension 0 takes part in the indirection and cannot be sliced")


def _expand(tensor: NkiTensor, key: Any) -> list[Any]:
    """One item per dimension: the Ellipsis replaced, missing ones added."""
    items = list(key) if isinstance(key, tuple) else [key]
    if len(items) == tensor.ndim and Ellipsis not in items:
        return items
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        _illegal(tensor, "an index has at most one Ellipsis")
    given = len(items) - len(dots)
    if given > tensor.ndim:
        _illegal(tensor, f"{given} indices for {tensor.ndim} dimensions")
    fill = [slice(None)] * (tensor.ndim - given)
    at = dots[0] if dots else len(items)
    return items[:at] + fill + items[at + 1 :]


def _bounds(tensor: NkiTensor, dim: int, item: Any) -> tuple[Any, int, int, bool]:
    """(start, count, step, keep the dimension) of one index item."""
    size = tensor.shape[dim]
    if isinstance(item, DynamicSlice):
        if not isinstance(item.start, int):
            return item.start, item.size, 1, True
        item = slice(item.start, item.start + item.size)
        if item.stop > size:
            _outside(tensor, dim, item)
    if isinstance(item, slice):
        return _slice_bounds(tensor, dim, item)
    if isinstance(item, (TensorView, VirtualRegister)):
        return item, 1, 1, False
    if isinstance(item, int) or hasattr(item, "__index__"):
        start = item.__index__()
        start = start + size if start < 0 else start
        if not 0 <= start < size:
            _outside(tensor, dim, item)
        return start, 1, 1, False
    return _illegal(
        tensor, f"an index must be an integer, a slice, nl.ds or ..., not {shortened(item)}"
    )


def _slice_bounds(tensor: NkiTensor, dim: int, item: slice) -> tuple[int, int, int, bool]:
    size = tensor.shape[dim]
    try:
        if item.step is not None and item.step < 1:
            _illegal(tensor, f"the step {item.step} of a slice must be positive")
        start, stop, step = item.indices(size)
    except TypeError:
        _illegal(tensor, f"the parts of {item} must be integers")
    if start >= stop:
        if (item.start or 0) > size or (item.stop is None or item.stop > size):
            _outside(tensor, dim, item)
        return start, 0, step, True
    if item.stop is not None and item.stop > size:
        _report_clipped(tensor, dim, item)
    return start, -(-(stop - start) // step), step, True


def _report_clipped(tensor: NkiTensor, dim: int, item: slice) -> None:
    recorder = current_or_none()
    if recorder is not None:
        recorder.findings.report(
            OutOfBoundsError(
                CLIPPED_SLICE,
                f"the slice {item.start or 0}:{item.stop} of dimension {dim}, of size "
                f"{tensor.shape[dim]}, ends behind it and is shorter than written "
                f"({tensor.describe()})",
                kernel_location(),
            )
        )


def _illegal(tensor: NkiTensor, message: str) -> NoReturn:
    raise IllegalInstructionError("view", f"{message} ({tensor.describe()})", kernel_location())


def _outside(tensor: NkiTensor, dim: int, item: Any) -> NoReturn:
    raise OutOfBoundsError(
        "out-of-bounds",
        f"index {item} of dimension {dim}, of size {tensor.shape[dim]} ({tensor.describe()})",
        kernel_location(),
    )
