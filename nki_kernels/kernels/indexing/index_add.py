"""`index_add`: slices of values added to x at the indices of one tensor along one dimension.

The gradient of `index_select`. Sums are those of float32, of values in float32, bfloat16 or
float16; `alpha` is 1. Indices are int32 or int64, from 0 to the size of the dimension; another one
is an error, as in eager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels.indexing._add_rows import add_rows_kernel
from trnx.nki_kernels.kernels.indexing._launch import launch_scatter
from trnx.nki_kernels.kernels.indexing._terms import (
    axes_of_dim,
    reject_index,
    reject_sums,
    reject_values,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


def reference(
    base: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """torch.index_add"""
    return torch.index_add(base, dim, index, values)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if reject := reject_dtypes(b, "base", "values") or reject_values(b, "base", "values"):
        return reject
    if b.base.ndim == 0 or b["values"].ndim != b.base.ndim:
        return Reject(f"base{b.base.shape} and values{b['values'].shape}")
    if b.base.dtype is not b["values"].dtype:
        return Reject(f"base is {b.base.dtype}, values {b['values'].dtype}")
    extent = b.base.shape[b.dim]
    return reject_index("index", b.index, extent) or reject_sums("base", b.base.numel)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The rows that are added."""
    axes, index = axes_of_dim(b.base, b.dim, b.index)
    return launch_scatter(b, hw, b.base.shape, ("index",), axes, [index], adds=True)


def cost(b: Bindings) -> Cost:
    """The base is read and written; values are read, and what they add to, and written."""
    return Cost(hbm_bytes=2 * b.base.nbytes + b.index.nbytes + 3 * b["values"].nbytes)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, duplicates, strides, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int,
        count: int,
        dtype: torch.dtype = torch.float32,
        index: torch.dtype = torch.int64,
    ) -> Sample:
        base = torch.randn(shape, generator=generator).to(dtype)
        values = torch.randn((*shape[:dim], count, *shape[dim + 1 :]), generator=generator)
        chosen = torch.randint(shape[dim], (count,), generator=generator).to(index)
        given = {"base": base, "dim": dim, "index": chosen, "values": values.to(dtype)}
        # Eager rounds every sum of half precision, up to this often.
        rounded = 0.0 if dtype is torch.float32 else 64 * 8 * torch.finfo(dtype).eps
        return Sample(given, note, rounded)

    for count in (1, 2, 127, 128, 129, 300):
        yield sample(f"{count} rows", (50, 24), 0, count)
        yield sample(f"{count} columns", (5, 50), 1, count)
    yield sample("the middle", (4, 9, 70), 1, 30)
    yield sample("one dimension", (300,), 0, 200)
    for dtype in (torch.float32, torch.bfloat16):
        yield sample(f"wide rows, {dtype}", (9, 1500), 0, 300, dtype)
    special = sample("infinities and NaN", (50, 300), 0, 300)
    special.values["values"][3, 4], special.values["values"][200, 299] = float("inf"), float("nan")
    special.values["base"][7, 5] = float("-inf")
    yield special
    yield sample("int32", (50, 24), 0, 130, index=torch.int32)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (9, 50), 1, 30, dtype)


def _index_add(base: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor) -> Any:
    return aten.index_add.default(base, dim, index, values)


register(
    KernelSpec(
        name="index_add",
        patterns=(Pattern(_index_add),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=add_rows_kernel,
        launch=launch,
        strided=frozenset({"index", "values"}),
    )
)
