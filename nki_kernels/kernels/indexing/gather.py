"""`gather`: elements of x at the indices of a tensor along one dimension, `take_along_dim` too.

Indices are int32 or int64, from 0 to the size of the dimension; another one is an error, as in
eager. x: floats, integers and bools, whose bytes are copied as they are. GpSimd gathers inside of
partitions where a line of x fits into one; few elements of long lines are gathered by DMA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.kernels._copies import meta
from trnx.nki_kernels.kernels.indexing._lanes import (
    gather_lanes_kernel,
    gather_lanes_of,
    lanes_constants,
)
from trnx.nki_kernels.kernels.indexing._launch import launch_gather, transfer_nanoseconds
from trnx.nki_kernels.kernels.indexing._terms import (
    axes_along,
    reject_index,
    reject_values,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_BYTES = 370  # that DMA moves in a ns


def reference(x: torch.Tensor, dim: int, index: torch.Tensor, sparse_grad: bool) -> torch.Tensor:
    """torch.gather"""
    return torch.gather(x, dim, index, sparse_grad=sparse_grad)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if reject := reject_values(b, "x"):
        return reject
    if b.x.ndim == 0 or b.index.ndim != b.x.ndim:
        return Reject(f"x{b.x.shape} or index{b.index.shape} has no dimensions")
    if b.index.numel == 0:
        return Reject(f"index{b.index.shape} has no elements")
    return reject_index("index", b.index, b.x.shape[b.dim])


def launch(b: Bindings, hw: Hardware) -> Launch:
    """In lanes, or by a transfer for every 128 elements, whichever takes less time."""
    del hw
    x, dim = b.x, b.dim % b.x.ndim
    lanes = gather_lanes_of(x, dim, b.index)
    if lanes is not None and x.nbytes / _BYTES < transfer_nanoseconds(b.index.numel):
        constants = lanes_constants(lanes, x, b.index)
        return Launch(gather_lanes_kernel, (*constants, x, b.index), ("x", "index"))
    axes, index = axes_along(x, dim, b.index)
    result = reference(meta(x), dim, meta(b.index), b.sparse_grad)
    return launch_gather(b, "x", ("index",), axes, [index], result)


def cost(b: Bindings) -> Cost:
    """The index is read once, what it names is read and written."""
    return Cost(hbm_bytes=b.index.nbytes + 2 * b.index.numel * b.x.dtype.itemsize)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, long and short lines, an index smaller than x, strides, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int,
        *sizes: int,
        dtype: torch.dtype = torch.float32,
        index: torch.dtype = torch.int64,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        chosen = torch.randint(shape[dim], sizes, generator=generator).to(index)
        return Sample({"x": x, "dim": dim, "index": chosen, "sparse_grad": False}, note)

    for count in (1, 2, 127, 128, 129, 513):
        yield sample(f"{count} rows", (count, 24), 1, count, 7)
        yield sample(f"{count} columns", (9, count), 0, 7, count)
    yield sample("the middle", (4, 9, 70), 1, 4, 30, 70)
    yield sample("the middle of many", (300, 9, 7), 1, 300, 4, 7)
    yield sample("smaller than x", (6, 50, 8, 9), 1, 5, 20, 7, 8)
    yield sample("the last of four", (2, 3, 40, 30), -1, 2, 3, 40, 50)
    yield sample("one of a long line", (140, 40000), 1, 140, 1)
    yield sample("one dimension", (300,), 0, 200)
    yield sample("int32", (50, 24), 1, 50, 13, index=torch.int32)
    x, index = torch.randn(7, 5, 30, generator=generator), torch.arange(12).view(1, 1, 12) * 2
    given = {"dim": 2, "index": index.expand(7, 5, 12), "sparse_grad": False}
    yield Sample({"x": x, **given}, "an expanded index")
    for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (50, 24), 1, 50, 13, dtype=dtype)


def _gather(x: torch.Tensor, dim: int, index: torch.Tensor, sparse_grad: bool) -> Any:
    return aten.gather.default(x, dim, index, sparse_grad=sparse_grad)


register(
    KernelSpec(
        name="gather",
        patterns=(Pattern(_gather),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=gather_lanes_kernel,
        launch=launch,
        strided=frozenset({"index"}),
    )
)
