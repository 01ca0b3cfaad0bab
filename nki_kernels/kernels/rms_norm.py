"""`rms_norm`: x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension, maybe of a sum
with a residual.

Patterns `trnx::rms_norm(x, weight | None, eps, offset, rounds)`, the same of `x + residual`, and
the same that also returns the sum, as models with residual streams do. x and residual `[..., D]` of
one dtype, weight `[D]`; float32, bfloat16 or float16; float32 inside, but what weight multiplies is
rounded where it `rounds`; D as far as two rows fit in a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers trnx::rms_norm
from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._few_rows import parts_of
from trnx.nki_kernels.kernels._few_rows_rms_norm import few_rows_rms_norm_kernel
from trnx.nki_kernels.kernels._rows import (
    add_rows,
    fold_of,
    load_rows,
    load_vector,
    offset_vector,
    rows_of,
    run_of,
    scale_rows,
    sum_of_squares,
)
from trnx.nki_kernels.kernels._scalar_table import early_epsilon
from trnx.nki_kernels.kernels._transfers import transfer
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_rms_norm = torch.ops.trnx.rms_norm.default


@nki.jit
def rms_norm_kernel(
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    weight: nl.NkiTensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    returns_sum: bool,
    fold: int,
    is_static: bool,
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, nl.NkiTensor]:
    """x and residual `[..., D]`, weight `[D]` -> the same shape and dtype, and the sum if wanted;
    `fold` rows per partition; `is_static` as in `transfer`; `cores` share the rows.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) if returns_sum else None
    columns = x.shape[-1]
    rows = x.size // columns
    weights = None
    if weight is not None:
        weights = offset_vector(load_vector(weight, is_static), offset)
    epsilon = early_epsilon(eps)
    started = []  # type: list[tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]]
    done, end = share_of(rows, cores)
    while done < end:
        partitions = min(nl.tile_size.pmax, end - done)
        run = min(fold, (end - done) // partitions)
        data = load_rows(x.reshape((rows, columns)), done, partitions, run, is_static)
        if residual is not None:
            other = load_rows(residual.reshape((rows, columns)), done, partitions, run, is_static)
            data = add_rows(data, other)
        if total is not None:
            summed = rows_of(total.reshape((rows, columns)), done, partitions, run)
            transfer(summed, data, is_static)
        rstd = _inverse_root(data, epsilon)
        # The sum of the next tile comes before this tile's result, so that VectorE need not wait.
        if len(started) > 0:
            _finish(started[-1], weights, rounds, is_static)
        started.append((rows_of(out.reshape((rows, columns)), done, partitions, run), data, rstd))
        done = done + partitions * run
    if len(started) > 0:
        _finish(started[-1], weights, rounds, is_static)
    if total is None:
        return out
    return out, total


def _inverse_root(data: nl.NkiTensor, epsilon: nl.NkiTensor) -> nl.NkiTensor:
    """1 / sqrt(mean(data^2) + eps) of each row."""
    partitions, run, columns = data.shape
    total = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    sum_of_squares(total, data)
    rstd = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=rstd, op=nl.rsqrt, data=total, scale=1.0 / columns, bias=epsilon[0:partitions]
    )
    return rstd


def _finish(
    tile: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    weights: nl.NkiTensor | None,
    rounds: bool,
    is_static: bool,
) -> None:
    """Store data * rstd * weights of a tile (target, data, rstd)."""
    target, data, rstd = tile
    result = nl.ndarray(data.shape, dtype=target.dtype, buffer=nl.sbuf)
    scale_rows(result, data, rstd, weights, rounds)
    transfer(target, result, is_static)


def _run(b: Bindings, hw: Hardware) -> int:
    vector_bytes = b.weight.dtype.itemsize if b.weight is not None else 0
    if b.offset != 0.0:
        vector_bytes += 4
    tiles = 1 if b.residual is None else 3
    tiles += b.rounds
    return run_of(b.x.shape[-1], hw, tiles * b.x.dtype.itemsize + 4, vector_bytes)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, the weight's shape, and the size of a row."""
    if reject := reject_dtypes(b, "x", "residual", "weight"):
        return reject
    if b.residual is not None and (b.residual.shape, b.residual.dtype) != (b.x.shape, b.x.dtype):
        return Reject(f"residual{b.residual.shape} is not of the kind of x{b.x.shape}")
    if b.x.ndim == 0 or b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no rows to normalise")
    if b.weight is not None and b.weight.shape != b.x.shape[-1:]:
        return Reject(f"weight{b.weight.shape} is not the last dimension of x{b.x.shape}")
    if not _run(b, hw):
        return Reject(f"a row of {b.x.shape[-1]} elements does not fit in a partition of SBUF")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Rows per partition from the size of a row, or partitions per row where there are few."""
    names = ("x", "residual", "weight", "eps", "offset", "rounds", "returns_sum")
    columns = b.x.shape[-1]
    parts = parts_of(b.x.numel // columns, columns, hw)
    if parts > 1:
        return Launch.of(few_rows_rms_norm_kernel, b, names, parts)
    crossings = 2 + (b.residual is not None) + b.returns_sum
    is_static = crossings * (b.x.numel // columns) <= MOST_DESCRIPTORS
    fold = fold_of(_run(b, hw), b.x.numel // columns, hw)
    return Launch.of(rms_norm_kernel, b, names, fold, is_static)


def cost(b: Bindings) -> Cost:
    """Four operations an element, and the sum."""
    weight = b.weight.nbytes if b.weight is not None else 0
    added = b.residual is not None
    crossings = 2 + added + b.returns_sum
    return Cost(vector_flops=(4 + added) * b.x.numel, hbm_bytes=crossings * b.x.nbytes + weight)


def reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    returns_sum: bool,
) -> Any:
    """trnx::rms_norm of the sum, and the sum."""
    total = x if residual is None else x + residual
    result = _rms_norm(total, weight, eps, offset, rounds)
    return (result, total) if returns_sum else result


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, narrow and wide rows, mixed dtypes, no weight."""

    def sample(
        note: str,
        *shape: int,
        dtype: torch.dtype = torch.float32,
        weight: torch.dtype | None = torch.float32,
        residual: bool = False,
        returns_sum: bool = False,
        offset: float = 0.0,
        rounds: bool = False,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).to(dtype)
        other = torch.randn(shape, generator=generator).to(dtype) if residual else None
        w = None
        if weight is not None:
            w = torch.randn(shape[-1], generator=generator).to(weight)
        values: dict[str, Any] = {"x": x, "residual": other, "weight": w, "eps": 1e-6}
        values |= {"offset": offset, "rounds": rounds, "returns_sum": returns_sum}
        error = 0.0
        if rounds:  # to either neighbour
            error = torch.finfo(dtype).eps * float(reference(**values).abs().max())
        return Sample(values, note, error)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    for columns in (1, 2, 511, 513, 4096):
        yield sample(f"{columns} columns", 130, columns)
    for columns in (39, 40, 130):
        yield sample(f"several rows of {columns} a partition", 2100, columns)
    yield sample("no weight", 3, 50, 600, weight=None)
    yield sample("heads", 2, 5, 40, 64)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 2, 70, 600, dtype=dtype, weight=dtype)
        yield sample(f"{dtype}, weight in float32", 2, 70, 60, dtype=dtype)
    for rows in (1, 129, 513):
        yield sample(f"residual, {rows} rows", rows, 70, residual=True)
        yield sample(f"residual and sum, {rows} rows", rows, 600, residual=True, returns_sum=True)
    bf16 = torch.bfloat16
    yield sample("bfloat16, residual", 2, 70, 600, dtype=bf16, weight=bf16, residual=True)
    yield sample("bfloat16, residual and sum", 130, 70, dtype=bf16, residual=True, returns_sum=True)
    for rows, columns in ((130, 70), (130, 600), (3, 4096)):
        note = f"{rows} rows of {columns}"
        yield sample(f"1 + weight, {note}", rows, columns, offset=1.0)
        for dtype in (torch.bfloat16, torch.float16):
            half = partial(sample, dtype=dtype, weight=dtype)
            yield half(f"{dtype}, 1 + weight, {note}", rows, columns, offset=1.0)
            yield half(f"{dtype}, rounded twice, {note}", rows, columns, rounds=True)
    yield sample("residual, 1 + weight", 2, 70, 600, dtype=bf16, residual=True, offset=1.0)
    yield sample("residual, rounded twice", 70, 60, dtype=bf16, residual=True, rounds=True)


def _pattern(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float, rounds: bool
) -> Any:
    return _rms_norm(x, weight, eps, offset, rounds)


def _add_pattern(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
) -> Any:
    return _rms_norm(aten.add.Tensor(x, residual), weight, eps, offset, rounds)


def _add_and_keep_pattern(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    rounds: bool,
) -> Any:
    total = aten.add.Tensor(x, residual)
    return _rms_norm(total, weight, eps, offset, rounds), total


register(
    KernelSpec(
        name="rms_norm",
        patterns=(
            Pattern(_pattern, {"residual": None, "returns_sum": False}),
            Pattern(_add_pattern, {"returns_sum": False}),
            Pattern(_add_and_keep_pattern, {"returns_sum": True}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=rms_norm_kernel,
        launch=launch,
    )
)
