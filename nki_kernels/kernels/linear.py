"""`linear`: `activation(x[..., K] @ weight[N, K].T + bias[N]) + residual`, the one matrix product.

The canonical graph writes `mm`, `addmm` and `linear` as `aten.linear`. A product with a `[K, N]`
matrix has a transposed view as its weight, the weight gradient has transposed views on both sides:
`launch` reads the strides, and picks loads without transposes for them. Sums are float32; bias,
activation and residual are applied in float32, and there is one rounding. float32, bfloat16,
float16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.kernels._blocking import NEIGHBOURS, STREAM, layout_of_few
from trnx.nki_kernels.kernels._matmul import Blocks, own_part, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._neighbours import neighbours_product
from trnx.nki_kernels.kernels._operands import MatmulOperand, segments_of
from trnx.nki_kernels.kernels._projections import blocks_of, layouts_of, reject_linear
from trnx.nki_kernels.kernels._streamed import load_few_rows, stream_product
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


@nki.jit
def linear_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    residual: nl.NkiTensor | None,
    activation: str,
    x_layout: str,
    x_merged: bool,
    weight_layout: str,
    block_rows: int,
    block_columns: int,
    block_depth: int,
    keep: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[..., K]`, weight `[N, K]`, bias `[N]` or `[1, N]`, residual `[..., N]` -> `[..., N]`;
    `cores` share rows or columns."""
    out = nl.ndarray(x.shape[:-1] + (weight.shape[0],), dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.size // x.shape[-1]
    flat = out.reshape((rows, weight.shape[0]))
    if bias is not None:
        bias = bias.reshape((weight.shape[0],))
    if residual is not None:
        residual = residual.reshape((rows, weight.shape[0]))
    then = Epilogue(bias, residual, activation)
    part = own_part(rows, weight.shape[0], cores)
    if weight_layout == NEIGHBOURS:
        neighbours_product(flat, x.reshape((rows, x.shape[-1])), weight, then, part)
        return out
    if weight_layout == STREAM:
        if part.col < part.end_col:
            data = load_few_rows(x.reshape((rows, x.shape[-1])))
            stream_product(flat, data, weight, then, (part.col, part.end_col))
        return out
    product(
        flat,
        MatmulOperand(segments_of(x, x_merged), x_layout),
        MatmulOperand([weight], weight_layout),
        Blocks(block_rows, block_columns, block_depth, keep),
        then,
        part,
        [],
    )
    return out


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Any sizes but zero; one dtype for all; bias and residual of the shape of the result."""
    del hw
    return reject_linear(b)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides of x and weight allow, and the block sizes."""
    names = ("x", "weight", "bias", "residual", "activation")
    layouts = (*layouts_of(b, hw)[:2], layout_of_few(b.x, b.weight, hw))
    return Launch.of(linear_kernel, b, names, *layouts, *blocks_of(b, hw))


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; every operand crosses HBM once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    columns = b.weight.shape[0]
    tensors = (b.x, b.weight, b.bias, b.residual)
    steps = (b.bias is not None) + (b.residual is not None) + (b.activation != "none") + 1
    return Cost(
        matmul_flops=2 * rows * columns * b.x.shape[-1],
        vector_flops=rows * columns * steps,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None)
        + rows * columns * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    """The same in float32, rounded once."""
    vector = None if bias is None else bias.float().view(-1)
    result = F.linear(x.float(), weight.float(), vector)
    result = ACTIVATIONS[activation](result)
    if residual is not None:
        result = result + residual.float()
    return result.to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, every layout, every epilogue."""

    def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def sample(note: str, x: torch.Tensor, weight: torch.Tensor, **more: Any) -> Sample:
        rest = {"bias": None, "residual": None, "activation": "none"} | more
        return Sample({"x": x, "weight": weight / math.sqrt(x.shape[-1]), **rest}, note)

    def transposed(*shape: int) -> torch.Tensor:
        return values(*shape).mT

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", values(size, 65), values(66, 65), bias=values(66))
        yield sample(f"{size} columns", values(66, 65), values(size, 65), bias=values(size))
        yield sample(f"K = {size}", values(66, size), values(65, size))
    for activation in ACTIVATIONS:
        case = (values(130, 64), values(640, 64))
        yield sample(activation, *case, bias=values(640), activation=activation)
    yield sample("activation, no bias", values(9, 64), values(40, 64), activation="relu")
    for dtype in (torch.bfloat16, torch.float16):
        case = (values(129, 200, dtype=dtype), values(130, 200, dtype=dtype))
        bias, residual = values(130, dtype=dtype), values(129, 130, dtype=dtype)
        yield sample(f"{dtype}", *case, bias=bias, activation="gelu")
        yield sample(f"{dtype} residual", *case, residual=residual)
    yield sample("residual", values(3, 50, 64), values(96, 64), residual=values(3, 50, 96))
    more = {"bias": values(96), "residual": values(150, 96)}
    yield sample("bias and residual", values(150, 64), values(96, 64), **more)
    yield sample("bias [1, N]", values(3, 50, 64), values(66, 64), bias=values(1, 66))
    yield sample("one dimension", values(200), values(66, 200), bias=values(66))
    yield sample("four dimensions", values(2, 3, 5, 64), values(66, 64))
    yield sample("weight [K, N]", values(130, 200), transposed(200, 140), bias=values(140))
    yield sample("weight gradient", transposed(200, 130), transposed(200, 140))
    yield sample("transposed rows of a batch", transposed(3, 64, 130), values(66, 64))
    yield sample("rows that do not merge", values(3, 70, 64)[:, :-1], values(66, 64))
    yield sample("expanded gradient", torch.ones(()).expand(130, 64), transposed(64, 66))
    yield sample("every second K", values(130, 128)[:, ::2], values(66, 64))
    yield sample(
        "bfloat16 rows that do not merge",
        values(3, 70, 64, dtype=torch.bfloat16)[:, 1:],
        values(66, 64, dtype=torch.bfloat16),
    )
    yield sample("blocks of columns", values(70, 768), values(2100, 768), bias=values(2100))
    more = {"bias": values(1100), "residual": values(300, 1100)}
    yield sample("three tiles of rows", values(300, 650), values(1100, 650), **more)
    case = (values(700, 300), values(1030, 300))
    yield sample("more rows than a block", *case, bias=values(1030), activation="gelu")
    yield sample("many rows, K = 1", values(400, 1), values(70, 1))
    case = (values(3, 140, 520, dtype=torch.bfloat16)[:, 1:], transposed(520, 90).bfloat16())
    yield sample("many rows that do not merge", *case)
    case = (values(3, 2048, dtype=torch.bfloat16), values(2060, 2048, dtype=torch.bfloat16))
    yield sample("few rows of a large weight", *case, bias=values(2060, dtype=torch.bfloat16))
    case = (values(3, 512), transposed(512, 640))
    yield sample("few rows, weight [K, N]", *case, bias=values(640), activation="gelu")
    case = (values(5, 768, dtype=torch.bfloat16), transposed(768, 2100).bfloat16())
    bias, residual = (values(*shape, dtype=torch.bfloat16) for shape in ((2100,), (5, 2100)))
    yield sample("few rows, wide weight [K, N]", *case, bias=bias, residual=residual)
    yield sample("deep K", values(130, 8200), values(20, 8200), bias=values(20))


def _with_residual(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> Any:
    return aten.add.Tensor(aten.linear.default(x, weight, bias), residual)


def _with_added_bias(activation: str) -> Pattern:
    def pattern(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return ACTIVATIONS[activation](aten.add.Tensor(aten.linear.default(x, weight, None), bias))

    return Pattern(pattern, {"residual": None, "activation": activation})


def _with_activation(activation: str) -> Pattern:
    def pattern(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        return ACTIVATIONS[activation](aten.linear.default(x, weight, bias))

    return Pattern(pattern, {"residual": None, "activation": activation})


register(
    KernelSpec(
        name="linear",
        patterns=(
            Pattern(_with_residual, {"activation": "none"}),
            *map(_with_added_bias, ACTIVATIONS),
            *map(_with_activation, ACTIVATIONS),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=linear_kernel,
        launch=launch,
        strided=frozenset({"x", "weight"}),
    )
)
