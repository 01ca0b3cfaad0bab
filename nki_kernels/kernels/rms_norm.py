"""`rms_norm`: x / sqrt(mean(x^2) + eps) * weight over the last dimension.

Pattern `trnx::rms_norm(x, weight | None, eps)`; x `[..., D]` and weight `[D]` in float32, bfloat16
or float16, each its own; float32 inside; D as far as two rows fit in a partition.
"""

from __future__ import annotations

from collections.abc import Iterator

import nki
import nki.isa as nisa
import nki.language as nl
import torch

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers trnx::rms_norm
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._rows import (
    load_rows,
    load_vector,
    rows_of,
    run_of,
    scale_rows,
    sum_of_squares,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_rms_norm = torch.ops.trnx.rms_norm.default


@nki.jit
def rms_norm_kernel(
    x: nl.NkiTensor, weight: nl.NkiTensor | None, eps: float, fold: int
) -> nl.NkiTensor:
    """x `[..., D]`, weight `[D]` -> the same shape and dtype; `fold` rows per partition."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    columns = x.shape[-1]
    rows = x.size // columns
    flat = x.reshape((rows, columns))
    flat_out = out.reshape((rows, columns))
    weights = None
    if weight is not None:
        weights = load_vector(weight)
    epsilon = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    done = 0
    while done < rows:
        partitions = min(nl.tile_size.pmax, rows - done)
        run = min(fold, (rows - done) // partitions)
        data = load_rows(flat, done, partitions, run)
        total = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        sum_of_squares(total, data)
        rstd = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=rstd, op=nl.rsqrt, data=total, scale=1.0 / columns, bias=epsilon[0:partitions]
        )
        result = nl.ndarray(data.shape, dtype=x.dtype, buffer=nl.sbuf)
        scale_rows(result, data, rstd, weights)
        nisa.dma_copy(dst=rows_of(flat_out, done, partitions, run), src=result)
        done = done + partitions * run
    return out


def _run(b: Bindings, hw: Hardware) -> int:
    vector_bytes = b.weight.dtype.itemsize if b.weight is not None else 0
    return run_of(b.x.shape[-1], hw, b.x.dtype.itemsize + 4, vector_bytes)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, the weight's shape, and the size of a row."""
    if reject := reject_dtypes(b, "x", "weight"):
        return reject
    if b.x.ndim == 0 or b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no rows to normalise")
    if b.weight is not None and b.weight.shape != b.x.shape[-1:]:
        return Reject(f"weight{b.weight.shape} is not the last dimension of x{b.x.shape}")
    if not _run(b, hw):
        return Reject(f"a row of {b.x.shape[-1]} elements does not fit in a partition of SBUF")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Rows per partition from the size of a row."""
    return Launch.of(rms_norm_kernel, b, ("x", "weight", "eps"), _run(b, hw))


def cost(b: Bindings) -> Cost:
    """Four operations an element."""
    weight = b.weight.nbytes if b.weight is not None else 0
    return Cost(vector_flops=4 * b.x.numel, hbm_bytes=2 * b.x.nbytes + weight)


def reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """trnx::rms_norm."""
    result: torch.Tensor = _rms_norm(x, weight, eps)
    return result


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, narrow and wide rows, mixed dtypes, no weight."""

    def sample(
        note: str,
        *shape: int,
        dtype: torch.dtype = torch.float32,
        weight: torch.dtype | None = torch.float32,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).to(dtype)
        w = None
        if weight is not None:
            w = torch.randn(shape[-1], generator=generator).to(weight)
        return Sample({"x": x, "weight": w, "eps": 1e-6}, note)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    for columns in (1, 2, 511, 513, 4096):
        yield sample(f"{columns} columns", 130, columns)
    yield sample("no weight", 3, 50, 600, weight=None)
    yield sample("heads", 2, 5, 40, 64)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 2, 70, 600, dtype=dtype, weight=dtype)
        yield sample(f"{dtype}, weight in float32", 2, 70, 60, dtype=dtype)


def _pattern(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    result: torch.Tensor = _rms_norm(x, weight, eps)
    return result


register(
    KernelSpec(
        name="rms_norm",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=rms_norm_kernel,
        launch=launch,
    )
)
