"""`bmm`: `a[B, M, K] @ b[B, K, N]` for any strides, with float32 sums and one rounding.

Small matrices share instructions: the rows of a group of batches are loaded, transposed and stored
together, and their products share PSUM banks. Large ones run one batch at a time as blocked
products. float32, bfloat16, float16.
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
from trnx.nki_kernels.kernels._blocking import (
    COLUMNS,
    block_sizes,
    float32_per_bank,
    leading_dims_merge,
    operand_layout,
    part_sizes,
    shares_rows,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._matmul import Blocks, Part, multiply, own_part, product
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue
from trnx.nki_kernels.kernels._operands import MatmulOperand, load_operand, segments_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

_GROUP_BYTES = 32768  # of both operands of a group, per partition
_LARGEST_GROUP = 32
_MANY = 16  # batches that cores share whatever their number
aten = torch.ops.aten


@nki.jit
def bmm_kernel(
    a: nl.NkiTensor,
    b: nl.NkiTensor,
    a_layout: str,
    a_merged: bool,
    b_layout: str,
    b_merged: bool,
    group: int,
    block_rows: int,
    block_columns: int,
    block_depth: int,
    keep: bool,
    by_batch: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """a `[B, M, K]`, b `[B, K, N]` -> `[B, M, N]`; `group` batches together, 0: one by one. `cores`
    share the batches if `by_batch`, else each product."""
    out = nl.ndarray((a.shape[0], a.shape[1], b.shape[2]), dtype=a.dtype, buffer=nl.shared_hbm)
    w = b.permute((0, 2, 1))
    start, end = 0, a.shape[0]
    part = own_part(a.shape[1], b.shape[2], cores)
    if by_batch:
        start, end = share_of(a.shape[0], cores)
        part = Part(0, a.shape[1], 0, b.shape[2])
    if group == 0:
        for one in range(start, end):
            product(
                out[one],
                MatmulOperand([a[one]], a_layout),
                MatmulOperand([w[one]], b_layout),
                Blocks(block_rows, block_columns, block_depth, keep),
                Epilogue(None, None, "none"),
                part,
                [],
            )
        return out
    for first in range(start, end, group):
        count = min(group, end - first)
        data = _load_group(a, a_layout, a_merged, first, count)
        weights = _load_group(w, b_layout, b_merged, first, count)
        _multiply_group(out[first : first + count], data, weights, a.shape[2])
    return out


def _load_group(
    tensor: nl.NkiTensor, layout: str, merged: bool, first: int, count: int
) -> nl.NkiTensor:
    """`tensor[first .. first+count, rows, K]` as `[128, chunks, count*rows]` in SBUF."""
    rows = tensor.shape[1]
    depth = tensor.shape[2]
    if layout == COLUMNS and depth <= nl.tile_size.pmax:
        dst = nl.ndarray((depth, count, rows), dtype=tensor.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=dst, src=tensor[first : first + count].permute((2, 0, 1)))
        return dst.reshape((depth, 1, count * rows))
    operand = MatmulOperand(segments_of(tensor, merged), layout)
    return load_operand(operand, first * rows, count * rows, 0, depth)


def _multiply_group(
    out: nl.NkiTensor, data: nl.NkiTensor, weights: nl.NkiTensor, depth: int
) -> None:
    """`out[count, M, N]`: as many batches as fit share a PSUM bank and its eviction."""
    pmax = nl.tile_size.pmax
    count, rows, cols = out.shape
    in_bank = max(1, nl.tile_size.psum_bank_fmax // cols)
    for start in range(0, rows, pmax):
        height = min(pmax, rows - start)
        tile = nl.ndarray((height, count, cols), dtype=out.dtype, buffer=nl.sbuf)
        for first in range(0, count, in_bank):
            batches = min(in_bank, count - first)
            bank = nl.ndarray((height, batches, cols), dtype=nl.float32, buffer=nl.psum)
            for i in range(batches):
                row = (first + i) * rows + start
                multiply(bank[:, i, :], data, row, weights, (first + i) * cols, depth)
            nisa.tensor_copy(dst=tile[:, first : first + batches, :], src=bank)
        nisa.dma_copy(dst=out[:, start : start + height, :].permute((1, 0, 2)), src=tile)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Any sizes but zero, any strides, one dtype."""
    del hw
    if reject := reject_dtypes(b, "a"):
        return reject
    if b.b.dtype != b.a.dtype:
        return Reject(f"a is {b.a.dtype} but b is {b.b.dtype}; one dtype is needed")
    if b.a.ndim != 3 or b.b.ndim != 3 or b.a.shape[0] != b.b.shape[0]:
        return Reject(f"a{b.a.shape} and b{b.b.shape} are not two batches of equal size")
    if b.a.shape[2] != b.b.shape[1]:
        return Reject(f"the contraction of a{b.a.shape} and b{b.b.shape} differs in size")
    if b.a.numel == 0 or b.b.numel == 0:
        return Reject(f"an empty product: a{b.a.shape}, b{b.b.shape}")
    return None


def _group(batch: int, rows: int, columns: int, depth: int, itemsize: int, hw: Hardware) -> int:
    """How many batches to load together; 0 where one fills the budget, or a bank, alone."""
    per_batch = (rows + columns) * -(-depth // hw.partitions) * itemsize
    if columns > float32_per_bank(hw) or per_batch > _GROUP_BYTES:
        return 0
    return min(batch, _GROUP_BYTES // per_batch, _LARGEST_GROUP)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides allow, and group or block sizes."""
    (batch, rows, depth), columns = b.a.shape, b.b.shape[2]
    strides = (b.b.strides[0], b.b.strides[2], b.b.strides[1])
    w = TensorSpec((batch, columns, depth), b.b.dtype, strides)
    itemsize = b.a.dtype.itemsize
    group = _group(-(-batch // hw.cores), rows, columns, depth, itemsize, hw)
    # Odd batches that are few would leave a core idle for a long time.
    by_batch = group > 0 or batch % hw.cores == 0 or batch > _MANY
    part_rows, part_columns = rows, columns
    if not by_batch:
        by_rows = shares_rows(rows, columns)
        part_rows, part_columns = part_sizes(rows, columns, hw.cores, by_rows)
    constants = (
        *(operand_layout(b.a, hw), leading_dims_merge(b.a)),
        *(operand_layout(w, hw), leading_dims_merge(w)),
        group,
        *block_sizes(part_rows, part_columns, depth, itemsize, hw),
        by_batch,
    )
    return Launch.of(bmm_kernel, b, ("a", "b"), *constants)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; every operand crosses HBM once."""
    (batch, rows, depth), columns = b.a.shape, b.b.shape[2]
    result = batch * rows * columns
    return Cost(
        matmul_flops=2 * result * depth,
        vector_flops=result,
        hbm_bytes=b.a.nbytes + b.b.nbytes + result * b.a.dtype.itemsize,
    )


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same in float32, rounded once."""
    return torch.bmm(a.float(), b.float()).to(a.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, groups and blocks, every layout."""

    def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def sample(note: str, a: torch.Tensor, b: torch.Tensor) -> Sample:
        return Sample({"a": a / math.sqrt(a.shape[-1]), "b": b}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"M = {size}", values(3, size, 33), values(3, 33, 34))
        yield sample(f"K = {size}", values(3, 34, size), values(3, size, 33))
        yield sample(f"N = {size}", values(3, 34, 33), values(3, 33, size))
    yield sample("one batch", values(1, 40, 50), values(1, 50, 60))
    yield sample("several groups", values(70, 20, 16), values(70, 16, 24))
    yield sample("a transposed", values(5, 64, 40).mT, values(5, 64, 70))
    yield sample("b transposed", values(5, 70, 64), values(5, 40, 64).mT)
    yield sample("both transposed", values(5, 140, 40).mT, values(5, 70, 140).mT)
    yield sample("heads", values(60, 4, 16).transpose(0, 1), values(60, 4, 16).permute(1, 2, 0))
    yield sample("one matrix for all", values(4, 70, 64), values(1, 64, 40).expand(4, 64, 40))
    yield sample("blocks of columns", values(2, 140, 300), values(2, 300, 1100))
    yield sample("deep K", values(2, 20, 8200), values(2, 8200, 20))
    for dtype in (torch.bfloat16, torch.float16):
        case = (values(6, 129, 64, dtype=dtype), values(6, 70, 64, dtype=dtype).mT)
        yield sample(f"{dtype}", *case)


def _bmm(a: torch.Tensor, b: torch.Tensor) -> Any:
    return aten.bmm.default(a, b)


register(
    KernelSpec(
        name="bmm",
        patterns=(Pattern(_bmm),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=bmm_kernel,
        launch=launch,
        strided=frozenset({"a", "b"}),
    )
)
