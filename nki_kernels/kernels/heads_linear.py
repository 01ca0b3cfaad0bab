"""`heads_linear`: heads that lie with their depth outermost, side by side as the rows of a product.

x `[..., H, 128]` in memory `[128][...][H]` or `[128][H][...]`, as attention leaves it that has the
depth of a head on the partitions; weight `[N, H * 128]`, bias `[N]` or None; up to 128 rows of one
dtype: float32, bfloat16 or float16. A head is one step of the contraction, so that nothing is
copied together or transposed: one DMA brings all heads in the order in which they lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    COLUMN_UNIT,
    leading_dims_merge,
    tile_columns,
    weight_layout,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand
from trnx.nki_kernels.kernels._streamed import product_of_rows
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

aten = torch.ops.aten
_MOST_ROWS = 128


@nki.jit
def heads_linear_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    shape: tuple[int, ...],
    heads_first: bool,
    layout: str,
    block_columns: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[..., H, 128]`, weight `[N, H * 128]`, bias `[N]` -> `shape[:-1] + (N,)`; `heads_first`:
    in memory the heads stand before the rows. `cores` share the columns.
    """
    columns = weight.shape[0]
    out = nl.ndarray(shape[:-1] + (columns,), dtype=x.dtype, buffer=nl.shared_hbm)
    heads = x.shape[-2]
    depth = x.shape[-1]
    rows = x.size // (heads * depth)
    part = share_of(columns, cores, COLUMN_UNIT)
    if part[0] < part[1]:
        by_head = x.reshape((rows, heads, depth))
        if heads_first:
            data = nl.ndarray((depth, heads, rows), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=data, src=by_head.permute((2, 1, 0)))
        else:
            tile = nl.ndarray((depth, rows, heads), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=by_head.permute((2, 0, 1)))
            data = tile.permute((0, 2, 1))
        product_of_rows(
            out.reshape((rows, columns)),
            data,
            MatmulOperand([weight], layout),
            block_columns,
            Epilogue(bias, None, "none"),
            part,
        )
    return out


def _is_heads_first(x: TensorSpec) -> bool | None:
    """Whether heads stand before rows within a depth; None where these are not dense."""
    heads = x.shape[-2]
    rows = x.numel // (heads * x.shape[-1])
    row_strides = [t for n, t in zip(x.shape[:-2], x.strides[:-2], strict=True) if n != 1]
    row_stride = row_strides[-1] if row_strides else None
    head_stride = x.strides[-2] if heads > 1 else None
    if x.strides[-1] != rows * heads:
        return None
    if row_stride in (None, heads) and head_stride in (None, 1):
        return False
    return True if row_stride == 1 and head_stride in (None, rows) else None


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Heads of 128 with their depth outermost, up to 128 rows, one dtype."""
    if reject := reject_dtypes(b, "x"):
        return reject
    for spec in (b.weight, b.bias):
        if spec is not None and spec.dtype != b.x.dtype:
            return Reject(f"a weight is {spec.dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.x.ndim < 3 or b.weight.ndim != 2 or b.x.numel == 0 or b.weight.numel == 0:
        return Reject(f"x{b.x.shape} has no rows of heads, or weight{b.weight.shape} is no matrix")
    heads, depth = b.x.shape[-2:]
    if depth != hw.partitions:
        return Reject(f"heads of {depth}; a head has {hw.partitions} elements")
    if b.shape[-1] != heads * depth or b.weight.shape[1] != heads * depth:
        return Reject(f"rows of {b.shape[-1]}, not of the {heads} heads of x")
    if b.bias is not None and b.bias.shape != (b.weight.shape[0],):
        return Reject(f"bias has shape {b.bias.shape}, not ({b.weight.shape[0]},)")
    lead = TensorSpec((*b.x.shape[:-2], 1), b.x.dtype, (*b.x.strides[:-2], 1))
    if not leading_dims_merge(lead) or _is_heads_first(b.x) is None:
        return Reject(f"x{b.x.shape} with strides {b.x.strides} is not dense within a depth")
    rows = b.x.numel // (heads * depth)
    if rows > _MOST_ROWS:
        return Reject(f"{rows} rows; a product of {_MOST_ROWS} at most is one tile")
    if b.x.nbytes // depth > hw.sbuf_partition_bytes // 4:
        return Reject(f"{heads} heads leave no room in SBUF for weights")
    if not _columns(b, hw):
        return Reject(f"128 rows of a weight with K = {heads * depth} do not fit in SBUF")
    return None


def _columns(b: Bindings, hw: Hardware) -> int:
    rows = b.x.numel // b.shape[-1]
    return tile_columns(rows, b.weight.shape[0], b.shape[-1], b.x.dtype.itemsize, hw)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The order of rows and heads, the layout of the weight, and the blocks of columns."""
    layout = weight_layout(b.x.numel // b.shape[-1], b.weight, hw)
    how = (tuple(b.shape), _is_heads_first(b.x), layout, _columns(b, hw))
    return Launch.of(heads_linear_kernel, b, ("x", "weight", "bias"), *how)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; all operands cross HBM once."""
    rows, columns = b.x.numel // max(b.shape[-1], 1), b.weight.shape[0]
    tensors = (b.x, b.weight, b.bias)
    return Cost(
        matmul_flops=2 * b.x.numel * columns,
        vector_flops=rows * columns,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None)
        + rows * columns * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The product of the rows in float32, rounded once."""
    added = None if bias is None else bias.float()
    return F.linear(x.reshape(shape).float(), weight.float(), added).to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Rows, heads and columns at their edges, both orders of rows and heads, several leading
    dimensions."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        heads: int,
        columns: int,
        dtype: torch.dtype = torch.float32,
        heads_first: bool = False,
        bias: bool = False,
        turned: bool = False,
    ) -> Sample:
        lead = len(rows)
        if heads_first:
            x = torch.randn(128, heads, *rows, generator=generator)
            x = x.permute(*range(2, 2 + lead), 1, 0)
        else:
            x = torch.randn(128, *rows, heads, generator=generator).permute(*range(1, 2 + lead), 0)
        weight = torch.randn(columns, heads * 128, generator=generator) / math.sqrt(heads * 128)
        weight = weight.mT.contiguous().mT if turned else weight
        added = torch.randn(columns, generator=generator).to(dtype) if bias else None
        values = {"x": x.to(dtype), "shape": [*rows, heads * 128], "bias": added}
        return Sample({**values, "weight": weight.to(dtype)}, note)

    for rows in (1, 2, 127, 128):
        yield sample(f"{rows} rows", (rows,), 3, 66)
        yield sample(f"{rows} rows, heads first", (rows,), 3, 66, heads_first=True)
    for heads in (1, 2, 9):
        yield sample(f"{heads} heads", (5, 1), heads, 70, bias=True)
        yield sample(f"{heads} heads first", (5, 1), heads, 70, heads_first=True, turned=True)
    for columns in (1, 127, 129, 513):
        yield sample(f"N = {columns}", (2, 3), 2, columns, turned=True)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (4, 1), 8, 300, dtype=dtype, turned=True, bias=True)
        yield sample(f"{dtype}, heads first", (4, 2), 4, 140, dtype=dtype, heads_first=True)


def _pattern(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor, bias: torch.Tensor | None
) -> Any:
    rows = aten.view.default(aten.clone.default(x, memory_format=torch.contiguous_format), shape)
    return aten.linear.default(rows, weight, bias)


register(
    KernelSpec(
        name="heads_linear",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=heads_linear_kernel,
        launch=launch,
        strided=frozenset({"x", "weight"}),
        fuses=True,
    )
)
