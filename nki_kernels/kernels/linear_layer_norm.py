"""`linear_layer_norm`: the layer norm of a product plus a residual, as blocks of transformers end.

`total = x[..., K] @ weight[N, K].T + bias[N] + residual[..., N]`, normalised over N, and as wanted
mean, rstd and `total` itself, where the next residual is (norms before the products) or where
gradients are taken. Rows of the product are normalised while TensorE computes the next ones; the
sum is not rounded before. float32, bfloat16 or float16, one dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.kernels._matmul import Blocks, part_of, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand, segments_of
from trnx.nki_kernels.kernels._projections import blocks_of_part, layouts_of, reject_linear
from trnx.nki_kernels.kernels._row_norm import flush, new_row_norm, new_row_results, returned
from trnx.nki_kernels.kernels._row_norm_host import largest_scale, reject_row_norm
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
# K of products that take TensorE less time than their norm takes VectorE.
_SHORT_DEPTH = 1024
_VECTORS = ("bias", "norm_weight", "norm_bias")


@nki.jit
def linear_layer_norm_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    residual: nl.NkiTensor,
    norm_weight: nl.NkiTensor | None,
    norm_bias: nl.NkiTensor | None,
    eps: float,
    with_statistics: bool,
    with_total: bool,
    x_layout: str,
    x_merged: bool,
    weight_layout: str,
    block_rows: int,
    block_columns: int,
    block_depth: int,
    keep: bool,
    cores: int = 1,
) -> Any:
    """x `[..., K]`, weight `[N, K]`, bias, norm_weight, norm_bias `[N]`, residual `[..., N]` ->
    mean and rstd `[..., 1]`, out and total `[..., N]`, those that are wanted; `cores` share the
    rows."""
    columns = weight.shape[0]
    rows = x.size // x.shape[-1]
    results = new_row_results(x.shape[:-1] + (columns,), x.dtype, with_statistics, with_total)
    norm = new_row_norm(norm_weight, norm_bias, eps, results, x.shape[-1] <= _SHORT_DEPTH)
    flat = results.out.reshape((rows, columns))
    product(
        flat,
        MatmulOperand(segments_of(x, x_merged), x_layout),
        MatmulOperand([weight], weight_layout),
        Blocks(block_rows, block_columns, block_depth, keep),
        Epilogue(bias, residual.reshape((rows, columns)), "none", norm),
        part_of(rows, columns, True, cores),
        [],
    )
    flush(norm, flat)
    return returned(results)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """What `linear` takes, one norm over the columns, and weights that fit in SBUF as a whole."""
    if reject := reject_linear(b):
        return reject
    columns = b.weight.shape[0]
    for name in _VECTORS:
        if b[name] is not None and (b[name].shape, b[name].dtype) != ((columns,), b.x.dtype):
            return Reject(f"{name} is {b[name].dtype}{b[name].shape}, not {b.x.dtype}({columns},)")
    if reject := reject_row_norm(b, columns):
        return reject
    _, width, depth, _ = blocks_of_part(b, hw, by_rows=True)
    if width < columns or depth < b.x.shape[-1]:
        return Reject(f"weight{b.weight.shape} does not fit in SBUF as a whole")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides of x and weight allow, and the block sizes."""
    names = ("x", "weight", "bias", "residual", "norm_weight", "norm_bias", "eps")
    wanted = ("with_statistics", "with_total")
    blocks = blocks_of_part(b, hw, by_rows=True)
    return Launch.of(linear_layer_norm_kernel, b, (*names, *wanted), *layouts_of(b, hw), *blocks)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add, eight operations an element of the norm and two of the sum;
    every operand crosses HBM once."""
    rows = b.x.numel // max(b.x.shape[-1], 1)
    columns = b.weight.shape[0]
    tensors = (b.x, b.weight, b.residual, *(b[name] for name in _VECTORS))
    results = rows * columns * (1 + b.with_total) + 2 * rows * b.with_statistics
    return Cost(
        matmul_flops=2 * b.x.numel * columns,
        vector_flops=10 * rows * columns,
        hbm_bytes=sum(t.nbytes for t in tensors if t is not None) + results * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    normalized_shape: list[int],
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    eps: float,
    with_statistics: bool,
    with_total: bool,
) -> Any:
    """The same in float32, each result rounded once."""
    vectors = [None if v is None else v.float() for v in (bias, norm_weight, norm_bias)]
    total = F.linear(x.float(), weight.float(), vectors[0]) + residual.float()
    normed = aten.native_layer_norm.default(total, normalized_shape, *vectors[1:], eps)
    out, mean, rstd = normed
    results = (mean, rstd, out, total) if with_statistics else (out, total)
    kept = results if with_total else results[:-1]
    rounded = tuple(value.to(x.dtype) for value in kept)
    return rounded[0] if len(rounded) == 1 else rounded


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged rows, columns and K, missing vectors, more results."""

    def sample(
        note: str,
        rows: tuple[int, ...],
        depth: int,
        columns: int,
        dtype: torch.dtype = torch.float32,
        turned: bool = False,
        vectors: tuple[str, ...] = _VECTORS,
        statistics: bool = False,
        total: bool = False,
        shift: float = 0.0,
    ) -> Sample:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        weight = draw(columns, depth) / math.sqrt(depth)
        values: dict[str, Any] = {
            "x": draw(*rows, depth),
            "weight": weight.mT.contiguous().mT if turned else weight,
            "residual": draw(*rows, columns) + shift,
            "normalized_shape": [columns],
            "eps": 1e-5,
            "with_statistics": statistics,
            "with_total": total,
        }
        values |= {name: draw(columns) if name in vectors else None for name in _VECTORS}
        return Sample(values, note, _sum_error(values))

    for rows in (1, 127, 128, 129, 300):
        yield sample(f"{rows} rows", (rows,), 130, 66)
    for depth in (1, 2, 129, 700):
        yield sample(f"K = {depth}", (260,), depth, 70, turned=depth == 129)
    for columns in (2, 513, 1030):
        yield sample(f"{columns} columns", (2, 140), 64, columns)
    yield sample("more rows than a block", (700,), 100, 40)
    yield sample("no vectors", (3, 50), 60, 600, vectors=())
    yield sample("a large mean", (64,), 60, 600, shift=20.0)
    yield sample("one dimension", (), 96, 64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield sample(f"{dtype}, total", (3, 100), 300, 140, dtype=dtype, total=True)
        more: dict[str, Any] = {"statistics": True, "total": True}
        yield sample(f"{dtype}, all results", (2, 150), 260, 530, dtype, turned=True, **more)


def _sum_error(values: dict[str, Any]) -> float:
    """The rounding of the float32 sum, which the norm of a narrow row makes larger."""
    bias = None if values["bias"] is None else values["bias"].float()
    total = F.linear(values["x"].float(), values["weight"].float(), bias)
    total = total + values["residual"].float()
    factor = largest_scale(total, values["norm_weight"], values["eps"])
    return float(torch.finfo(torch.float32).eps * total.abs().max() * factor)


def _pattern(with_statistics: bool, with_total: bool) -> Pattern:
    def pattern(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
        normalized_shape: list[int],
        norm_weight: torch.Tensor | None,
        norm_bias: torch.Tensor | None,
        eps: float,
    ) -> Any:
        total = aten.add.Tensor(aten.linear.default(x, weight, bias), residual)
        found = aten.native_layer_norm.default(total, normalized_shape, norm_weight, norm_bias, eps)
        # Statistics first: the pattern stands where they are used.
        results = [found[1], found[2], found[0]] if with_statistics else [found[0]]
        return tuple([*results, total] if with_total else results)

    return Pattern(pattern, {"with_statistics": with_statistics, "with_total": with_total})


register(
    KernelSpec(
        name="linear_layer_norm",
        patterns=(_pattern(True, True), _pattern(False, False), _pattern(False, True)),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=linear_layer_norm_kernel,
        launch=launch,
        strided=frozenset({"x", "weight"}),
        fuses=True,
    )
)
