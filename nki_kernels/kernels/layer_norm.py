"""`layer_norm`: (x - mean) * rstd * weight + bias, with mean and rstd, maybe of a sum with a
residual.

Patterns `aten.native_layer_norm(x, normalized_shape, weight | None, bias | None, eps)`, and the
same of `x + residual`. Normalised are the last dimensions, D elements, as far as two rows fit in
a partition; float32, bfloat16 or float16, float32 inside. The variance is taken of the centred
row, so a large mean costs no accuracy. TensorE multiplies with the weight of many long rows in
half precision (`_turned_rows.py`). mean and rstd have the dtype that torch's CPU kernel gives
them: that of the weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._few_rows import parts_of
from trnx.nki_kernels.kernels._few_rows_layer_norm import few_rows_layer_norm_kernel
from trnx.nki_kernels.kernels._half_rows import HalfRows, normalise_half_rows
from trnx.nki_kernels.kernels._long_rows import (
    centre,
    inverse_deviations,
    load_parameters,
    negative_means,
    partial_statistics,
    row_moments,
    scale_and_shift,
    store_statistics,
)
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
    tiles_of,
)
from trnx.nki_kernels.kernels._turned_layer_norm import turned_layer_norm_kernel
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_STATISTICS = 512  # elements of one bn_stats
_LONG_TILE = 4096  # elements per partition of a tile of long rows
_TILES = 24  # with fewer, the first and the last ones, which overlap with nothing, decide
_HALF_TILES = 16  # the same in half precision
# Percent of the columns in half precision whose statistics ScalarE takes, and of those that GpSimd
# scales and shifts, by which the engines are about as busy: of rows up to so many columns, without
# a residual and with one, which VectorE adds.
_SHARES = ((1024, (57, 54), (84, 64)), (65536, (66, 47), (84, 64)))
# Percent of the columns whose statistics TensorE takes where it multiplies, of rows up to so many
# columns, by schedule.
_ON_TENSOR = ((1024, 83), (65536, 67))
_FOLD = 4  # rows of a partition then
_TURNED_BYTES = 24  # a column of what is in SBUF at once
# Of a core, from which on it is faster by schedule.
_LEAST_ROWS, _LEAST_ELEMENTS = 768, 3 << 19
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
    lag: int,
    stats_shape: tuple[int, ...],
    stats_in_float32: bool,
    shares: tuple[int, int],
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """x and residual of one shape, weight and bias of `columns` -> (out, mean, rstd);
    `cores` share the rows."""
    stats_dtype = nl.float32 if stats_in_float32 else x.dtype
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mean = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rstd = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rows = x.size // columns
    flat = x.reshape((rows, columns))
    other = residual.reshape((rows, columns)) if residual is not None else None
    flat_out = out.reshape((rows, columns))
    epsilon = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    done, end = share_of(rows, cores)
    if columns > nl.tile_size.bn_stats_fmax:
        starts = tiles_of(done, end, fold)
        if x.dtype == nl.float32:
            _long_rows(flat, other, flat_out, (mean, rstd), epsilon, (weight, bias), starts, lag)
        else:
            on_scalar, on_gpsimd = columns * shares[0] // 100, columns * shares[1] // 100
            half = HalfRows(flat, other, flat_out, mean, rstd, epsilon, on_scalar, on_gpsimd)
            normalise_half_rows(half, weight, bias, starts, lag > 0)
        return out, mean, rstd
    weights = load_vector(weight) if weight is not None else None
    biases = load_vector(bias) if bias is not None else None
    while done < end:
        partitions = min(nl.tile_size.pmax, end - done)
        run = min(fold, (end - done) // partitions)
        data = _load(flat, other, done, partitions, run)
        means = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        centred = _centre(data, means)
        _inverse_deviation(rstds, centred, epsilon)
        result = nl.ndarray(data.shape, dtype=x.dtype, buffer=nl.sbuf)
        _scale_and_shift(result, centred, rstds, weights, biases)
        nisa.dma_copy(dst=rows_of(flat_out, done, partitions, run), src=result)
        store_statistics(mean, means, rows, done)
        store_statistics(rstd, rstds, rows, done)
        done = done + partitions * run
    return out, mean, rstd


def _load(
    x: nl.NkiTensor, residual: nl.NkiTensor | None, start: int, partitions: int, run: int
) -> nl.NkiTensor:
    data = load_rows(x, start, partitions, run)
    if residual is None:
        return data
    return add_rows(data, load_rows(residual, start, partitions, run))


def _long_rows(
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    out: nl.NkiTensor,
    statistics: tuple[nl.NkiTensor, nl.NkiTensor],
    epsilon: nl.NkiTensor,
    parameters: tuple[nl.NkiTensor | None, nl.NkiTensor | None],
    starts: list[tuple[int, int, int]],
    lag: int,
) -> None:
    """Tiles in three stages, so that no engine waits for what another one does now: stage s has the
    tile that is `s * lag` behind the one that is loaded.
    """
    rows, columns = x.shape
    data = []  # type: list[nl.NkiTensor]
    rstds = []  # type: list[nl.NkiTensor]
    shifts = []  # type: list[nl.NkiTensor]
    parts = []  # type: list[nl.NkiTensor]
    steps = 0 if len(starts) == 0 else len(starts) + 2 * lag
    for step in range(steps):
        if step < len(starts):
            data.append(_load(x, residual, starts[step][0], starts[step][1], starts[step][2]))
            parts.append(partial_statistics(data[step]))
        if step == lag:  # behind the tiles with which the engines begin
            vectors = load_parameters(parameters[0], parameters[1], columns, x.dtype)
        i = step - 2 * lag
        centred = None
        if lag > 0 and i >= 0:
            centred = centre(data[i], shifts[i])
        i = step - lag
        if i >= 0 and i < len(starts):
            moments = row_moments(parts[i])
            rstds.append(inverse_deviations(moments, epsilon))
            shifts.append(negative_means(moments))
            store_statistics(statistics[0], moments[:, :, 0], rows, starts[i][0])
            store_statistics(statistics[1], rstds[i], rows, starts[i][0])
        i = step - 2 * lag
        if lag == 0:
            centred = centre(data[i], shifts[i])
        if i >= 0:
            result = scale_and_shift(centred, rstds[i], vectors[0], vectors[1], x.dtype)
            nisa.dma_copy(dst=rows_of(out, starts[i][0], starts[i][1], starts[i][2]), src=result)


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


def _stats_in_float32(b: Bindings) -> bool:
    """torch's CPU kernel keeps float32 statistics of half-precision x with float32 parameters."""
    parameters = [b[n].dtype for n in ("weight", "bias") if b[n] is not None]
    return torch.float32 in (b.x.dtype, *parameters)


def _run(b: Bindings, hw: Hardware) -> int:
    vector_bytes = sum(b[n].dtype.itemsize for n in ("weight", "bias") if b[n] is not None)
    row_bytes = 8 if b.residual is None else max(8, 3 * b.x.dtype.itemsize)
    return run_of(math.prod(b.normalized_shape), hw, row_bytes, vector_bytes)


def _tiling(b: Bindings, hw: Hardware) -> tuple[int, int]:
    """Rows per partition, and whether tiles lag behind each other in their stages (1) or not (0):
    long rows do as far as four tiles are to be had and five of x with three of its results fit.
    """
    columns = math.prod(b.normalized_shape)
    run = _run(b, hw)
    if columns <= _STATISTICS:
        return run, 0
    itemsize = b.x.dtype.itemsize
    live = 5 * itemsize + 3 * max(4, itemsize) + (2 * itemsize if b.residual is not None else 0)
    vectors = sum(b[n].dtype.itemsize for n in ("weight", "bias") if b[n] is not None)
    room = hw.sbuf_partition_bytes * 7 // 8 - columns * vectors
    fitting = room // (columns * live)
    if fitting < 1:
        return run, 0
    in_partition = b.x.numel // columns // hw.partitions // hw.cores
    tiles = _TILES if b.x.dtype == torch.float32 else _HALF_TILES
    return max(1, min(_LONG_TILE // columns, fitting, in_partition // tiles)), 1


def _shares(b: Bindings) -> tuple[int, int]:
    """ScalarE's and GpSimd's percent of the columns."""
    columns = math.prod(b.normalized_shape)
    alone, with_residual = next(pairs for most, *pairs in _SHARES if columns <= most)
    return alone if b.residual is None else with_residual


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
    """Rows per partition from the size of a row, or partitions per row where there are few; and
    the statistics' shape and dtype."""
    columns = math.prod(b.normalized_shape)
    kept = b.x.ndim - len(b.normalized_shape)
    stats_shape = b.x.shape[:kept] + (1,) * len(b.normalized_shape)
    statistics = (stats_shape, _stats_in_float32(b))
    parts = parts_of(b.x.numel // columns, columns, hw)
    if parts > 1:
        names = (*_TENSORS, "eps")
        return Launch.of(few_rows_layer_norm_kernel, b, names, columns, parts, *statistics)
    if _is_turned(b, columns, hw):
        fold = max(1, min(_LONG_TILE // columns, _FOLD))
        on_tensor = next(share for most, share in _ON_TENSOR if columns <= most)
        shares = (on_tensor, *_shares(b))
        plan = (columns, fold, stats_shape, shares, _tiling(b, hw)[1] > 0)
        launch = Launch.of(turned_layer_norm_kernel, b, ("x", "weight", "bias", "eps"), *plan)
        return replace(launch, unknown_trips=0)
    constants = (columns, *_tiling(b, hw), *statistics, _shares(b))
    return Launch.of(layer_norm_kernel, b, (*_TENSORS, "eps"), *constants)


def _is_turned(b: Bindings, columns: int, hw: Hardware) -> bool:
    """Whether TensorE multiplies with the weight: where whole blocks fit, and the stages pay."""
    if hw.generation < 3 or b.residual is not None or b.x.dtype.itemsize != 2:
        return False
    if any(b[n] is None or b[n].dtype != b.x.dtype for n in ("weight", "bias")):
        return False
    if columns <= _STATISTICS or columns % hw.partitions:
        return False
    fits = columns * _TURNED_BYTES <= hw.sbuf_partition_bytes * 7 // 8
    rows = b.x.numel // columns // hw.cores
    return bool(fits and rows >= _LEAST_ROWS and rows * columns >= _LEAST_ELEMENTS)


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
    yield sample("several long rows a partition", 128 * 50, 700, dtype=torch.bfloat16)
    yield sample("products with the weight", 1540, 1024, dtype=torch.bfloat16)
    yield sample("long, a large mean", 130, 1030, shift=20.0, dtype=torch.bfloat16)
    yield sample("long, no bias", 130, 1030, bias=False, dtype=torch.float16)
    yield sample("long, no weight", 130, 1030, weight=False, residual=True, dtype=torch.bfloat16)
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
