"""`column_sum`: a sum over leading dimensions, the gradient of biases and of norm weights.

`x[R, N]` (both stand for merged dimensions) is multiplied by a row of ones on TensorE, which sums
over the partitions, in float32 in PSUM. A partition takes consecutive rows, so that loads are long
runs; narrow rows are summed several side by side, to keep TensorE's moving side wide. More than a
few rows of float32 are added up in pairs within their partition, and in parts over the partitions
(`_float_parts.py`). A few long rows would leave most partitions empty: there the columns lie on the
partitions, and VectorE sums. float32, bfloat16, float16.
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
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._float_parts import add_sums, parts_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_LOAD_BYTES = 16384  # per partition
_WIDTH = 2048  # columns of one load: four PSUM banks
_PLAIN = 16  # rows of float32, of which a plain product loses no more than eager
_FEW = 32  # rows
_LONG_ROW = 4096  # columns: 32 in a partition
aten = torch.ops.aten


@nki.jit
def column_sum_kernel(
    x: nl.NkiTensor,
    out_shape: tuple[int, ...],
    columns: int,
    width: int,
    run: int,
    side: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[..., columns]` -> `out_shape`, which has `columns` elements.

    `width` columns at a time, `run` rows per partition and load, `side` rows side by side. `cores`
    share the columns.
    """
    pmax = nl.tile_size.pmax
    out = nl.ndarray(out_shape, dtype=x.dtype, buffer=nl.shared_hbm)
    flat = x.reshape((x.size // columns, columns))
    narrow = nl.bfloat16 if x.dtype == nl.float32 and flat.shape[0] > _PLAIN else x.dtype
    ones = nl.ndarray((pmax, 1), dtype=narrow, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    first, end = share_of(columns, cores)
    for col in range(first, end, width):
        cols = min(width, end - col)
        total = _sum_columns(flat[:, col : col + cols], ones, run, side, out.dtype)
        nisa.dma_copy(dst=out.reshape((1, columns))[:, col : col + cols], src=total)
    return out


def _sum_columns(
    x: nl.NkiTensor, ones: nl.NkiTensor, run: int, side: int, dtype: str
) -> nl.NkiTensor:
    """The sum over rows of `x[rows, cols]` in HBM as `[1, cols]` in SBUF."""
    pmax = nl.tile_size.pmax
    rows, cols = x.shape
    sums = _new_banks(side, cols)
    more = _new_banks(side, cols) if ones.dtype != x.dtype else []
    done = 0
    while done < rows:
        partitions = min(pmax, rows - done)
        length = min(run, (rows - done) // partitions)
        count = partitions * length
        data = nl.ndarray((partitions, length, cols), dtype=x.dtype, buffer=nl.sbuf)
        source = x[done : done + count].reshape_dim(0, (partitions, length))
        nisa.dma_copy(dst=data, src=source)
        if len(more) > 0:
            added = _add_pairs(data)
            parts = parts_of(added, nisa.engine.gpsimd)
            _add_rows(sums, parts.first, ones, side)
            for part in parts.more:
                _add_rows(more, part, ones, side)
        else:
            _add_rows(sums, data, ones, side)
        done = done + count
    total = nl.ndarray((1, cols), dtype=dtype, buffer=nl.sbuf)
    for j in range(len(sums)):
        first = j * nl.tile_size.psum_bank_fmax
        part = total[:, first : first + sums[j].shape[2]]
        if len(more) > 0:
            add_sums(part, sums[j][:, 0, :], more[j][:, 0, :])
        elif side == 1:
            nisa.tensor_copy(dst=part, src=sums[j][:, 0, :])
        else:
            nisa.tensor_reduce(dst=part, op=nl.add, data=sums[j].permute((0, 2, 1)), axis=2)
    return total


def _new_banks(side: int, cols: int) -> list[nl.NkiTensor]:
    """Banks of PSUM `[1, side, width]` for the sums of `cols` columns."""
    bank = nl.tile_size.psum_bank_fmax
    banks = []
    for left in range(0, cols, bank):
        shape = (1, side, min(bank, cols - left))
        banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    return banks


def _add_rows(sums: list[nl.NkiTensor], data: nl.NkiTensor, ones: nl.NkiTensor, side: int) -> None:
    """`sums` += the rows of `data[partitions, rows, columns]`, `side` of them side by side."""
    bank = nl.tile_size.psum_bank_fmax
    partitions, rows, _ = data.shape
    for i in range(0, rows, side):
        n = min(side, rows - i)
        for j in range(len(sums)):
            width = sums[j].shape[2]
            nisa.nc_matmul(
                dst=sums[j][:, 0:n, :],
                stationary=ones[0:partitions],
                moving=data[:, i : i + n, j * bank : j * bank + width],
                is_stationary_onezero=True,
            )


def _add_pairs(data: nl.NkiTensor) -> nl.NkiTensor:
    """`[partitions, 1, columns]`: float32 rows of each partition added up in pairs, which loses
    little, so that there is less to split. Half of the work is the first step, by VectorE."""
    partitions, rows, columns = data.shape
    engine = nisa.engine.vector
    while rows > 1:
        half = rows // 2
        added = nl.ndarray((partitions, half, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(
            dst=added, data1=data[:, 0:half], data2=data[:, half : 2 * half], op=nl.add,
            engine=engine,
        )  # fmt: skip
        if rows % 2 == 1:
            one, last = added[:, 0], data[:, rows - 1]
            nisa.tensor_tensor(dst=one, data1=one, data2=last, op=nl.add, engine=engine)
        data = added
        rows = half
        engine = nisa.engine.gpsimd
    return data


@nki.jit
def few_rows_kernel(
    x: nl.NkiTensor, out_shape: tuple[int, ...], columns: int, width: int, cores: int = 1
) -> nl.NkiTensor:
    """x `[..., columns]` -> `out_shape`; at most `width` columns in a partition at a time. `cores`
    share the columns."""
    pmax = nl.tile_size.pmax
    out = nl.ndarray(out_shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.size // columns
    flat = x.reshape((rows, columns))
    line = out.reshape((columns,))
    done, last = share_of(columns, cores)
    while done < last:
        cols = min(width, (last - done + pmax - 1) // pmax)
        partitions = min(pmax, (last - done) // cols)
        end = done + partitions * cols
        data = nl.ndarray((partitions, rows, cols), dtype=x.dtype, buffer=nl.sbuf)
        source = flat[:, done:end].reshape_dim(1, (partitions, cols))
        nisa.dma_copy(dst=data, src=source.permute((1, 0, 2)))
        total = nl.ndarray((partitions, cols), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=data.permute((0, 2, 1)), axis=2)
        nisa.dma_copy(dst=line[done:end].reshape_dim(0, (partitions, cols)), src=total)
        done = end
    return out


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """The reduced dimensions are the first ones, and at least one is left, and in memory no reduced
    one is the last: generated kernels add along rows as they lie, this one copies x first."""
    del hw
    if reject := reject_dtypes(b, "x"):
        return reject
    if sorted(b.dims) != list(range(len(b.dims))) or not b.dims:
        return Reject(f"dims {list(b.dims)} are not the leading dimensions of x{b.x.shape}")
    if len(b.dims) >= b.x.ndim:
        return Reject(f"a sum over all dimensions of x{b.x.shape} leaves no columns")
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} is empty")
    if any(b.x.shape[d] > 1 and b.x.strides[d] == 1 for d in b.dims):
        columns = range(len(b.dims), b.x.ndim)
        if all(b.x.strides[d] > 1 for d in columns if b.x.shape[d] > 1):
            return Reject(f"x{b.x.shape} lies in memory along what is reduced")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Sizes of loads, and how many narrow rows lie side by side in a bank."""
    lead = len(b.dims)
    columns = math.prod(b.x.shape[lead:])
    rows = b.x.numel // columns
    kept = (1,) * lead if b.keepdim else ()
    shape = kept + b.x.shape[lead:]
    if rows <= _FEW and columns >= _LONG_ROW:
        width = _LOAD_BYTES // b.x.dtype.itemsize // rows
        return Launch.of(few_rows_kernel, b, ("x",), shape, columns, width)
    is_wide = b.x.dtype == torch.float32 and rows > _PLAIN  # its parts have sums of their own
    width = min(-(-columns // hw.cores), _WIDTH // 2 if is_wide else _WIDTH)
    side = 1 if is_wide else max(1, min(float32_per_bank(hw) // width, rows // hw.partitions))
    run = max(1, _LOAD_BYTES // (width * b.x.dtype.itemsize) // side) * side
    return Launch.of(column_sum_kernel, b, ("x",), shape, columns, width, run, side)


def cost(b: Bindings) -> Cost:
    """One multiply-add per element; of float32 an addition, most of them before the products."""
    columns = math.prod(b.x.shape[len(b.dims) :])
    return Cost(
        matmul_flops=2 * b.x.numel,
        vector_flops=columns,
        hbm_bytes=b.x.nbytes + columns * b.x.dtype.itemsize,
    )


def reference(x: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    """The same in float32, rounded once."""
    return x.float().sum(dims, keepdim).to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of both sizes, narrow and wide rows, kept dimensions."""

    def sample(
        note: str,
        *shape: int,
        lead: int = 1,
        keepdim: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).to(dtype)
        return Sample({"x": x, "dims": list(range(lead)), "keepdim": keepdim}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", size, 70)
        yield sample(f"{size} columns", 300, size)
    yield sample("wide", 140, 2500)
    yield sample("many narrow rows", 3000, 3)
    yield sample("a batch", 3, 50, 70, lead=2)
    yield sample("kept dimensions", 3, 50, 70, lead=2, keepdim=True)
    yield sample("two dimensions stay", 7, 50, 30, keepdim=True)
    yield sample("few long rows", 2, 1, 70, 130, lead=2, keepdim=True)
    yield sample("few rows in several loads", 32, 128 * 130 + 5, dtype=torch.float16)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 300, 130, dtype=dtype)


def _sum(x: torch.Tensor, dims: list[int], keepdim: bool) -> Any:
    return aten.sum.dim_IntList(x, dims, keepdim)


register(
    KernelSpec(
        name="column_sum",
        patterns=(Pattern(_sum),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=column_sum_kernel,
        launch=launch,
    )
)
