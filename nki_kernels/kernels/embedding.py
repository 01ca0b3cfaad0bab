"""`embedding`: rows of `weight[V, D]` selected by `indices[...]`, an indirect DMA gather.

Partition p gathers rows for consecutive indices, so that index loads and stores of results are long
runs. An index outside `0 .. V-1` is an error, as in torch; `padding_idx` has no meaning in the
forward. int64 indices arrive as int32 pairs: where the high word is not 0, the index is made
negative. float32, bfloat16, float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch
import torch.nn.functional as F

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_INDEX_DTYPES = (torch.int32, torch.int64)
_GATHERED_BYTES = 32768  # per partition
_LARGEST_RUN = 16
aten = torch.ops.aten


@nki.jit
def embedding_kernel(
    weight: nl.NkiTensor, indices: nl.NkiTensor, words: int, run: int, width: int, cores: int = 1
) -> nl.NkiTensor:
    """weight `[V, D]`, indices `[...]` (`words` 1) or `[..., 2]` (2) -> `[..., D]`.

    A partition takes up to `run` consecutive indices at a time, and `width` columns of their rows.
    `cores` share the indices.
    """
    pmax = nl.tile_size.pmax
    shape = indices.shape
    if words == 2:
        shape = shape[:-1]
    out = nl.ndarray(shape + (weight.shape[1],), dtype=weight.dtype, buffer=nl.shared_hbm)
    total = indices.size // words
    flat_out = out.reshape((total, weight.shape[1]))
    flat_indices = indices.reshape((total, words))
    done, end = share_of(total, cores)
    while done < end:
        partitions = min(pmax, end - done)
        length = min(run, (end - done) // partitions)
        count = partitions * length
        chosen = nl.ndarray((partitions, length, words), dtype=indices.dtype, buffer=nl.sbuf)
        here = flat_indices[done : done + count].reshape_dim(0, (partitions, length))
        nisa.dma_copy(dst=chosen, src=here)
        if words == 2:
            _mark_long(chosen)
        target = flat_out[done : done + count].reshape_dim(0, (partitions, length))
        for col in range(0, weight.shape[1], width):
            cols = min(width, weight.shape[1] - col)
            _gather(target[:, :, col : col + cols], weight, chosen, col)
        done = done + count
    return out


def _mark_long(chosen: nl.NkiTensor) -> None:
    """The sign bit in the low words of `chosen[P, L, 2]` where the high word is not 0."""
    low, high = chosen[:, :, 0], chosen[:, :, 1]
    sign = nl.ndarray(low.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=sign, data=high, op0=nl.not_equal, operand0=0.0, op1=nl.multiply,
        operand1=float(-(2**31)),
    )  # fmt: skip
    nisa.tensor_tensor(dst=low, data1=low, data2=sign, op=nl.bitwise_or)


def _gather(target: nl.NkiTensor, weight: nl.NkiTensor, chosen: nl.NkiTensor, col: int) -> None:
    """`target[p, i, :]` in HBM <- columns from `col` of row `chosen[p, i]` of weight."""
    partitions, length, cols = target.shape
    rows = nl.ndarray((partitions, length, cols), dtype=weight.dtype, buffer=nl.sbuf)
    for i in range(length):
        source = weight.ap(
            pattern=[[weight.shape[1], partitions], [1, cols]],
            offset=col,
            vector_offset=chosen[:, i, 0:1],
            indirect_dim=0,
        )
        nisa.dma_copy(dst=rows[:, i, :], src=source)
    nisa.dma_copy(dst=target, src=rows)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """A 2-D table of floats, int32 or int64 indices, nothing empty."""
    del hw
    if reject := reject_dtypes(b, "weight"):
        return reject
    if b.indices.dtype not in _INDEX_DTYPES:
        return Reject(f"index dtype {b.indices.dtype} is not int32 or int64")
    if b.weight.ndim != 2:
        return Reject(f"weight has {b.weight.ndim} dimensions, not 2")
    if b.weight.numel == 0 or b.indices.numel == 0:
        return Reject(f"nothing to gather: weight{b.weight.shape}, indices{b.indices.shape}")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """How many indices a partition takes at a time, and how wide rows are cut."""
    del hw
    itemsize = b.weight.dtype.itemsize
    width = min(b.weight.shape[1], _GATHERED_BYTES // itemsize)
    run = max(1, min(_LARGEST_RUN, _GATHERED_BYTES // (width * itemsize)))
    words = 2 if b.indices.dtype == torch.int64 else 1
    return Launch.of(embedding_kernel, b, ("weight", "indices"), words, run, width)


def cost(b: Bindings) -> Cost:
    """Only bytes: the indices, and every selected row read and written."""
    rows = b.indices.numel * b.weight.shape[1] * b.weight.dtype.itemsize
    return Cost(hbm_bytes=b.indices.nbytes + 2 * rows)


def reference(weight: torch.Tensor, indices: torch.Tensor, **flags: Any) -> torch.Tensor:
    """The same in torch; the flags matter to the backward alone."""
    del flags
    return F.embedding(indices, weight)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of the number of indices, index dtypes and shapes, wide rows."""

    def sample(
        note: str,
        *shape: int,
        table: tuple[int, int] = (50, 24),
        dtype: torch.dtype = torch.float32,
        index: torch.dtype = torch.int64,
    ) -> Sample:
        weight = torch.randn(table, generator=generator).to(dtype)
        indices = torch.randint(table[0], shape, generator=generator).to(index)
        flags = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
        return Sample({"weight": weight, "indices": indices, **flags}, note)

    for count in (1, 2, 127, 128, 129, 513):
        yield sample(f"{count} indices", count)
    yield sample("a batch", 3, 100)
    yield sample("int32", 3, 100, index=torch.int32)
    yield sample("no dimensions")
    yield sample("many indices", 5000)
    yield sample("wide rows", 130, table=(20, 9000))
    yield sample("one row, one column", 5, table=(1, 1))
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 300, dtype=dtype)


def _embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Any:
    return aten.embedding.default(weight, indices, padding_idx, scale_grad_by_freq, sparse)


register(
    KernelSpec(
        name="embedding",
        patterns=(Pattern(_embedding),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=embedding_kernel,
        launch=launch,
    )
)
