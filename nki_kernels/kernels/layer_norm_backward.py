"""`layer_norm_backward`: gradients of layer_norm with respect to its input, weight and bias.

Pattern `aten.native_layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight, bias, mask)`
with all three gradients wanted; float32, bfloat16 or float16, float32 inside. TensorE adds the
gradients of weight and bias up in PSUM, over the rows of all tiles; ScalarE sums rows up and scales
them, VectorE and GpSimd multiply. Of many long rows in half precision TensorE multiplies, too
(`_turned_layer_norm_backward.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._block_sums import add_up, exchange_sums, store_sums
from trnx.nki_kernels.kernels._cores import is_first, is_last, share_of, sum_of_parts
from trnx.nki_kernels.kernels._layer_norm_gradients import (
    Source,
    Tile,
    begin,
    begin_line,
    end_line,
    finish,
    line_of,
    load_tile,
    no_tiles,
    statistics_of,
    sum_up,
    weigh,
)
from trnx.nki_kernels.kernels._rows import load_vector, run_of
from trnx.nki_kernels.kernels._turned_layer_norm_backward import turned_layer_norm_backward_kernel
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_TENSORS = ("grad", "x", "mean", "rstd", "weight")
# float32 tiles of a row that are live at once, and float32 vectors that all rows share, in bytes.
_ROW_BYTES = 20
_VECTOR_BYTES = 12
# (lag, late) of the stages, and the bytes of a column, in 2 bytes and in 4, from which on the tiles
# that are live at once leave no room to load the next ones.
_LAGS = (((2, 3), 60, 76), ((1, 2), 34, 42))
# Tiles of a core that are so few that the time of the first one matters, by schedule.
_FEW = 4
# Percent of the columns of a tile of wide rows that VectorE weighs, GpSimd the others, by schedule.
_ON_VECTOR = 46
_ON_VECTOR_OF_FEW = 96
# Where DMA turns the gradient, by schedule: of rows up to so many columns, the elements from which
# on that is faster on one core, and those of each of two, which wait for one another at the end.
_TURNED = (
    (512, 3 << 19, 3 << 19),
    (1024, 3 << 18, 3 << 19),
    (1536, 1 << 19, 1 << 20),
    (4096, 1 << 19, 1 << 19),
)
# Percent of the rows that VectorE multiplies with their slopes, of rows up to so many columns, by
# schedule. In float16 that is all, as two terms of bfloat16 are too short for it.
_ON_VECTOR_OF_TURNED = ((1024, 34), (4096, 25))
_ALL = 100
_ON_TENSOR = 1  # blocks of the gradient that TensorE sums up, by schedule
_CHUNK = 3072  # elements of a partition of a chunk
_LEAST_COLUMNS, _MOST_COLUMNS = 512, 4096  # PSUM has room for the sums of so many
_MOST_ROWS = 1 << 16  # of a core; SBUF keeps the sums of all
aten = torch.ops.aten


class Work(NamedTuple):
    """HBM: x and the gradient `[rows, columns]`, of which rows `first .. last` are this program's,
    dx as it was given, `parts` to exchange sums by, None where one program does all. The sums over
    rows are `[128, blocks]` in PSUM. Of each tile so far: itself, the sums of its rows, the
    products that become its line. `weights` is empty at first."""

    x: nl.NkiTensor
    grad: nl.NkiTensor
    dx: nl.NkiTensor
    source: Source
    first: int
    last: int
    ones: nl.NkiTensor
    weight_sums: nl.NkiTensor
    bias_sums: nl.NkiTensor
    parts: nl.NkiTensor | None
    weights: list[nl.NkiTensor]
    tiles: list[Tile]
    totals: list[nl.NkiTensor]
    lines: list[nl.NkiTensor]


@nki.jit
def layer_norm_backward_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    mean: nl.NkiTensor,
    rstd: nl.NkiTensor,
    weight: nl.NkiTensor,
    lag: int,
    late: int,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """grad and x of one shape, mean and rstd one value a row -> gradients of x, weight, bias.

    What the sums of a tile's rows give is computed when the tile `lag` behind it is loaded, its
    result when the one `late` behind it is: engines do not wait for what others have just begun.
    `cores` share the rows, and exchange their sums over rows while the last tiles are computed.
    """
    columns = weight.size
    rows = x.size // columns
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dweight = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    dbias = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    source = Source(mean.reshape((rows,)), rstd.reshape((rows,)), columns, lag == 1, [])
    work = _new_work(x.reshape((rows, columns)), grad.reshape((rows, columns)), dx, source, cores)
    _differentiate(work, weight, lag, late)
    weight_sums, bias_sums = work.weight_sums, work.bias_sums
    if work.parts is not None:
        total = sum_of_parts(work.parts)
        blocks = weight_sums.shape[1]
        weight_sums, bias_sums = total[:, 0:blocks], total[:, blocks : 2 * blocks]
    if is_first():
        store_sums(dweight.reshape((columns,)), weight_sums)
    if is_last(cores):
        store_sums(dbias.reshape((columns,)), bias_sums)
    return dx, dweight, dbias


def _new_work(
    x: nl.NkiTensor, grad: nl.NkiTensor, dx: nl.NkiTensor, source: Source, cores: int
) -> Work:
    pmax = nl.tile_size.pmax
    rows, columns = x.shape
    ones = nl.ndarray((pmax, 1), dtype=grad.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    blocks = (columns + pmax - 1) // pmax
    weight_sums = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.psum)
    bias_sums = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.psum)
    parts = None
    if cores > 1:
        shape = (cores, pmax, 2 * blocks)
        parts = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
    first, last = share_of(rows, cores)
    return Work(
        x, grad, dx, source, first, last, ones, weight_sums, bias_sums, parts, [], no_tiles(), [],
        [],
    )  # fmt: skip


def _differentiate(work: Work, weight: nl.NkiTensor, lag: int, late: int) -> None:
    """All tiles, and what they add up to, which programs have exchanged then."""
    pmax, columns = nl.tile_size.pmax, work.x.shape[1]
    count = (work.last - work.first + pmax - 1) // pmax
    if count == 0:
        exchange_sums(work.parts, work.weight_sums, work.bias_sums, 0)
        return
    for step in range(count + late):
        if step < count:
            _begin(work, weight, step)
        _sum_rows(work, step, count, lag)
        if step == min(count, count + late - 1):
            exchange_sums(work.parts, work.weight_sums, work.bias_sums, columns)
        i = step - late
        if i >= 0:
            finish(work.dx, work.first + i * pmax, work.tiles[i], work.lines[i])


def _begin(work: Work, weight: nl.NkiTensor, step: int) -> None:
    """The products of a tile, and the sums over its rows."""
    pmax = nl.tile_size.pmax
    start = work.first + step * pmax
    end = min(work.last, start + pmax)
    data, gradient = load_tile(work.x[start:end]), load_tile(work.grad[start:end])
    if step == 0:
        work.weights.append(load_vector(weight))
    rows = statistics_of(work.source, start, end, work.last)
    work.tiles.append(begin(data, gradient, work.weights[0], rows))
    add_up(work.bias_sums, gradient, work.ones, step > 0)
    add_up(work.weight_sums, work.tiles[step].product, rows.rstd, step > 0)
    work.totals.append(nl.ndarray((end - start, 2), dtype=nl.float32, buffer=nl.sbuf))


def _sum_rows(work: Work, step: int, count: int, lag: int) -> None:
    """The sums of the rows of the newest of `count` tiles, and the line of the one `lag` before:
    ScalarE computes it where it need not wait for the sums."""
    is_new = step < count
    i = step - lag
    is_due = i >= 0 and i < count
    if is_due and lag > 1:
        line_of(work.lines[i], work.tiles[i], work.totals[i])
    if is_new:
        tile = work.tiles[step]
        sum_up(work.totals[step][:, 0:1], tile.weighted)
        share = _share(step, lag, count <= _FEW)
        work.lines.append(weigh(tile.product, work.weights[0], share))
    if is_due and lag == 1:
        bend, level = begin_line(work.tiles[i], work.totals[i])
    if is_new:
        sum_up(work.totals[step][:, 1:2], work.lines[step])
    if is_due and lag == 1:
        end_line(work.lines[i], work.tiles[i], bend, level)
    if is_due and lag == 0:
        line_of(work.lines[i], work.tiles[i], work.totals[i])


def _share(number: int, lag: int, few: bool) -> int:
    """VectorE's percent of the columns of a tile that it and GpSimd weigh. Short rows are weighed
    by one of both as a whole: by VectorE in every third tile, and in most of a `few`, for which
    GpSimd would be late."""
    if lag < 2:
        return _ON_VECTOR_OF_FEW if few else _ON_VECTOR
    by_vector = number % 3 == 0 or (few and number % 3 == 1)
    return 100 if by_vector else 0


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, all three gradients, and the size of a row."""
    if b.weight is None or b.bias is None or list(b.output_mask) != [True, True, True]:
        return Reject("only the gradients of input, weight and bias together are computed")
    if reject := reject_dtypes(b, *_TENSORS):
        return reject
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no rows")
    if b.bias.dtype != b.weight.dtype:
        return Reject(f"weight is {b.weight.dtype} and bias {b.bias.dtype}")
    columns = math.prod(b.normalized_shape)
    if not run_of(columns, hw, _ROW_BYTES, _VECTOR_BYTES):
        return Reject(f"a row of {columns} elements does not fit in a partition of SBUF")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Neither the bias nor the numbers are read; tiles overlap as far as they fit."""
    columns = math.prod(b.normalized_shape)
    if _is_turned(b, columns, hw):
        on_vector = next(percent for most, percent in _ON_VECTOR_OF_TURNED if columns <= most)
        if b.x.dtype == torch.float16:
            on_vector = _ALL
        plan = (max(1, _CHUNK // columns), on_vector, _ON_TENSOR)
        launch = Launch.of(turned_layer_norm_backward_kernel, b, _TENSORS, *plan)
        return replace(launch, unknown_trips=0)
    room = hw.sbuf_partition_bytes * 15 // 16
    for lags, halves, floats in _LAGS:
        if columns * (halves if b.x.dtype.itemsize < 4 else floats) <= room:
            return Launch.of(layer_norm_backward_kernel, b, _TENSORS, *lags)
    return Launch.of(layer_norm_backward_kernel, b, _TENSORS, 0, 0)


def _is_turned(b: Bindings, columns: int, hw: Hardware) -> bool:
    """Whether TensorE multiplies with the weight: where whole blocks fit, and the stages pay."""
    if hw.generation < 3 or b.x.dtype.itemsize != 2:
        return False
    if b.grad.dtype != b.x.dtype or b.weight.dtype != b.x.dtype:
        return False
    if columns % hw.partitions or not _LEAST_COLUMNS <= columns <= _MOST_COLUMNS:
        return False
    one, each = next(least for most, *least in _TURNED if columns <= most)
    least = one if hw.cores == 1 else each
    elements = b.x.numel // hw.cores
    return bool(least <= elements <= _MOST_ROWS * columns)


def cost(b: Bindings) -> Cost:
    """Fourteen operations an element, and the sums over partitions."""
    columns = math.prod(b.normalized_shape)
    crossing = sum(b[name].nbytes for name in _TENSORS)
    return Cost(
        matmul_flops=2 * 2 * 128 * columns,
        vector_flops=14 * b.x.numel,
        hbm_bytes=crossing + b.x.nbytes + 2 * b.weight.nbytes,
    )


def reference(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: list[bool],
) -> Any:
    """aten.native_layer_norm_backward in float32, rounded once."""
    wide = [None if t is None else t.float() for t in (grad, x, mean, rstd, weight, bias)]
    found = aten.native_layer_norm_backward.default(
        wide[0], wide[1], normalized_shape, *wide[2:], output_mask
    )
    kinds = [x, weight, bias]
    return tuple(
        None if f is None or k is None else f.to(k.dtype) for f, k in zip(found, kinds, strict=True)
    )


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, several dimensions, halves."""

    def sample(note: str, *shape: int, dims: int = 1, dtype: torch.dtype = torch.float32) -> Sample:
        normal = list(shape[len(shape) - dims :])
        grad, x = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        weight, bias = (torch.randn(normal, generator=generator).to(dtype) for _ in range(2))
        _, mean, rstd = aten.native_layer_norm.default(x, normal, weight, bias, 1e-5)
        values = {
            "grad": grad,
            "x": x,
            "normalized_shape": normal,
            "mean": mean,
            "rstd": rstd,
            "weight": weight,
            "bias": bias,
            "output_mask": [True, True, True],
        }
        return Sample(values, note)

    for rows in (1, 127, 128, 129, 513):
        yield sample(f"{rows} rows", rows, 70)
    yield sample("more tiles than one DMA has statistics of", 8400, 8)
    for columns in (8, 511, 513, 2500):
        yield sample(f"{columns} columns", 130, columns)
    yield sample("two dimensions", 7, 20, 30, dims=2)
    yield sample("a batch", 3, 50, 70)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 2, 70, 600, dtype=dtype)


def _pattern(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: list[bool],
) -> Any:
    return aten.native_layer_norm_backward.default(
        grad, x, normalized_shape, mean, rstd, weight, bias, output_mask
    )


register(
    KernelSpec(
        name="layer_norm_backward",
        patterns=(Pattern(_pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=layer_norm_backward_kernel,
        launch=launch,
    )
)
