"""`layer_norm_backward`: gradients of layer_norm with respect to its input, weight and bias.

Pattern `aten.native_layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight, bias, mask)`
with all three gradients wanted; float32, bfloat16 or float16, float32 inside. TensorE adds the
gradients of weight and bias up in PSUM, over the rows of all tiles; ScalarE centres and sums rows
up, VectorE and GpSimd multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import is_first, share_of, sum_over_cores
from trnx.nki_kernels.kernels._rows import load_vector, run_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_TENSORS = ("grad", "x", "mean", "rstd", "weight")
# float32 tiles of a row that are live at once, and float32 vectors that all rows share, in bytes.
_ROW_BYTES = 20
_VECTOR_BYTES = 12
# Bytes of a column where three tiles overlap, the weights included.
_OVERLAPPING, _OVERLAPPING_HALVES = 52, 46
# Tiles whose means and rstds one DMA loads: 256 bytes of a partition each.
_TILES_TOGETHER = 64
aten = torch.ops.aten


@nki.jit
def layer_norm_backward_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    mean: nl.NkiTensor,
    rstd: nl.NkiTensor,
    weight: nl.NkiTensor,
    lag: int,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """grad and x of one shape, mean and rstd one value a row -> gradients of x, weight, bias.

    Tiles in three stages; stage s has the tile that is `s * lag` behind the one that is loaded.
    `cores` share the rows.
    """
    pmax = nl.tile_size.pmax
    columns = weight.size
    rows = x.size // columns
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dweight = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    dbias = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    weights = load_vector(weight)
    ones = nl.ndarray((pmax, 1), dtype=grad.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    blocks = (columns + pmax - 1) // pmax
    weight_sums = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.psum)
    bias_sums = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.psum)
    statistics = Statistics(mean.reshape((rows,)), rstd.reshape((rows,)), [])
    gradients = []  # type: list[nl.NkiTensor]
    rstds = []  # type: list[nl.NkiTensor]
    centred = []  # type: list[nl.NkiTensor]
    weighted = []  # type: list[nl.NkiTensor]
    totals = []  # type: list[nl.NkiTensor]
    first, last = share_of(rows, cores)
    tiles = (last - first + pmax - 1) // pmax
    for step in range(tiles + 2 * lag if tiles > 0 else 0):
        if step < tiles:
            start, end = first + step * pmax, min(last, first + (step + 1) * pmax)
            gradients.append(_load(grad.reshape((rows, columns))[start:end], grad.dtype))
            data = _load(x.reshape((rows, columns))[start:end], x.dtype)
            shift, inverse = _statistics_of(statistics, start, end, last)
            rstds.append(inverse)
            centred.append(_centre(data, shift))
            weighted.append(_multiply(gradients[step], weights, nisa.engine.gpsimd))
        i = step - lag
        if i >= 0 and i < tiles:
            product = _multiply(gradients[i], centred[i], nisa.engine.vector)
            _add_up(bias_sums, gradients[i], ones, i > 0)
            _add_up(weight_sums, product, rstds[i], i > 0)
            totals.append(_row_sums(weighted[i], centred[i], i))
        i = step - 2 * lag
        if i >= 0:
            start = first + i * pmax
            _finish(dx, i, start, (centred[i], weighted[i], rstds[i], totals[i]))
    if cores > 1:
        weight_sums, bias_sums = _of_all_cores(weight_sums, bias_sums, columns, tiles > 0, cores)
    if is_first():
        _store_sums(dweight.reshape((columns,)), weight_sums)
        _store_sums(dbias.reshape((columns,)), bias_sums)
    return dx, dweight, dbias


def _load(source: nl.NkiTensor, dtype: str) -> nl.NkiTensor:
    tile = nl.ndarray(source.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


class Statistics(NamedTuple):
    """`mean` and `rstd`, one value a row, in HBM. `group`: the first row of the newest tiles that
    one DMA loaded, their negated means and their rstds, `[128, tiles]`; none at first."""

    mean: nl.NkiTensor
    rstd: nl.NkiTensor
    group: list[tuple[int, nl.NkiTensor, nl.NkiTensor]]


def _statistics_of(
    s: Statistics, start: int, end: int, last: int
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Negated means and rstds `[rows, 1]` of rows `start .. end`; those up to `last` follow."""
    pmax = nl.tile_size.pmax
    if len(s.group) == 0 or start - s.group[0][0] >= pmax * _TILES_TOGETHER:
        until = min(last, start + pmax * _TILES_TOGETHER)
        means = _load_columns(s.mean, start, until)
        shifts = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=shifts, op=nl.copy, data=means, scale=-1.0)
        if len(s.group) > 0:
            s.group.pop()
        s.group.append((start, shifts, _load_columns(s.rstd, start, until)))
    first, shifts, inverses = s.group[0]
    i = (start - first) // pmax
    return shifts[0 : end - start, i : i + 1], inverses[0 : end - start, i : i + 1]


def _load_columns(source: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
    """`[128, tiles]`: rows `start .. end` of a vector, 128 a column; zeros behind the last one."""
    pmax = nl.tile_size.pmax
    whole, rest = (end - start) // pmax, (end - start) % pmax
    tiles = whole + (1 if rest > 0 else 0)
    tile = nl.ndarray((pmax, tiles), dtype=nl.float32, buffer=nl.sbuf)
    middle = start + whole * pmax
    if rest > 0:
        nisa.memset(dst=tile[:, whole:tiles], value=0.0)
        nisa.dma_copy(dst=tile[0:rest, whole:tiles], src=source[middle:end].reshape((rest, 1)))
    if whole > 0:
        src = source[start:middle].reshape((whole, pmax)).permute((1, 0))
        nisa.dma_copy(dst=tile[:, 0:whole], src=src)
    return tile


def _centre(x: nl.NkiTensor, shift: nl.NkiTensor) -> nl.NkiTensor:
    """x + shift in float32, in its place where it is."""
    centred = x
    if x.dtype != nl.float32:
        centred = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=centred, op=nl.copy, data=x, bias=shift)
    return centred


def _multiply(a: nl.NkiTensor, b: nl.NkiTensor, engine: object) -> nl.NkiTensor:
    product = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=a, data2=b[0 : a.shape[0]], op=nl.multiply, engine=engine)
    return product


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


def _row_sums(weighted: nl.NkiTensor, centred: nl.NkiTensor, number: int) -> nl.NkiTensor:
    """`[rows, 2]`: the sums of `weighted` and of weighted * centred. VectorE multiplies in every
    third tile, so that it is as busy as GpSimd.
    """
    engine = nisa.engine.vector if number % 3 == 2 else nisa.engine.gpsimd
    product = _multiply(weighted, centred, engine)
    totals = nl.ndarray((weighted.shape[0], 2), dtype=nl.float32, buffer=nl.sbuf)
    for i, data in ((0, weighted), (1, product)):
        nisa.activation(
            dst=data, op=nl.copy, data=data, reduce_op=nl.add, reduce_res=totals[:, i : i + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
    return totals


def _finish(
    dx: nl.NkiTensor,
    number: int,
    start: int,
    tile: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
) -> None:
    """Store rstd * (weighted - mean(weighted) - centred * rstd^2 * mean(weighted * centred)) of a
    tile (centred, weighted, rstd, row sums). The last product is VectorE's in one tile and
    ScalarE's in the next; VectorE's is none of its fast modes, which would wait for GpSimd.
    """
    centred, weighted, rstd, totals = tile
    rows, columns = centred.shape
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    slope = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    for dst, total in ((shift, totals[:, 0:1]), (slope, totals[:, 1:2])):
        nisa.scalar_tensor_tensor(
            dst=dst, data=rstd, op0=nl.multiply, operand0=-1.0 / columns,
            op1=nl.multiply, operand1=total,
        )  # fmt: skip
    nisa.tensor_tensor(dst=slope, data1=slope, data2=rstd, op=nl.multiply)
    nisa.scalar_tensor_tensor(
        dst=weighted, data=centred, op0=nl.multiply, operand0=slope, op1=nl.add, operand1=weighted
    )
    result = weighted
    if dx.dtype != nl.float32:
        result = nl.ndarray(centred.shape, dtype=dx.dtype, buffer=nl.sbuf)
    if number % 2 == 0:
        nisa.activation(dst=result, op=nl.copy, data=weighted, scale=rstd, bias=shift)
    else:
        nisa.scalar_tensor_tensor(
            dst=result, data=weighted, op0=nl.multiply, operand0=rstd,
            op1=nl.add, operand1=shift.broadcast(1, columns),
        )  # fmt: skip
    flat = dx.reshape((dx.size // columns, columns))
    nisa.dma_copy(dst=flat[start : start + rows], src=result)


def _of_all_cores(
    weight_sums: nl.NkiTensor, bias_sums: nl.NkiTensor, columns: int, has_rows: bool, cores: int
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Both sums `[128, blocks]` of `columns`, added up over the programs in one exchange."""
    partitions, blocks = weight_sums.shape
    own = nl.ndarray((partitions, 2, blocks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=own, value=0.0)
    whole, rest = columns // partitions, columns % partitions
    for i, sums in ((0, weight_sums), (1, bias_sums)):
        if has_rows and whole > 0:
            nisa.tensor_copy(dst=own[:, i, 0:whole], src=sums[:, 0:whole])
        if has_rows and rest > 0:
            nisa.tensor_copy(dst=own[0:rest, i, whole:blocks], src=sums[0:rest, whole:blocks])
    total = sum_over_cores(own.reshape((partitions, 2 * blocks)), cores)
    return total[:, 0:blocks], total[:, blocks : 2 * blocks]


def _store_sums(dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """dst[c] = sums[c % 128, c // 128]"""
    pmax, blocks = sums.shape
    columns = dst.shape[0]
    whole = columns // pmax
    rounded = nl.ndarray((pmax, blocks), dtype=dst.dtype, buffer=nl.sbuf)
    if whole > 0:
        nisa.tensor_copy(dst=rounded[:, 0:whole], src=sums[:, 0:whole])
        target = dst[0 : whole * pmax].reshape((whole, pmax)).permute((1, 0))
        nisa.dma_copy(dst=target, src=rounded[:, 0:whole])
    if whole < blocks:
        rest = columns - whole * pmax
        nisa.tensor_copy(dst=rounded[0:rest, whole:blocks], src=sums[0:rest, whole:blocks])
        target = dst[whole * pmax : columns].reshape((rest, 1))
        nisa.dma_copy(dst=target, src=rounded[0:rest, whole:blocks])


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
    """Neither the bias nor the numbers are read; tiles overlap where three of them fit."""
    columns = math.prod(b.normalized_shape)
    halves = b.x.dtype.itemsize < 4
    row = _OVERLAPPING_HALVES if halves else _OVERLAPPING
    lag = int(columns * row <= hw.sbuf_partition_bytes * 15 // 16)
    return Launch.of(layer_norm_backward_kernel, b, _TENSORS, lag)


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
