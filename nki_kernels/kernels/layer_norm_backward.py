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
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import is_first, is_last, share_of, sum_of_parts
from trnx.nki_kernels.kernels._layer_norm_gradients import (
    Source,
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
from trnx.nki_kernels.kernels._rows import load_vector, run_of, store_late
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
# Where products turn the gradient: of rows up to so many columns, the elements of a core from which
# on that is faster, and the percent of the turned blocks that ScalarE copies, and of the columns
# whose sums it takes, by schedule.
_TURNED = ((1024, 4 << 20, (70, 30)), (4096, 2 << 20, (100, 10)))
_CHUNK = 3072  # elements of a partition of a chunk
_LEAST_COLUMNS, _MOST_COLUMNS = 512, 4096  # PSUM has room for the sums of so many
_MOST_ROWS = 1 << 16  # of a core; SBUF keeps the sums of all
aten = torch.ops.aten


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
    pmax = nl.tile_size.pmax
    columns = weight.size
    rows = x.size // columns
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dweight = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    dbias = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    ones = nl.ndarray((pmax, 1), dtype=grad.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    blocks = (columns + pmax - 1) // pmax
    weight_sums = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.psum)
    bias_sums = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.psum)
    source = Source(mean.reshape((rows,)), rstd.reshape((rows,)), columns, lag == 1, [])
    parts = None
    if cores > 1:
        shape = (cores, pmax, 2 * blocks)
        parts = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
    weights = []  # type: list[nl.NkiTensor]
    tiles = no_tiles()
    totals = []  # type: list[nl.NkiTensor]
    spare = []  # type: list[nl.NkiTensor]
    first, last = share_of(rows, cores)
    count = (last - first + pmax - 1) // pmax
    if count == 0 and parts is not None:
        _exchange(parts, weight_sums, bias_sums, 0)
    for step in range(count + late if count > 0 else 0):
        if step < count:
            start, end = first + step * pmax, min(last, first + (step + 1) * pmax)
            data = load_tile(x.reshape((rows, columns))[start:end])
            gradient = load_tile(grad.reshape((rows, columns))[start:end])
            if step == 0:
                weights.append(load_vector(weight))
            of_rows = statistics_of(source, start, end, last)
            tiles.append(begin(data, gradient, weights[0], of_rows))
            _add_up(bias_sums, gradient, ones, step > 0)
            _add_up(weight_sums, tiles[step].product, of_rows.rstd, step > 0)
            totals.append(nl.ndarray((end - start, 2), dtype=nl.float32, buffer=nl.sbuf))
        i = step - lag
        is_due = i >= 0 and i < count
        if is_due and lag > 1:
            line_of(spare[i], tiles[i], totals[i])
        if step < count:
            sum_up(totals[step][:, 0:1], tiles[step].weighted)
            share = _share(step, lag, count <= _FEW)
            spare.append(weigh(tiles[step].product, weights[0], share))
        if is_due and lag == 1:
            bend, level = begin_line(tiles[i], totals[i])
        if step < count:
            sum_up(totals[step][:, 1:2], spare[step])
        if is_due and lag == 1:
            end_line(spare[i], tiles[i], bend, level)
        if lag == 0:
            line_of(spare[step], tiles[step], totals[step])
        if parts is not None and step == min(count, count + late - 1):
            _exchange(parts, weight_sums, bias_sums, columns)
        i = step - late
        if i >= 0:
            finish(dx, first + i * pmax, tiles[i], spare[i])
    if parts is not None:
        total = sum_of_parts(parts)
        weight_sums, bias_sums = total[:, 0:blocks], total[:, blocks : 2 * blocks]
    if is_first():
        _store_sums(dweight.reshape((columns,)), weight_sums)
    if is_last(cores):
        _store_sums(dbias.reshape((columns,)), bias_sums)
    return dx, dweight, dbias


def _add_up(
    sums: nl.NkiTensor, data: nl.NkiTensor, factors: nl.NkiTensor, is_started: bool
) -> None:
    """sums[c % 128, c // 128] += the sum of data[:, c] * factors."""
    rows, columns = data.shape
    pmax = nl.tile_size.pmax
    for i in range(sums.shape[1]):
        start, end = i * pmax, min(columns, (i + 1) * pmax)
        nisa.nc_matmul(
            dst=sums[0 : end - start, i : i + 1], stationary=data[:, start:end],
            moving=factors[0:rows], accumulate=is_started,
        )  # fmt: skip


def _share(number: int, lag: int, few: bool) -> int:
    """VectorE's percent of the columns of a tile that it and GpSimd weigh. Short rows are weighed
    by one of both as a whole: by VectorE in every third tile, and in most of a `few`, for which
    GpSimd would be late."""
    if lag < 2:
        return _ON_VECTOR_OF_FEW if few else _ON_VECTOR
    by_vector = number % 3 == 0 or (few and number % 3 == 1)
    return 100 if by_vector else 0


def _exchange(
    parts: nl.NkiTensor, weight_sums: nl.NkiTensor, bias_sums: nl.NkiTensor, columns: int
) -> None:
    """This program's sums of `columns` side by side in its part of `parts`, zeros if there are
    none, and a barrier, of TensorE, which has nothing else to do then."""
    partitions, blocks = weight_sums.shape
    own = nl.ndarray((partitions, 2, blocks), dtype=nl.float32, buffer=nl.sbuf)
    whole, rest = columns // partitions, columns % partitions
    if whole < blocks:
        nisa.memset(dst=own, value=0.0)
    for i, sums in ((0, weight_sums), (1, bias_sums)):
        if whole > 0:
            nisa.tensor_copy(dst=own[:, i, 0:whole], src=sums[:, 0:whole])
        if rest > 0:
            nisa.tensor_copy(dst=own[0:rest, i, whole:blocks], src=sums[0:rest, whole:blocks])
    nisa.dma_copy(
        dst=parts[nl.program_id(0)], src=own.reshape((partitions, 2 * blocks)),
        dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync,
    )  # fmt: skip
    nisa.core_barrier(parts, (0, 1), engine=nisa.engine.tensor)


def _store_sums(dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """dst[c] = sums[c % 128, c // 128]"""
    pmax, blocks = sums.shape
    columns = dst.shape[0]
    whole = columns // pmax
    rounded = nl.ndarray((pmax, blocks), dtype=dst.dtype, buffer=nl.sbuf)
    if whole > 0:
        nisa.tensor_copy(dst=rounded[:, 0:whole], src=sums[:, 0:whole])
        target = dst[0 : whole * pmax].reshape((whole, pmax)).permute((1, 0))
        store_late(target, rounded[:, 0:whole])
    if whole < blocks:
        rest = columns - whole * pmax
        nisa.tensor_copy(dst=rounded[0:rest, whole:blocks], src=sums[0:rest, whole:blocks])
        target = dst[whole * pmax : columns].reshape((rest, 1))
        store_late(target, rounded[0:rest, whole:blocks])


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
        shares = next(pair for most, _, pair in _TURNED if columns <= most)
        plan = (max(1, _CHUNK // columns), *shares)
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
    least = next(elements for most, elements, _ in _TURNED if columns <= most)
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
