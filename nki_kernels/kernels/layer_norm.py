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

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._few_rows import parts_of
from trnx.nki_kernels.kernels._few_rows_layer_norm import few_rows_layer_norm_kernel
from trnx.nki_kernels.kernels._patterns import in_float32, pattern_without
from trnx.nki_kernels.kernels._row_layer_norm import layer_norm_kernel
from trnx.nki_kernels.kernels._rows import WIDE, run_of
from trnx.nki_kernels.kernels._turned_layer_norm import turned_layer_norm_kernel
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_STATISTICS = 512  # elements of one bn_stats
_LONG_TILE = 4096  # elements per partition of a tile of long rows
_TILES = 24  # with fewer, the first and the last ones, which overlap with nothing, decide
_HALF_TILES = 16  # the same in half precision
_SHORT_TILES = 6  # the same of rows of one bn_stats
# Percent of the columns in half precision whose statistics ScalarE takes, and of those that GpSimd
# scales and shifts, by which the engines are about as busy: of rows up to so many columns, without
# a residual and with one, which VectorE adds.
_SHARES = ((1024, (57, 54), (84, 64)), (65536, (66, 47), (84, 64)))
_FOLD = 4  # rows of a partition then
_TURNED_BYTES = 24  # a column of what is in SBUF at once
# Of a core, from which on it is faster by schedule.
_LEAST_ROWS, _LEAST_ELEMENTS = 768, 3 << 19
_TENSORS = ("x", "residual", "weight", "bias")
aten = torch.ops.aten


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
    if columns < WIDE:
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
    if columns <= _STATISTICS:
        tiles = _SHORT_TILES
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
    dtype = b.get("dtype")
    if dtype is not None and (b.x.dtype is not dtype or not _stats_in_float32(b)):
        return Reject(f"x is {b.x.dtype}, the result {dtype}")
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
        plan = (columns, fold, stats_shape, _shares(b), _tiling(b, hw)[1] > 0)
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
    dtype: torch.dtype | None = None,
) -> Any:
    """aten.native_layer_norm of the sum; in float32, and the result in `dtype`, where that is
    given."""

    def norm(total: torch.Tensor) -> Any:
        return aten.native_layer_norm.default(total, normalized_shape, weight, bias, eps)

    total = x if residual is None else aten.add.Tensor(x, residual)
    return norm(total) if dtype is None else in_float32(norm, total, dtype, 3)


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
        wide: bool = False,
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
            "dtype": dtype if wide else None,
        }
        return Sample(values, note)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    for columns in (1, 2, 511, 513, 4096):
        yield sample(f"{columns} columns", 130, columns)
    for columns in (39, 40, 130):
        yield sample(f"several rows of {columns} a partition", 2100, columns)
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
        for shape, residual in (((2, 70, 600), False), ((129, 60), True)):
            note = f"{dtype}, widened, residual {residual}"
            yield sample(
                note, *shape, residual=residual, bias=not residual, dtype=dtype,
                parameters=torch.float32, shift=20.0, wide=True,
            )  # fmt: skip


register(
    KernelSpec(
        name="layer_norm",
        patterns=(
            pattern_without(reference),
            pattern_without(reference, "residual"),
            pattern_without(reference, "dtype"),
            pattern_without(reference, "residual", "dtype"),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=layer_norm_kernel,
        launch=launch,
    )
)
