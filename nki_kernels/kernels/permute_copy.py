"""`permute_copy`: a contiguous copy whose last dimension is not the last one in memory of `x`.

`clone` of a permuted view, where both that dimension and the one that takes its place have 32
elements or more, of 2 or 4 bytes. The DMA engines transpose on the way into SBUF, up to 128
elements of the dimension that runs in memory on the partitions; up to 64 take turns in
the halves of them, because an engine serves eight partitions. Stores run along the result. Copies
that keep the last dimension, or are small, are left to generated kernels, whose access patterns do
them as well, and so are those that a generated kernel is predicted to do as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec, contiguous_strides

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32)
_LEAST = 32  # elements of the two dimensions that change places
_LEAST_ELEMENTS = 16384  # below, descriptors for single elements take no longer
_TILE_BYTES = 16384  # of a tile in one partition
_HALF = 64  # partitions; tiles of up to so many take turns
Dim = tuple[int, int, int]  # (count, stride in the source, stride in the result)


@nki.jit
def permute_copy_kernel(
    x: nl.NkiTensor,
    shape: tuple[int, ...],
    across: Dim,
    along: Dim,
    batch: Dim,
    starts: tuple[tuple[int, int], ...],
    blocks: tuple[int, int],
    cores: int = 1,
) -> nl.NkiTensor:
    """x -> a contiguous copy of `shape`. `across` lies on the partitions and runs in memory of x,
    `along` in that of the result; both are (count, stride in x, stride in the result), and so is
    `batch`. `starts` are offsets in x and in the result, for what is looped over; `blocks` are
    elements of `batch` and of `along` in a tile. `cores` share `along`.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    first, end = share_of(along[0], cores)
    for source, target in starts:
        for i in range(0, across[0], nl.tile_size.pmax):
            lanes = min(nl.tile_size.pmax, across[0] - i)
            for j in range(0, batch[0], blocks[0]):
                many = min(blocks[0], batch[0] - j)
                for k in range(first, end, blocks[1]):
                    run = min(blocks[1], end - k)
                    # Each half of the partitions has DMA engines of its own.
                    half = 0
                    if lanes <= _HALF:
                        half = (k - first) // blocks[1] % 2 * _HALF
                    tile = nl.ndarray((half + lanes, many, run), dtype=x.dtype, buffer=nl.sbuf)
                    part = tile[half : half + lanes]
                    data = x.ap(
                        pattern=((along[1], run), (batch[1], many), (1, lanes)),
                        offset=source + i + j * batch[1] + k * along[1],
                    )
                    nisa.dma_transpose(dst=part, src=data, axes=(2, 1, 0))
                    goal = out.ap(
                        pattern=((across[2], lanes), (batch[2], many), (1, run)),
                        offset=target + i * across[2] + j * batch[2] + k,
                    )
                    nisa.dma_copy(dst=goal, src=part)
    return out


class _Plan(NamedTuple):
    """The kernel's dimensions; `order` is that of the result in memory."""

    order: tuple[int, ...]
    across: Dim
    along: Dim
    others: tuple[Dim, ...]


def _plan(x: TensorSpec, memory_format: torch.memory_format | None) -> _Plan | Reject:
    result = TensorSpec.of(reference(_meta(x), memory_format))
    order = tuple(sorted(range(x.ndim), key=lambda i: -result.strides[i]))
    if result.is_contiguous or not result.permuted(order).is_contiguous:
        order = tuple(range(x.ndim))
    source = x.permuted(order)
    dims: list[Dim] = []
    for count, old, new in zip(
        source.shape, source.strides, contiguous_strides(source.shape), strict=True
    ):
        if count == 1:
            continue
        if dims and dims[-1][1] == count * old:
            dims[-1] = (dims[-1][0] * count, old, new)
        else:
            dims.append((count, old, new))
    across = [dim for dim in dims[:-1] if dim[1] == 1]
    if not across:
        return Reject(f"no dimension of x{x.shape} but the last runs in memory: {x.strides}")
    if min(across[0][0], dims[-1][0]) < _LEAST:
        return Reject(f"a dimension of x{x.shape} that changes places is below {_LEAST}")
    others = tuple(dim for dim in dims[:-1] if dim is not across[0])
    return _Plan(order, across[0], dims[-1], others)


def _meta(x: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta")


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtype, size, and that the last dimension changes."""
    del hw
    if b.x.dtype not in _DTYPES:
        return Reject(f"dtype {b.x.dtype} of x is not float32, int32, bfloat16 or float16")
    if b.x.numel < _LEAST_ELEMENTS:
        return Reject(f"x{b.x.shape} has fewer than {_LEAST_ELEMENTS} elements")
    plan = _plan(b.x, b.memory_format)
    return plan if isinstance(plan, Reject) else None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The dimensions that change places, the longest other one, and the rest to loop over."""
    del hw
    plan = _plan(b.x, b.memory_format)
    assert isinstance(plan, _Plan)
    others = sorted(plan.others)
    batch = others.pop() if others else (1, 0, 0)
    starts = [(0, 0)]
    for count, old, new in others:
        starts = [(s + i * old, t + i * new) for s, t in starts for i in range(count)]
    most = _TILE_BYTES // b.x.dtype.itemsize
    run = min(plan.along[0], most)
    if plan.across[0] <= _HALF:
        run = min(-(-plan.along[0] // 2), most)
    many = min(batch[0], max(1, most // run))
    shape = tuple(b.x.shape[i] for i in plan.order)
    orders = (plan.order,) if plan.order != tuple(range(b.x.ndim)) else ()
    constants = (shape, plan.across, plan.along, batch, tuple(starts), (many, run))
    return Launch(permute_copy_kernel, (b.x, *constants), ("x",), orders)


def cost(b: Bindings) -> Cost:
    """Read and written once."""
    return Cost(hbm_bytes=2 * b.x.nbytes)


def reference(x: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    """aten.clone"""
    result: torch.Tensor = aten.clone.default(x, memory_format=memory_format)
    return result


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of both dimensions, images, heads, several batches, slices, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        *order: int,
        dtype: torch.dtype = torch.float32,
        step: int = 1,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(99).to(dtype)[..., ::step]
        values = {"x": x.permute(order), "memory_format": torch.contiguous_format}
        return Sample(values, note)

    for size in (127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 130), 1, 0)
        yield sample(f"{size} columns", (140, size), 1, 0)
    yield sample("one row, which is refused", (1, 20000), 1, 0)
    yield sample("images to channels", (2, 40, 13, 14), 0, 2, 3, 1)
    yield sample("channels to images", (2, 13, 14, 40), 0, 3, 1, 2)
    yield sample("heads", (2, 50, 3, 64), 0, 2, 3, 1, dtype=torch.bfloat16)
    yield sample("all reversed", (33, 4, 5, 40), 3, 2, 1, 0)
    yield sample("a long row", (5000, 33), 1, 0)
    yield sample("half of the partitions", (301, 64), 1, 0)
    yield sample("more than half of them", (301, 65), 1, 0)
    yield sample("few elements, which are refused", (40, 40), 1, 0)
    yield sample("no run, which is refused", (130, 300), 1, 0, step=2)
    for dtype in (torch.bfloat16, torch.float16, torch.int32):
        yield sample(f"{dtype}", (129, 200), 1, 0, dtype=dtype)
    x = torch.randn((70, 300), generator=generator)[:, 1:290].t()
    yield Sample({"x": x, "memory_format": torch.contiguous_format}, "rows with gaps")


def _clone(x: torch.Tensor, memory_format: torch.memory_format) -> Any:
    return aten.clone.default(x, memory_format=memory_format)


register(
    KernelSpec(
        name="permute_copy",
        patterns=(Pattern(_clone),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=permute_copy_kernel,
        launch=launch,
        strided=frozenset({"x"}),
        fuses=True,
    )
)
