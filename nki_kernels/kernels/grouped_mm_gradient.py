"""`trnx::grouped_mm_weight_gradient`: `x.T @ grad` of the rows of each group, for any routing.

Rows lie on the partitions, which TensorE contracts, so nothing is transposed. Where groups end is
known at run time only: every tile of 128 rows meets every group, with zeros in place of the rows of
others, in both operands, so that what is not finite stays in its group. float32, bfloat16, float16;
sums are float32, rounded once.
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
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._groups import load_ends, masks_before, reject_groups
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_BANKS = 4  # of PSUM, one for 128 rows of the result each; the next block has the other four
_KEPT_BYTES = 65536  # of a partition, for rows that all groups read


@nki.jit
def grouped_mm_weight_gradient_kernel(
    x: nl.NkiTensor,
    grad: nl.NkiTensor,
    offsets: nl.NkiTensor,
    keeps: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[S, K]`, grad `[S, N]`, offsets `[E]` or `[E, 2]` words -> `[E, K, N]`.

    `keeps`: the rows of a block of results stay in SBUF for all groups. `cores` share the columns.
    """
    pmax = nl.tile_size.pmax
    count, depth = x.shape
    columns = grad.shape[1]
    experts = offsets.shape[0]
    out = nl.ndarray((experts, depth, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    masks = _masks_of_groups(load_ends(offsets, experts), count, experts)
    first, end = share_of(columns, cores, pmax)
    for row in range(0, depth, _BANKS * pmax):
        rows = min(_BANKS * pmax, depth - row)
        for col in range(first, end, nl.tile_size.psum_bank_fmax):
            cols = min(nl.tile_size.psum_bank_fmax, end - col)
            left = x[:, nl.ds(row, rows)]
            right = grad[:, nl.ds(col, cols)]
            tiles: list[tuple[nl.NkiTensor, nl.NkiTensor]] = []
            if keeps:
                for start in range(0, count, pmax):
                    tiles.append((_load(left, start), _load(right, start)))
            for expert in range(experts):
                target = out[expert, nl.ds(row, rows), nl.ds(col, cols)]
                _product(target, left, right, masks[:, :, expert], tiles)
    return out


def _masks_of_groups(ends: nl.NkiTensor, count: int, experts: int) -> nl.NkiTensor:
    """`[128, tiles, E]`: whether row `128 * tile + partition` lies in a group."""
    before = masks_before(ends, 0, count, experts)
    masks = nl.ndarray(before.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_copy(dst=masks[:, :, 0:1], src=before[:, :, 0:1])
    if experts > 1:
        nisa.tensor_tensor(
            dst=masks[:, :, 1:], data1=before[:, :, 1:], data2=before[:, :, 0 : experts - 1],
            op=nl.not_equal,
        )  # fmt: skip
    return masks


def _load(tensor: nl.NkiTensor, start: int) -> nl.NkiTensor:
    """Up to 128 rows from `start` on."""
    rows = min(nl.tile_size.pmax, tensor.shape[0] - start)
    tile = nl.ndarray((rows, tensor.shape[1]), dtype=tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=tensor[nl.ds(start, rows)])
    return tile


def _product(
    out: nl.NkiTensor,
    left: nl.NkiTensor,
    right: nl.NkiTensor,
    masks: nl.NkiTensor,
    tiles: list[tuple[nl.NkiTensor, nl.NkiTensor]],
) -> None:
    """`out[K, N]` of one group; `masks[128, tiles]` say which rows are its."""
    pmax = nl.tile_size.pmax
    count = left.shape[0]
    banks = []
    for row in range(0, left.shape[1], pmax):
        shape = (min(pmax, left.shape[1] - row), right.shape[1])
        banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    for start in range(0, count, pmax):
        tile = start // pmax
        pair = tiles[tile] if len(tiles) > 0 else (_load(left, start), _load(right, start))
        mask = masks[0 : pair[0].shape[0], tile : tile + 1]
        stationary = _own_rows(pair[0], mask)
        moving = _own_rows(pair[1], mask)
        for index in range(len(banks)):
            part = stationary[:, nl.ds(index * pmax, banks[index].shape[0])]
            nisa.nc_matmul(dst=banks[index], stationary=part, moving=moving)
    for index in range(len(banks)):
        rounded = nl.ndarray(banks[index].shape, dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=rounded, src=banks[index])
        nisa.dma_copy(dst=out[nl.ds(index * pmax, rounded.shape[0])], src=rounded)


def _own_rows(data: nl.NkiTensor, mask: nl.NkiTensor) -> nl.NkiTensor:
    """The rows of a group, zeros for others, which need not be finite."""
    own = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    nisa.memset(dst=own, value=0.0, engine=nisa.engine.gpsimd)
    nisa.tensor_copy_predicated(dst=own, src=data, predicate=mask.broadcast(1, data.shape[1]))
    return own


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """Sizes that are not zero, one dtype."""
    del hw
    return reject_groups(b, "grad")


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Whether the rows of a block stay in SBUF."""
    width = min(_BANKS * hw.partitions, b.x.shape[1]) + min(512, b.grad.shape[1])
    tiles = -(-b.x.shape[0] // hw.partitions)
    keeps = tiles * width * b.x.dtype.itemsize <= _KEPT_BYTES
    kernel = grouped_mm_weight_gradient_kernel
    return Launch.of(kernel, b, ("x", "grad", "offsets"), keeps)


def cost(b: Bindings) -> Cost:
    """Every row meets every group."""
    rows, depth = b.x.shape
    columns, experts = b.grad.shape[1], b.offsets.shape[0]
    result = experts * depth * columns
    return Cost(
        matmul_flops=2 * rows * result,
        vector_flops=experts * (b.x.numel + b.grad.numel),
        hbm_bytes=b.x.nbytes + b.grad.nbytes + result * b.x.dtype.itemsize,
    )


def reference(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The same in float32, rounded once."""
    product = torch.ops.trnx.grouped_mm_weight_gradient
    out: torch.Tensor = product(x.float(), grad.float(), offsets)
    return out.to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges, empty groups, rows behind the last group, values of other groups."""

    def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def sample(note: str, x: torch.Tensor, grad: torch.Tensor, *ends: int) -> Sample:
        offsets = torch.tensor(ends, dtype=torch.int32)
        return Sample({"x": x / math.sqrt(x.shape[0]), "grad": grad, "offsets": offsets}, note)

    for rows in (1, 127, 128, 129):
        yield sample(f"S = {rows}", values(rows, 40), values(rows, 33), rows // 2, rows)
    for depth in (1, 127, 129, 513):
        yield sample(f"K = {depth}", values(50, depth), values(50, 20), 7, 50)
    yield sample("N = 513", values(20, 64), values(20, 513), 3, 20)
    yield sample("one group", values(140, 64), values(140, 70), 140)
    yield sample("empty groups", values(140, 64), values(140, 70), 0, 130, 130, 140)
    yield sample("rows behind the last group", values(140, 64), values(140, 70), 10, 129)
    yield sample("rows that do not stay", values(4200, 300), values(4200, 260), 300, 4100, 4200)
    special, grad = values(60, 64), values(60, 40)
    special[3, 5], special[40, 6], grad[50, 7] = math.inf, -math.inf, math.inf
    yield sample("infinities", special, grad, 30, 60)
    for dtype in (torch.bfloat16, torch.float16):
        x, grad = values(60, 64, dtype=dtype) / 8, values(60, 40, dtype=dtype)
        offsets = torch.tensor([30, 60])
        yield Sample({"x": x, "grad": grad, "offsets": offsets}, f"{dtype}, int64 offsets")


def _gradient(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> Any:
    return torch.ops.trnx.grouped_mm_weight_gradient.default(x, grad, offsets)


register(
    KernelSpec(
        name="grouped_mm_weight_gradient",
        patterns=(Pattern(_gradient),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=grouped_mm_weight_gradient_kernel,
        launch=launch,
        strided=frozenset({"x", "grad"}),
    )
)
