"""`three_linears`: three products of one input, such as query, key and value.

x `[..., K]`, weights `[N, K]`, biases `[N]` or None; float32, bfloat16 or float16, one dtype. x is
loaded once, as far as a core's rows of it fit in SBUF beside the weights, and one launch takes the
place of three: only the first product waits for loads, and only the last for stores. Sums are
float32, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import (
    STREAM,
    block_sizes,
    leading_dims_merge,
    operand_layout,
    part_sizes,
    shares_rows,
    stay_in_sbuf,
    weight_layout_beside,
)
from trnx.nki_kernels.kernels._matmul import Blocks, part_of, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand, segments_of
from trnx.nki_kernels.kernels._projections import (
    BIASES,
    WEIGHTS,
    biases_of,
    project,
    reject_projections,
    weights_of,
)
from trnx.nki_kernels.kernels._streamed import load_few_rows, stream_product
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


@nki.jit
def three_linears_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    weight_1: nl.NkiTensor,
    weight_2: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    bias_1: nl.NkiTensor | None,
    bias_2: nl.NkiTensor | None,
    x_layout: str,
    x_merged: bool,
    layouts: tuple[str, ...],
    block_rows: tuple[int, ...],
    block_columns: tuple[int, ...],
    block_depths: tuple[int, ...],
    keep: bool,
    by_rows: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """x `[..., K]`, weights `[N, K]`, biases `[N]` -> `[..., N]` for each weight; `cores` share the
    rows, or the columns of each weight.
    """
    weights = (weight, weight_1, weight_2)
    biases = (bias, bias_1, bias_2)
    rows = x.size // x.shape[-1]
    outs = []
    for one in weights:
        shape = x.shape[:-1] + (one.shape[0],)
        outs.append(nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm))
    operand = MatmulOperand(segments_of(x, x_merged), x_layout)
    kept = []  # type: list[Any]
    if layouts[0] == STREAM:
        _stream(outs, x.reshape((rows, x.shape[-1])), weights, biases, cores)
        return outs[0], outs[1], outs[2]
    for number in range(3):
        columns = weights[number].shape[0]
        product(
            outs[number].reshape((rows, columns)),
            operand,
            MatmulOperand([weights[number]], layouts[number]),
            Blocks(block_rows[number], block_columns[number], block_depths[number], keep),
            Epilogue(biases[number], None, "none"),
            part_of(rows, columns, by_rows, cores),
            kept,
        )
    return outs[0], outs[1], outs[2]


def _stream(
    outs: list[nl.NkiTensor],
    x: nl.NkiTensor,
    weights: tuple[nl.NkiTensor, ...],
    biases: tuple[nl.NkiTensor | None, ...],
    cores: int,
) -> None:
    """The products of few rows of one core."""
    if nl.program_id(0) >= cores:
        return
    data = load_few_rows(x)
    for number in range(3):
        columns = weights[number].shape[0]
        out = outs[number].reshape((x.shape[0], columns))
        then = Epilogue(biases[number], None, "none")
        stream_product(out, data, weights[number], then, (0, columns))


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Any sizes but zero; one dtype for all."""
    del hw
    return reject_dtypes(b, "x") or reject_projections(b)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides allow, and the block sizes of each product."""
    depth, itemsize = b.x.shape[-1], b.x.dtype.itemsize
    rows = b.x.numel // depth
    weights = weights_of(b)
    by_rows = shares_rows(rows, sum(w.shape[0] for w in weights))
    parts = [part_sizes(rows, w.shape[0], hw.cores, by_rows) for w in weights]
    blocks = [block_sizes(*part, depth, itemsize, hw) for part in parts]
    keep = stay_in_sbuf(parts[0][0], depth, itemsize, hw)
    layouts = tuple(weight_layout_beside(b.x, w, hw) for w in weights)
    if STREAM in layouts and layouts != (STREAM,) * 3:
        layouts = tuple(operand_layout(w, hw) for w in weights)
    sizes = (tuple(block[i] for block in blocks) for i in range(3))
    given = (operand_layout(b.x, hw), leading_dims_merge(b.x), layouts, *sizes, keep, by_rows)
    return Launch.of(three_linears_kernel, b, ("x", *WEIGHTS, *BIASES), *given)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; every operand crosses HBM once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    columns = sum(w.shape[0] for w in weights_of(b))
    tensors = (b.x, *weights_of(b), *biases_of(b))
    return Cost(
        matmul_flops=2 * b.x.numel * columns,
        vector_flops=rows * columns,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None)
        + rows * columns * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias: torch.Tensor | None,
    bias_1: torch.Tensor | None,
    bias_2: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """The same in float32, rounded once."""
    pairs = ((weight, bias), (weight_1, bias_1), (weight_2, bias_2))
    return tuple(project(x.float(), w, added).to(x.dtype) for w, added in pairs)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged rows, columns and K, both layouts, more columns than rows."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        depth: int,
        columns: tuple[int, int, int],
        dtype: torch.dtype = torch.float32,
        turned: bool = False,
        bias: bool = True,
    ) -> Sample:
        def matrix(count: int) -> torch.Tensor:
            w = (torch.randn(count, depth, generator=generator) / math.sqrt(depth)).to(dtype)
            return w.mT.contiguous().mT if turned else w

        x = torch.randn((*rows, depth), generator=generator).to(dtype)
        values: dict[str, torch.Tensor | None] = {"x": x}
        for count, w, added in zip(columns, WEIGHTS, BIASES, strict=True):
            values[w] = matrix(count)
            values[added] = torch.randn(count, generator=generator).to(dtype) if bias else None
        return Sample(values, note)

    for rows in (1, 127, 128, 129, 300):
        yield sample(f"{rows} rows", (rows,), 130, (66, 34, 34))
    for depth in (1, 2, 129, 700):
        yield sample(f"K = {depth}", (260,), depth, (70, 70, 70), bias=depth > 1)
    yield sample("one column", (2, 130), 64, (1, 2, 513))
    yield sample("more columns than rows", (2, 150), 200, (1100, 260, 130))
    yield sample("more rows than a block", (700,), 100, (40, 600, 40), turned=True)
    yield sample("one dimension", (), 96, (64, 32, 1))
    yield sample("deep K", (130,), 8200, (20, 5, 5), bias=False)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (3, 100), 300, (140, 130, 66), dtype=dtype)
        yield sample(f"{dtype}, weights [K, N]", (400,), 260, (70, 140, 70), dtype, turned=True)


def _three(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias: torch.Tensor | None,
    bias_1: torch.Tensor | None,
    bias_2: torch.Tensor | None,
) -> Any:
    return (
        aten.linear.default(x, weight, bias),
        aten.linear.default(x, weight_1, bias_1),
        aten.linear.default(x, weight_2, bias_2),
    )


register(
    KernelSpec(
        name="three_linears",
        patterns=(Pattern(_three),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=three_linears_kernel,
        launch=launch,
        strided=frozenset({"x", *WEIGHTS}),
        fuses=True,
    )
)
