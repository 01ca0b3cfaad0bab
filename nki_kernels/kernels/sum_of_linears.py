"""`sum_of_linears`: three products, added up with what is added to them: the gradient of the input
of query, key and value.

`x @ weight.T + x_1 @ weight_1.T + x_2 @ weight_2.T (+ residual)`: x, x_1 and x_2 `[..., K]`, each
with a K of its own, weights `[N, K]`, residual `[..., N]`; the first two K are multiples of 128.
TensorE adds all up in PSUM, as one product with a deeper K: one rounding, and one launch. float32,
bfloat16 or float16, one dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    ROWS,
    block_sizes,
    leading_dims_merge,
    operand_layout,
    part_sizes,
    shares_rows,
)
from trnx.nki_kernels.kernels._matmul import Blocks, own_part, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand, segments_of
from trnx.nki_kernels.kernels._projections import WEIGHTS
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_INPUTS = ("x", "x_1", "x_2")


@nki.jit
def sum_of_linears_kernel(
    x: nl.NkiTensor,
    x_1: nl.NkiTensor,
    x_2: nl.NkiTensor,
    weight: nl.NkiTensor,
    weight_1: nl.NkiTensor,
    weight_2: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    x_layouts: tuple[str, ...],
    x_merged: tuple[bool, ...],
    layouts: tuple[str, ...],
    block_rows: int,
    block_columns: int,
    block_depth: int,
    keep: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x, x_1, x_2 `[..., K]`, weights `[N, K]`, residual `[..., N]` -> `[..., N]`; `cores` share
    rows or columns."""
    columns = weight.shape[0]
    rows = x.size // x.shape[-1]
    out = nl.ndarray(x.shape[:-1] + (columns,), dtype=x.dtype, buffer=nl.shared_hbm)
    data = MatmulOperand(segments_of(x_2, x_merged[2]), x_layouts[2])
    data = MatmulOperand(segments_of(x_1, x_merged[1]), x_layouts[1], data)
    data = MatmulOperand(segments_of(x, x_merged[0]), x_layouts[0], data)
    weights = MatmulOperand([weight_2], layouts[2])
    weights = MatmulOperand([weight_1], layouts[1], weights)
    weights = MatmulOperand([weight], layouts[0], weights)
    if residual is not None:
        residual = residual.reshape((rows, columns))
    product(
        out.reshape((rows, columns)),
        data,
        weights,
        Blocks(block_rows, block_columns, block_depth, keep),
        Epilogue(None, residual, "none"),
        own_part(rows, columns, cores),
        [],
    )
    return out


def _pairs(b: Bindings) -> list[tuple[Any, Any]]:
    """Each input with its weight."""
    return [(b[x], b[w]) for x, w in zip(_INPUTS, WEIGHTS, strict=True)]


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, fitting sizes, whole chunks of K, and loads that need no TensorE."""
    if reject := reject_dtypes(b, "x"):
        return reject
    columns = b.weight.shape[0]
    for x, weight in _pairs(b):
        if (x.dtype, weight.dtype) != (b.x.dtype, b.x.dtype):
            return Reject(f"x is {x.dtype} and weight {weight.dtype}, not {b.x.dtype}")
        if x.ndim < 1 or weight.ndim != 2 or x.numel == 0 or weight.numel == 0:
            return Reject(f"x{x.shape} and weight{weight.shape} have no product")
        if x.shape[:-1] != b.x.shape[:-1] or weight.shape != (columns, x.shape[-1]):
            return Reject(f"x{x.shape} and weight{weight.shape} do not fit {columns} columns")
        if ROWS in (operand_layout(x, hw), operand_layout(weight, hw)):
            return Reject("TensorE would have to transpose an operand")
    if any(x.shape[-1] % hw.partitions for x, _ in _pairs(b)[:2]):
        return Reject(f"K of x{b.x.shape} or x_1{b.x_1.shape} is no multiple of {hw.partitions}")
    residual = b.residual
    if residual is not None and residual.dtype != b.x.dtype:
        return Reject(f"residual is {residual.dtype}, not {b.x.dtype}")
    if residual is not None and residual.shape != (*b.x.shape[:-1], columns):
        return Reject(f"residual{residual.shape} is not the rows of x and {columns} columns")
    if _blocks(b, hw)[2] < _depth(b):
        return Reject(f"K of {_depth(b)} in all does not fit in SBUF as a whole")
    return None


def _depth(b: Bindings) -> int:
    return sum(x.shape[-1] for x, _ in _pairs(b))


def _blocks(b: Bindings, hw: Hardware) -> tuple[int, int, int, bool]:
    rows, columns = b.x.numel // b.x.shape[-1], b.weight.shape[0]
    part = part_sizes(rows, columns, hw.cores, shares_rows(rows, columns))
    return block_sizes(*part, _depth(b), b.x.dtype.itemsize, hw)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides allow, and the block sizes of the product."""
    given = (
        tuple(operand_layout(x, hw) for x, _ in _pairs(b)),
        tuple(leading_dims_merge(x) for x, _ in _pairs(b)),
        tuple(operand_layout(w, hw) for _, w in _pairs(b)),
    )
    names = (*_INPUTS, *WEIGHTS, "residual")
    return Launch.of(sum_of_linears_kernel, b, names, *given, *_blocks(b, hw))


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; every operand crosses HBM once."""
    rows, columns = b.x.numel // max(b.x.shape[-1], 1), b.weight.shape[0]
    tensors = [t for pair in _pairs(b) for t in pair] + [b.residual]
    return Cost(
        matmul_flops=2 * rows * columns * _depth(b),
        vector_flops=rows * columns,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None)
        + rows * columns * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    x_1: torch.Tensor,
    x_2: torch.Tensor,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """The same in float32, rounded once."""
    pairs = ((x, weight), (x_1, weight_1), (x_2, weight_2))
    products = [F.linear(one.float(), w.float()) for one, w in pairs]
    total = products[0] + products[1] + products[2]
    return (total if residual is None else total + residual.float()).to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged rows, columns and last K, both layouts of weights, several blocks."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        depths: tuple[int, int, int],
        columns: int,
        dtype: torch.dtype = torch.float32,
        turned: bool = True,
        residual: bool = True,
    ) -> Sample:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        def turn(matrix: torch.Tensor) -> torch.Tensor:
            return matrix.mT.contiguous().mT if turned else matrix

        values: dict[str, torch.Tensor | None] = {}
        for x, w, depth in zip(_INPUTS, WEIGHTS, depths, strict=True):
            drawn = draw(*rows, depth)
            # With K outermost, as a DMA of any generation takes it without a transpose.
            values[x] = turn(drawn.reshape(-1, depth)) if len(rows) == 1 else drawn
            values[w] = turn(draw(columns, depth) / math.sqrt(sum(depths)))
        values["residual"] = draw(*rows, columns) if residual else None
        return Sample(values, note)

    for rows in (1, 127, 128, 129, 300):
        yield sample(f"{rows} rows", (rows,), (128, 256, 70), 66)
    for depth in (1, 129, 700):
        yield sample(f"last K = {depth}", (260,), (128, 128, depth), 70, turned=depth != 129)
    for columns in (1, 513, 1100):
        yield sample(f"{columns} columns", (2, 130), (128, 256, 128), columns, residual=False)
    yield sample("more rows than a block", (700,), (128, 128, 128), 40)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (3, 100), (256, 128, 128), 130, dtype)
        yield sample(f"{dtype}, many rows", (400,), (128, 384, 256), 260, dtype, turned=False)


def _sum(
    x: torch.Tensor,
    x_1: torch.Tensor,
    x_2: torch.Tensor,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
) -> Any:
    two = aten.add.Tensor(
        aten.linear.default(x, weight, None), aten.linear.default(x_1, weight_1, None)
    )
    return aten.add.Tensor(two, aten.linear.default(x_2, weight_2, None))


def _sum_with_residual(
    x: torch.Tensor,
    x_1: torch.Tensor,
    x_2: torch.Tensor,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    residual: torch.Tensor,
) -> Any:
    one = aten.add.Tensor(residual, aten.linear.default(x, weight, None))
    two = aten.add.Tensor(one, aten.linear.default(x_1, weight_1, None))
    return aten.add.Tensor(two, aten.linear.default(x_2, weight_2, None))


register(
    KernelSpec(
        name="sum_of_linears",
        patterns=(Pattern(_sum_with_residual), Pattern(_sum, {"residual": None})),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=sum_of_linears_kernel,
        launch=launch,
        strided=frozenset({*_INPUTS, *WEIGHTS}),
        fuses=True,
    )
)
