"""`trnx::grouped_mm`: the products of a mixture of experts, rows sorted by expert, for any routing.

Where groups end is known at run time only, so every tile of 128 rows is multiplied with every
matrix, and each row keeps the product of its own group: matrices from the last to the first, each
overwriting the rows before its end. Nothing of one group reaches another one's rows, NaN included.
A block of rows stays in SBUF while the matrices stream by once for it. float32, bfloat16, float16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels import canonical_ops  # noqa: F401  registers torch.ops.trnx
from trnx.nki_kernels.kernels._blocking import operand_layout
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._groups import load_ends, masks_before, reject_groups
from trnx.nki_kernels.kernels._matmul import multiply
from trnx.nki_kernels.kernels._operands import MatmulOperand, load_operand
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

_ROW_BYTES = 49152  # of a block of rows, per partition
_MATRIX_BYTES = 16384  # of a block of columns of one matrix, per partition
_TILES = 8  # of 128 rows in a block
_LARGEST_DEPTH = 8192


@nki.jit
def grouped_mm_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    offsets: nl.NkiTensor,
    x_layout: str,
    w_layout: str,
    block_rows: int,
    block_columns: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[S, K]`, weight `[E, K, N]`, offsets `[E]` or `[E, 2]` words -> `[S, N]`.

    `cores` share the columns.
    """
    count, depth = x.shape
    experts, _, columns = weight.shape
    out = nl.ndarray((count, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    matrices = weight.permute((0, 2, 1))
    ends = load_ends(offsets, experts)
    first, end = share_of(columns, cores, nl.tile_size.pmax)
    if first == end:
        count = 0
    for row in range(0, count, block_rows):
        rows = min(block_rows, count - row)
        data = load_operand(MatmulOperand([x], x_layout), row, rows, 0, depth)
        masks = masks_before(ends, row, rows, experts)
        for col in range(first, end, block_columns):
            cols = min(block_columns, end - col)
            _block(out, data, masks, matrices, w_layout, row, rows, col, cols, depth)
    return out


def _block(
    out: nl.NkiTensor,
    data: nl.NkiTensor,
    masks: nl.NkiTensor,
    matrices: nl.NkiTensor,
    layout: str,
    row: int,
    rows: int,
    col: int,
    cols: int,
    depth: int,
) -> None:
    """One block of rows and columns of the result."""
    pmax = nl.tile_size.pmax
    experts = matrices.shape[0]
    tiles = (rows + pmax - 1) // pmax
    results = nl.ndarray((pmax, tiles, cols), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=results, value=0.0)
    for step in range(experts):
        expert = experts - 1 - step
        operand = MatmulOperand([matrices[expert]], layout)
        weights = load_operand(operand, col, cols, 0, depth)
        for tile in range(tiles):
            height = min(pmax, rows - tile * pmax)
            bank = nl.ndarray((height, cols), dtype=nl.float32, buffer=nl.psum)
            multiply(bank, data, tile * pmax, weights, 0, depth)
            mask = masks[0:height, tile, expert : expert + 1]
            nisa.tensor_copy_predicated(
                dst=results[0:height, tile, :], src=bank, predicate=mask.broadcast(1, cols)
            )
    for tile in range(tiles):
        height = min(pmax, rows - tile * pmax)
        rounded = nl.ndarray((height, cols), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=rounded, src=results[0:height, tile, :])
        nisa.dma_copy(dst=out[nl.ds(row + tile * pmax, height), col : col + cols], src=rounded)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Sizes that are not zero, a contraction that fits SBUF, one dtype."""
    del hw
    if reject := reject_groups(b, "weight"):
        return reject
    if b.x.shape[1] > _LARGEST_DEPTH:
        return Reject(f"K = {b.x.shape[1]} is more than {_LARGEST_DEPTH}, which SBUF holds")
    return None


def _blocks(b: Bindings, hw: Hardware) -> tuple[int, int]:
    """Rows and columns of a block."""
    row = -(-b.x.shape[1] // hw.partitions) * b.x.dtype.itemsize
    tiles = max(1, min(_TILES, _ROW_BYTES // (row * hw.partitions)))
    columns = min(512, max(64, _MATRIX_BYTES // row))
    return tiles * hw.partitions, min(columns, b.weight.shape[2])


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The layouts that the strides allow, and block sizes."""
    experts, depth, columns = b.weight.shape
    strides = (b.weight.strides[0], b.weight.strides[2], b.weight.strides[1])
    w = TensorSpec((experts, columns, depth), b.weight.dtype, strides)
    constants = (operand_layout(b.x, hw), operand_layout(w, hw), *_blocks(b, hw))
    return Launch.of(grouped_mm_kernel, b, ("x", "weight", "offsets"), *constants)


def cost(b: Bindings) -> Cost:
    """Every row times every matrix; the matrices cross HBM once for a block of rows."""
    rows, depth = b.x.shape
    experts, _, columns = b.weight.shape
    result = rows * columns
    row = -(-depth // 128) * b.x.dtype.itemsize
    blocks = -(-rows // (128 * max(1, min(_TILES, _ROW_BYTES // (row * 128)))))
    return Cost(
        matmul_flops=2 * result * depth * experts,
        vector_flops=result * experts,
        hbm_bytes=b.x.nbytes + blocks * b.weight.nbytes + result * b.x.dtype.itemsize,
    )


def reference(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The same in float32, rounded once."""
    out: torch.Tensor = torch.ops.trnx.grouped_mm(x.float(), weight.float(), offsets)
    return out.to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, empty groups, rows behind the last group, layouts, values of other groups."""

    def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def sample(note: str, x: torch.Tensor, w: torch.Tensor, *ends: int) -> Sample:
        offsets = torch.tensor(ends, dtype=torch.int32)
        return Sample({"x": x / math.sqrt(x.shape[1]), "weight": w, "offsets": offsets}, note)

    for rows in (1, 127, 128, 129):
        yield sample(f"S = {rows}", values(rows, 40), values(2, 40, 33), rows // 2, rows)
    for depth in (1, 128, 300):
        yield sample(f"K = {depth}", values(50, depth), values(2, depth, 20), 7, 50)
    yield sample("N = 513", values(20, 64), values(2, 64, 513), 3, 20)
    yield sample("empty groups", values(140, 64), values(4, 64, 70), 0, 130, 130, 140)
    yield sample("rows behind the last group", values(140, 64), values(2, 64, 70), 10, 129)
    yield sample("several blocks of rows", values(1100, 40), values(3, 40, 20), 300, 1050, 1100)
    yield sample("weight transposed", values(70, 64), values(3, 40, 64).mT, 10, 20, 70)
    yield sample("x transposed", values(64, 70).t(), values(2, 64, 40), 30, 70)
    not_finite = values(2, 64, 40)
    not_finite[1, 3, 5], not_finite[1, 4, 6] = math.inf, -math.inf
    yield sample("infinities in one matrix", values(60, 64), not_finite, 30, 60)
    yield Sample(
        {
            "x": values(60, 64, dtype=torch.bfloat16) / 8,
            "weight": values(2, 64, 40, dtype=torch.bfloat16),
            "offsets": torch.tensor([30, 60]),
        },
        "bfloat16, int64 offsets",
    )
    yield sample("float16", values(60, 64).half(), values(2, 64, 40).half(), 30, 60)


def _grouped_mm(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> Any:
    return torch.ops.trnx.grouped_mm.default(x, weight, offsets)


register(
    KernelSpec(
        name="grouped_mm",
        patterns=(Pattern(_grouped_mm),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=grouped_mm_kernel,
        launch=launch,
        strided=frozenset({"x", "weight"}),
    )
)
