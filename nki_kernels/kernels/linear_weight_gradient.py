"""`linear_weight_gradient`: the gradients of weight and bias of a linear layer, of one load.

`gradient[R, N]` and `x[R, K]` -> `gradient.T @ x` `[N, K]` and the sums of the gradient's columns,
`[1, N]`. The gradient is in SBUF for the product, with its rows on the partitions; a product of
each of its blocks with a column of ones adds them up. Sums are float32, rounded once. float32,
bfloat16 or float16, one dtype; as many rows as stay in SBUF.
"""

from __future__ import annotations

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
    part_sizes,
    shares_rows,
    stay_in_sbuf,
)
from trnx.nki_kernels.kernels._cores import is_first
from trnx.nki_kernels.kernels._matmul import Blocks, Epilogue, part_of, product
from trnx.nki_kernels.kernels._operands import MatmulOperand
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


@nki.jit
def linear_weight_gradient_kernel(
    gradient: nl.NkiTensor,
    x: nl.NkiTensor,
    block_rows: int,
    block_columns: int,
    block_depth: int,
    by_rows: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """gradient `[R, N]`, x `[R, K]` -> `[N, K]`, `[1, N]`; `cores` share N, or K, and the first
    one adds up."""
    rows = gradient.shape[1]
    columns = x.shape[1]
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray((1, rows), dtype=x.dtype, buffer=nl.shared_hbm)
    part = part_of(rows, columns, by_rows, cores)
    kept = []  # type: list[Any]
    product(
        out,
        MatmulOperand([gradient.permute((1, 0))], COLUMNS),
        MatmulOperand([x.permute((1, 0))], COLUMNS),
        Blocks(block_rows, block_columns, block_depth, True),
        Epilogue(None, None, "none"),
        part,
        kept,
    )
    ones = nl.ndarray((nl.tile_size.pmax, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    line = sums.reshape((rows, 1))
    row = part.row
    if not by_rows and not is_first():
        kept = []
    for block in kept:
        for tile in block.tiles:
            _store_sums(line[row : row + tile.shape[2]], tile, ones, gradient.shape[0])
            row = row + tile.shape[2]
    return out, sums


def _store_sums(dst: nl.NkiTensor, data: nl.NkiTensor, ones: nl.NkiTensor, depth: int) -> None:
    """`dst[rows, 1]` in HBM: the sums over the contraction of `data[128, chunks, rows]`."""
    pmax = nl.tile_size.pmax
    rows = data.shape[2]
    full = rows // pmax
    bank = nl.ndarray(
        (min(rows, pmax), (rows + pmax - 1) // pmax), dtype=nl.float32, buffer=nl.psum
    )
    for start in range(0, rows, pmax):
        count = min(pmax, rows - start)
        for k in range(0, depth, pmax):
            part = min(pmax, depth - k)
            nisa.nc_matmul(
                dst=bank[0:count, start // pmax : start // pmax + 1],
                stationary=data[0:part, k // pmax, start : start + count],
                moving=ones[0:part],
                is_moving_onezero=True,
            )
    total = nl.ndarray(bank.shape, dtype=dst.dtype, buffer=nl.sbuf)
    if full > 0:
        nisa.tensor_copy(dst=total[:, 0:full], src=bank[:, 0:full])
        whole = dst[0 : full * pmax].reshape_dim(0, (full, pmax))
        nisa.dma_copy(dst=whole.permute((1, 0, 2)), src=total[:, 0:full].expand_dim(2))
    if rows % pmax > 0:
        rest = total[0 : rows % pmax, full : full + 1]
        nisa.tensor_copy(dst=rest, src=bank[0 : rows % pmax, full : full + 1])
        nisa.dma_copy(dst=dst[full * pmax : rows], src=rest)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, and a core's part of the gradient stays in SBUF beside blocks of x."""
    if reject := reject_dtypes(b, "gradient", "x"):
        return reject
    if b.gradient.dtype != b.x.dtype:
        return Reject(f"gradient is {b.gradient.dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.gradient.ndim != 2 or b.x.ndim != 2 or b.gradient.shape[0] != b.x.shape[0]:
        return Reject(f"gradient{b.gradient.shape} and x{b.x.shape} are not rows of one batch")
    if b.gradient.numel == 0 or b.x.numel == 0:
        return Reject(f"an empty product: gradient{b.gradient.shape}, x{b.x.shape}")
    depth = b.x.shape[0]
    rows, _ = _part(b, hw)
    is_deep = block_sizes(*_part(b, hw), depth, b.x.dtype.itemsize, hw)[2] < depth
    if is_deep or not stay_in_sbuf(rows, depth, b.x.dtype.itemsize, hw):
        return Reject(f"gradient{b.gradient.shape} does not stay in SBUF")
    return None


def _part(b: Bindings, hw: Hardware) -> tuple[int, int]:
    """Rows and columns of a core's part of the weight's gradient."""
    return part_sizes(b.gradient.shape[1], b.x.shape[1], hw.cores, _by_rows(b))


def _by_rows(b: Bindings) -> bool:
    """Whether cores share its rows."""
    return shares_rows(b.gradient.shape[1], b.x.shape[1])


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The block sizes."""
    sizes = block_sizes(*_part(b, hw), b.x.shape[0], b.x.dtype.itemsize, hw)
    given = (*sizes[:3], _by_rows(b))
    return Launch.of(linear_weight_gradient_kernel, b, ("gradient", "x"), *given)


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add and per addend; every operand crosses HBM once."""
    rows, columns = b.gradient.shape[1], b.x.shape[1]
    return Cost(
        matmul_flops=2 * b.gradient.numel * (columns + 1),
        vector_flops=rows * (columns + 1),
        hbm_bytes=b.gradient.nbytes + b.x.nbytes + rows * (columns + 1) * b.x.dtype.itemsize,
    )


def reference(gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float32, rounded once."""
    wide = gradient.float()
    return (wide.T @ x.float()).to(x.dtype), wide.sum(0, keepdim=True).to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged rows, columns and K, several blocks."""

    def sample(
        note: str, rows: int, columns: int, depth: int, dtype: torch.dtype = torch.float32
    ) -> Sample:
        gradient = torch.randn(depth, rows, generator=generator).to(dtype)
        return Sample(
            {"gradient": gradient, "x": torch.randn(depth, columns, generator=generator).to(dtype)},
            note,
        )

    for size in (1, 2, 127, 128, 129, 300):
        yield sample(f"{size} rows", size, 66, 130)
        yield sample(f"{size} columns", 66, size, 65)
        yield sample(f"a batch of {size}", 300, 70, size)
    yield sample("more rows than a block", 1100, 40, 64)
    yield sample("several columns of banks", 600, 1100, 130)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 390, 140, 300, dtype)


def _gradients(gradient: torch.Tensor, x: torch.Tensor) -> Any:
    turned = aten.transpose.int(gradient, 0, 1)
    product = aten.linear.default(turned, aten.transpose.int(x, 0, 1), None)
    return product, aten.sum.dim_IntList(gradient, [0], True)


register(
    KernelSpec(
        name="linear_weight_gradient",
        patterns=(Pattern(_gradients),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=linear_weight_gradient_kernel,
        launch=launch,
        fuses=True,
    )
)
