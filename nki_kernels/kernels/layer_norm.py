"""`layer_norm`: (x - mean) * rstd * weight + bias, with mean and rstd, maybe of a sum with a
residual.

Patterns `aten.native_layer_norm(x, normalized_shape, weight | None, bias | None, eps)`, and the
same of `x + residual`. Normalised are the last dimensions, D elements, as far as two rows fit in
a partition; float32, bfloat16 or float16, float32 inside. The variance is taken of the centred
row, so a large mean costs no accuracy. mean and rstd have the dtype that torch's CPU kernel gives
them: that of the weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._rows import (
    add_rows,
    combine_rows,
    load_rows,
    load_vector,
    over_rows,
    rows_of,
    run_of,
    scale_rows,
    sum_of_squares,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_TENSORS = ("x", "residual", "weight", "bias")
aten = torch.ops.aten


@nki.jit
def layer_norm_kernel(
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    eps: float,
    columns: int,
    fold: int,
    stats_shape: tuple[int, ...],
    stats_in_float32: bool,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """x and residual of one shape, weight and bias of `columns` -> (out, mean, rstd)."""
    stats_dtype = nl.float32 if stats_in_float32 else x.dtype
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mean = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rstd = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rows = x.size // columns
    flat = x.reshape((rows, columns))
    other = residual.reshape((rows, columns)) if residual is not None else None
    flat_out = out.reshape((rows, columns))
    weights = load_vector(weight) if weight is not None else None
    biases = load_vector(bias) if bias is not None else None
    epsilon = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    done = 0
    while done < rows:
        partitions = min(nl.tile_size.pmax, rows - done)
        run = min(fold, (rows - done) // partitions)
        data = load_rows(flat, done, partitions, run)
        if other is not None:
            data = add_rows(data, load_rows(other, done, partitions, run))
        means = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        centred = _centre(data, means)
        _inverse_deviation(rstds, centred, epsilon)
        result = nl.ndarray(data.shape, dtype=x.dtype, buffer=nl.sbuf)
        _scale_and_shift(result, centred, rstds, weights, biases)
        nisa.dma_copy(dst=rows_of(flat_out, done, partitions, run), src=result)
        _store_statistics(mean, means, rows, done)
        _store_statistics(rstd, rstds, rows, done)
        done = done + partitions * run
    return out, mean, rstd


def _centre(data: nl.NkiTensor, means: nl.NkiTensor) -> nl.NkiTensor:
    """Each row minus its mean, which goes to `means`."""
    totals = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=totals, op=nl.add, data=data, axis=2)
    nisa.tensor_scalar(dst=means, data=totals, op0=nl.multiply, operand0=1.0 / data.shape[2])
    centred = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    combine_rows(centred, data, means, nl.subtract)
    return centred


def _inverse_deviation(rstds: nl.NkiTensor, centred: nl.NkiTensor, epsilon: nl.NkiTensor) -> None:
    """1 / sqrt(variance + eps) of centred rows."""
    totals = nl.ndarray(rstds.shape, dtype=nl.float32, buffer=nl.sbuf)
    sum_of_squares(totals, centred)
    nisa.activation(
        dst=rstds,
        op=nl.rsqrt,
        data=totals,
        scale=1.0 / centred.shape[2],
        bias=epsilon[0 : rstds.shape[0]],
    )


def _scale_and_shift(
    dst: nl.NkiTensor,
    centred: nl.NkiTensor,
    rstds: nl.NkiTensor,
    weights: nl.NkiTensor | None,
    biases: nl.NkiTensor | None,
) -> None:
    """dst = centred * rstds * weights + biases."""
    if biases is None:
        scale_rows(dst, centred, rstds, weights)
    else:
        scaled = nl.ndarray(centred.shape, dtype=nl.float32, buffer=nl.sbuf)
        scale_rows(scaled, centred, rstds, weights)
        nisa.tensor_tensor(dst=dst, data1=scaled, data2=over_rows(biases, centred), op=nl.add)


def _store_statistics(dst: nl.NkiTensor, per_row: nl.NkiTensor, rows: int, start: int) -> None:
    partitions, run = per_row.shape
    source = per_row
    if dst.dtype != nl.float32:
        source = nl.ndarray(per_row.shape, dtype=dst.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=source, src=per_row)
    flat = dst.reshape((rows,))
    target = flat[start : start + partitions * run].reshape((partitions, run))
    nisa.dma_copy(dst=target, src=source)


def _stats_in_float32(b: Bindings) -> bool:
    """torch's CPU kernel keeps float32 statistics of half-precision x with float32 parameters."""
    parameters = [b[n].dtype for n in ("weight", "bias") if b[n] is not None]
    return torch.float32 in (b.x.dtype, *parameters)


def _run(b: Bindings, hw: Hardware) -> int:
    vector_bytes = sum(b[n].dtype.itemsize for n in ("weight", "bias") if b[n] is not None)
    row_bytes = 8 if b.residual is None else max(8, 3 * b.x.dtype.itemsize)
    return run_of(math.prod(b.normalized_shape), hw, row_bytes, vector_bytes)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, shapes, and the size of a row."""
    if reject := reject_dtypes(b, *_TENSORS):
        return reject
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no rows to normalise")
    if b.residual is not None and (b.residual.shape, b.residual.dtype) != (b.x.shape, b.x.dtype):
        return Reject(f"residual{b.residual.shape} is not of the kind of x{b.x.shape}")
    shape = tuple(b.normalized_shape)
    for name in ("weight", "bias"):
        if b[name] is not None and b[name].shape != shape:
            return Reject(f"{name}{b[name].shape} is not of the normalized shape {shape}")
    if not _run(b, hw):
        return Reject(f"a row of {math.prod(shape)} elements does not fit in a partition of SBUF")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Rows per partition from the size of a row, and the statistics' shape and dtype."""
    columns = math.prod(b.normalized_shape)
    kept = b.x.ndim - len(b.normalized_shape)
    stats_shape = b.x.shape[:kept] + (1,) * len(b.normalized_shape)
    constants = (columns, _run(b, hw), stats_shape, _stats_in_float32(b))
    return Launch.of(layer_norm_kernel, b, (*_TENSORS, "eps"), *constants)


def cost(b: Bindings) -> Cost:
    """Eight operations an element."""
    tensors = [b[n] for n in _TENSORS if b[n] is not None]
    rows = b.x.numel // math.prod(b.normalized_shape)
    crossing = sum(t.nbytes for t in tensors) + b.x.nbytes + 2 * rows * b.x.dtype.itemsize
    return Cost(vector_flops=8 * b.x.numel, hbm_bytes=crossing)


def reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    """aten.native_layer_norm of the sum."""
    total = x if residual is None else x + residual
    return aten.native_layer_norm.default(total, normalized_shape, weight, bias, eps)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, missing parameters, more dimensions, mixed dtypes."""

    def sample(
        note: str,
        *shape: int,
        dims: int = 1,
        weight: bool = True,
        bias: bool = True,
        residual: bool = False,
        dtype: torch.dtype = torch.float32,
        parameters: torch.dtype | None = None,
        shift: float = 0.0,
    ) -> Sample:
        normal = list(shape[len(shape) - dims :])

        def draw(size: list[int], kind: torch.dtype) -> torch.Tensor:
            return torch.randn(size, generator=generator).to(kind)

        values = {
            "x": draw(list(shape), dtype) + shift,
            "residual": draw(list(shape), dtype) if residual else None,
            "normalized_shape": normal,
            "weight": draw(normal, parameters or dtype) if weight else None,
            "bias": draw(normal, parameters or dtype) if bias else None,
            "eps": 1e-5,
        }
        return Sample(values, note)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    for columns in (1, 2, 511, 513, 4096):
        yield sample(f"{columns} columns", 130, columns)
    yield sample("no bias", 3, 50, 600, bias=False)
    yield sample("no weight", 3, 50, 600, weight=False)
    yield sample("no parameters, narrow", 3, 50, 60, weight=False, bias=False)
    yield sample("two dimensions", 7, 20, 30, dims=2)
    yield sample("all dimensions", 20, 30, dims=2)
    yield sample("a large mean", 64, 600, shift=20.0)
    yield sample("residual", 2, 70, 600, residual=True)
    yield sample("residual, narrow, bias alone", 2, 70, 60, residual=True, weight=False)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 2, 70, 600, dtype=dtype)
        yield sample(
            f"{dtype}, float32 parameters", 2, 70, 60, dtype=dtype, parameters=torch.float32
        )


def _layer_norm(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    return aten.native_layer_norm.default(x, normalized_shape, weight, bias, eps)


def _add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    total = aten.add.Tensor(x, residual)
    return aten.native_layer_norm.default(total, normalized_shape, weight, bias, eps)


register(
    KernelSpec(
        name="layer_norm",
        patterns=(Pattern(_add_layer_norm), Pattern(_layer_norm, {"residual": None})),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=layer_norm_kernel,
        launch=launch,
    )
)
