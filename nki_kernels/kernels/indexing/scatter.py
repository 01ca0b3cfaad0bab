"""`scatter`: values, or one number, at the indices of a tensor along one dimension; `scatter_add`
and `scatter_reduce` (sum, prod, amax, amin; with the base) combine them with what is there.

Without a reduction, of values for one element the last along the dimension is written in short
lines, as in eager; else the device may write another of them. Reductions are those of float32,
bfloat16 or float16, in float32. Indices are int32 or int64, from 0 to the size of the dimension;
another one is an error, as in eager. A number, and reductions other than sums, need lines that fit
into a partition with few indices each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels.indexing._lanes import Lanes, lanes_constants
from trnx.nki_kernels.kernels.indexing._launch import launch_scatter, transfer_nanoseconds
from trnx.nki_kernels.kernels.indexing._scatter_lanes import scatter_lanes_kernel, scatter_lanes_of
from trnx.nki_kernels.kernels.indexing._terms import (
    axes_along,
    reject_index,
    reject_sums,
    reject_values,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

# Each reduction's operator, and the value that changes nothing under it.
_COMBINE = {
    "sum": (nl.add, 0.0),
    "prod": (nl.multiply, 1.0),
    "amax": (nl.maximum, float("-inf")),
    "amin": (nl.minimum, float("inf")),
}
_LANES = 128
_MOST_WRITES = 4096  # instructions of a program are two or three for each
# Cycles of VectorE for an element and to begin an instruction, in ns; the instructions for an index
# and a transfer of 128 rows that are added, in transfers of a gather.
_ELEMENT, _BEGIN = 1.04, 76.0
_INSTRUCTIONS, _ADDING = 3, 4


def reference(
    base: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    values: torch.Tensor | None,
    number: float | None,
    reduce: str,
) -> torch.Tensor:
    """torch.scatter or torch.scatter_reduce"""
    if number is not None:
        return torch.scatter(base, dim, index, number)
    assert values is not None
    if reduce:
        return torch.scatter_reduce(base, dim, index, values, reduce)
    return torch.scatter(base, dim, index, values)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    names = ("base",) if b["values"] is None else ("base", "values")
    if reject := reject_values(b, *names):
        return reject
    if b.base.ndim == 0 or b.index.ndim != b.base.ndim:
        return Reject(f"base{b.base.shape} or index{b.index.shape} has no dimensions")
    if b.index.numel == 0:
        return Reject(f"index{b.index.shape} has no elements")
    if reject := reject_index("index", b.index, b.base.shape[b.dim]):
        return reject
    if b.number is not None and not _is_written_exactly(b.number, b.base.dtype):
        return Reject(f"instructions take numbers in float32, which does not have {b.number}")
    if b["values"] is not None and b.base.dtype is not b["values"].dtype:
        return Reject(f"base is {b.base.dtype}, values {b['values'].dtype}")
    return _reject_reduction(b)


def _is_written_exactly(number: float, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point:
        return True  # rounded as eager rounds it, or to float32, whose bits the base has
    return torch.tensor(number, dtype=torch.float32).item() == number


def _reject_reduction(b: Bindings) -> Reject | None:
    if b.reduce and b.reduce not in _COMBINE:
        return Reject(f"the reduction {b.reduce}; the kernel has {', '.join(_COMBINE)}")
    if b.reduce and (reject := reject_dtypes(b, "base")):
        return reject
    if _in_lanes(b) is not None:
        return None
    if b["values"] is None or b.reduce not in ("", "sum"):
        what = b.reduce or "a number"
        return Reject(f"{what} at index{b.index.shape} in lines of base{b.base.shape} too long")
    return reject_sums("base", b.base.numel) if b.reduce else None


def _in_lanes(b: Bindings) -> Lanes | None:
    """The lanes, where a program of moderate length writes all of them."""
    lanes = scatter_lanes_of(b.base, b.dim % b.base.ndim, b.index, b["values"])
    return lanes if lanes is not None and _writes(lanes) <= _MOST_WRITES else None


def _writes(lanes: Lanes) -> int:
    tiles = len(lanes.offsets) * -(-lanes.total // (_LANES * lanes.fold))
    return tiles * lanes.chosen


def _is_faster(lanes: Lanes, b: Bindings) -> bool:
    each = lanes.fold * lanes.extent * lanes.inner * _ELEMENT + _BEGIN
    rows = transfer_nanoseconds(b.index.numel) * (_ADDING if b.reduce else 1)
    return _writes(lanes) * _INSTRUCTIONS * each < rows


def launch(b: Bindings, hw: Hardware) -> Launch:
    """In lanes, or by a transfer for every 128 rows, whichever takes less time."""
    dim, shape = b.dim % b.base.ndim, b.base.shape
    lanes = _in_lanes(b)
    needs_lanes = b["values"] is None or b.reduce not in ("", "sum")
    if lanes is not None and (needs_lanes or _is_faster(lanes, b)):
        _, *constants = lanes_constants(lanes, b.base, b.index)
        others = [n for d, n in enumerate(b.index.shape) if d != dim]
        is_whole = others == [n for d, n in enumerate(shape) if d != dim]
        own = (_COMBINE.get(b.reduce), b.number, is_whole)
        tensors = (b.base, b.index, b["values"])
        names = ("base", "index", "values")
        used = names if b["values"] is not None else names[:2]
        return Launch(scatter_lanes_kernel, (shape, *constants, *own, *tensors), used)
    axes, index = axes_along(b.base, dim, b.index)
    return launch_scatter(b, hw, shape, ("index",), axes, [index], adds=bool(b.reduce))


def cost(b: Bindings) -> Cost:
    """The base is read and written, and index and values are read."""
    given = 0 if b["values"] is None else b.index.numel * b.base.dtype.itemsize
    return Cost(vector_flops=b.index.numel, hbm_bytes=2 * b.base.nbytes + b.index.nbytes + given)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension and op, long and short lines, equal indices, parts of the base, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int,
        *sizes: int,
        reduce: str = "",
        dtype: torch.dtype = torch.float32,
        index: torch.dtype = torch.int64,
        number: float | None = None,
    ) -> Sample:
        base = torch.randn(shape, generator=generator).mul(9).to(dtype)
        values = torch.randn(sizes, generator=generator).mul(9).to(dtype)
        given = {"base": base, "dim": dim, "reduce": reduce, "number": number}
        chosen = torch.rand((*sizes[:dim], *sizes[dim + 1 :], shape[dim]), generator=generator)
        if reduce:
            chosen = torch.randint(shape[dim], sizes, generator=generator)
        else:
            # Which of several values for one element is written is not promised.
            chosen = chosen.argsort(-1).movedim(-1, dim).narrow(dim, 0, sizes[dim])
        given["index"] = chosen.contiguous().to(index)
        given["values"] = values if number is None else None
        # Eager rounds every sum of half precision, up to this often.
        rounded = 0.0
        if reduce and dtype is not torch.float32:
            rounded = 64 * 30 * torch.finfo(dtype).eps
        return Sample(given, f"{reduce or 'put'} {note}", rounded)

    for reduce in ("", "sum"):
        for count in (1, 2, 127, 128, 129, 513):
            yield sample(f"{count} rows", (count, 24), 1, count, 7, reduce=reduce)
            yield sample(f"{count} columns", (9, count), 0, 7, count, reduce=reduce)
        yield sample("the middle", (4, 9, 70), 1, 4, 5, 70, reduce=reduce)
        yield sample("smaller than the base", (6, 50, 8, 9), 1, 5, 20, 7, 8, reduce=reduce)
        yield sample("a long line", (3, 40000), 1, 3, 300, reduce=reduce)
        yield sample("one dimension", (300,), 0, 200, reduce=reduce)
        yield sample("int32", (50, 24), 1, 50, 13, index=torch.int32, reduce=reduce)
        for dtype in (torch.bfloat16, torch.float16):
            yield sample(f"{dtype}", (50, 24), 1, 50, 13, dtype=dtype, reduce=reduce)
    for reduce in ("prod", "amax", "amin"):
        yield sample("rows", (130, 24), 1, 130, 7, reduce=reduce)
        yield sample("columns", (9, 70), 0, 7, 65, reduce=reduce)
    for dtype in (torch.int32, torch.int64, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (50, 24), 1, 50, 13, dtype=dtype)
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool):
        yield sample(f"a number into {dtype}", (300, 24), 1, 300, 4, dtype=dtype, number=1.0)


def _scatter(base: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor) -> Any:
    return aten.scatter.src(base, dim, index, values)


def _scatter_number(base: torch.Tensor, dim: int, index: torch.Tensor, number: float) -> Any:
    return aten.scatter.value(base, dim, index, number)


def _scatter_add(base: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor) -> Any:
    return aten.scatter_add.default(base, dim, index, values)


def _scatter_reduce(
    base: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor, reduce: str
) -> Any:
    return aten.scatter_reduce.two(base, dim, index, values, reduce, include_self=True)


register(
    KernelSpec(
        name="scatter",
        patterns=(
            Pattern(_scatter, {"number": None, "reduce": ""}),
            Pattern(_scatter_number, {"values": None, "reduce": ""}),
            Pattern(_scatter_add, {"number": None, "reduce": "sum"}),
            Pattern(_scatter_reduce, {"number": None}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=scatter_lanes_kernel,
        launch=launch,
        strided=frozenset({"index", "values"}),
    )
)
