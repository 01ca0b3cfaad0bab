"""`index_select`: slices of x at the indices of one tensor along one dimension.

Indices are int32 or int64, from 0 to the size of the dimension; another one is an error, as in
eager. x: floats, integers and bools, whose bytes are copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.kernels._copies import meta
from trnx.nki_kernels.kernels.indexing._gather_kernels import gather_rows_kernel
from trnx.nki_kernels.kernels.indexing._launch import launch_gather
from trnx.nki_kernels.kernels.indexing._terms import (
    axes_of_dim,
    reject_index,
    reject_values,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


def reference(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """torch.index_select"""
    return torch.index_select(x, dim, index)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if b.x.ndim == 0:
        return Reject("x has no dimensions")
    if reject := reject_values(b, "x"):
        return reject
    if b.index.numel == 0:
        return Reject(f"index{b.index.shape} has no elements")
    return reject_index("index", b.index, b.x.shape[b.dim])


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The rows that are gathered."""
    del hw
    axes, index = axes_of_dim(b.x, b.dim, b.index)
    result = reference(meta(b.x), b.dim, meta(b.index))
    return launch_gather(b, "x", ("index",), axes, [index], result)


def cost(b: Bindings) -> Cost:
    """The index is read once, what it names is read and written."""
    moved = b.x.nbytes // b.x.shape[b.dim] * b.index.numel
    return Cost(hbm_bytes=b.index.nbytes + 2 * moved)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, many and few indices, strides, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int,
        count: int,
        dtype: torch.dtype = torch.float32,
        index: torch.dtype = torch.int64,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        chosen = torch.randint(shape[dim], (count,), generator=generator).to(index)
        return Sample({"x": x, "dim": dim, "index": chosen}, note)

    for count in (1, 2, 127, 128, 129, 513):
        yield sample(f"{count} rows", (50, 24), 0, count)
        yield sample(f"{count} columns", (5, 50), 1, count)
    yield sample("the middle", (4, 9, 70), 1, 130)
    yield sample("of one", (30, 1, 20), 1, 3)
    yield sample("one dimension", (300,), 0, 200)
    yield sample("int32", (50, 24), 0, 130, index=torch.int32)
    every = torch.arange(40) % 9
    x = torch.randn((9, 5), generator=generator)
    yield Sample({"x": x, "dim": 0, "index": every[::2]}, "every second index")
    for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (9, 50), 1, 30, dtype)


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    return aten.index_select.default(x, dim, index)


register(
    KernelSpec(
        name="index_select",
        patterns=(Pattern(_index_select),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=gather_rows_kernel,
        launch=launch,
        strided=frozenset({"index"}),
    )
)
