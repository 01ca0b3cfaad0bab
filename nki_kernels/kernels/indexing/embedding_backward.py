"""`embedding_backward`: the gradient of an embedding's table: rows of the gradient added up where
their indices are equal.

Deterministic: 128 rows at a time, in their order, in float32, for gradients in float32, bfloat16 or
float16. Rows of `padding_idx` get nothing. Without `scale_grad_by_freq`. Indices are int32 or
int64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels.indexing._add_rows import add_rows_kernel
from trnx.nki_kernels.kernels.indexing._launch import launch_scatter
from trnx.nki_kernels.kernels.indexing._terms import (
    Axis,
    Index,
    reject_index,
    reject_values,
    words_of,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


def reference(
    values: torch.Tensor, index: torch.Tensor, rows: int, padding: int, base: None = None
) -> torch.Tensor:
    """The gradient `[rows, D]` of the table."""
    del base
    return torch.ops.aten.embedding_dense_backward.default(values, index, rows, padding, False)  # type: ignore[no-any-return]


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if reject := reject_dtypes(b, "values") or reject_values(b, "values"):
        return reject
    if b.rows < 1:
        return Reject("the table has no rows")
    return reject_index("index", b.index, b.rows)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The rows that are added."""
    width = b["values"].shape[-1]
    steps = zip(b.index.shape, b.index.strides, strict=True)
    axes = [*(Axis(n, 0, (step,)) for n, step in steps), Axis(width, 1, (0,))]
    index = Index(0, words_of(b.index.dtype), b.rows, width, wraps=False)
    skipped = b.padding if 0 <= b.padding < b.rows else -1
    shape = (b.rows, width)
    return launch_scatter(b, hw, shape, ("index",), axes, [index], adds=True, skipped=skipped)


def cost(b: Bindings) -> Cost:
    """The table is written; rows are read, and what they are added to, and written."""
    table = b.rows * b["values"].shape[-1] * b["values"].dtype.itemsize
    return Cost(hbm_bytes=table + b.index.nbytes + 3 * b["values"].nbytes)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of the number of indices, duplicates, padding, wide rows, dtypes."""

    def sample(
        note: str,
        *shape: int,
        rows: int = 50,
        width: int = 24,
        padding: int = -1,
        dtype: torch.dtype = torch.float32,
        index: torch.dtype = torch.int64,
    ) -> Sample:
        values = torch.randn((*shape, width), generator=generator).to(dtype)
        chosen = torch.randint(rows, shape, generator=generator).to(index)
        given = {"values": values, "index": chosen, "rows": rows, "padding": padding}
        # Eager rounds every sum of half precision, up to this often.
        rounded = 0.0 if dtype is torch.float32 else 64 * 8 * torch.finfo(dtype).eps
        return Sample({**given, "base": None}, note, rounded)

    for count in (1, 2, 127, 128, 129, 513):
        yield sample(f"{count} indices", count)
    yield sample("a batch", 3, 100, padding=7)
    yield sample("int32", 3, 100, index=torch.int32)
    yield sample("no dimensions")
    yield sample("wide rows", 130, rows=20, width=5000)
    yield sample("one row, one column", 5, rows=1, width=1)
    yield sample("padding alone", 5, rows=1, padding=0)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 300, dtype=dtype, padding=0)


def _embedding_backward(values: torch.Tensor, index: torch.Tensor, rows: int, padding: int) -> Any:
    return aten.embedding_dense_backward.default(values, index, rows, padding, False)


register(
    KernelSpec(
        name="embedding_backward",
        patterns=(Pattern(_embedding_backward, {"base": None}),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=add_rows_kernel,
        launch=launch,
        strided=frozenset({"index", "values"}),
    )
)
