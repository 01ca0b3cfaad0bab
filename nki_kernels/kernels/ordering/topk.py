"""`topk`: the k largest or smallest elements along a dimension, in order, and where they are.

NaN is larger than any number, as in eager. float32, bfloat16, float16. Of equal elements in lines
of less than 512 the first ones count; longer ones along the last dimension are searched by blocks,
where of equal elements any ones may count, as torch leaves it open. A line has at most 4096
elements, along the last dimension as many as SBUF holds in 32 partitions. The four finite float32
numbers of each sign with the greatest magnitude count as equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels.ordering._block_plan import Blocks, blocks_of
from trnx.nki_kernels.kernels.ordering._blocks import topk_of_blocks_kernel
from trnx.nki_kernels.kernels.ordering._launch import launch_order, order_cost, reject_order
from trnx.nki_kernels.kernels.ordering._search import first_in_order_kernel
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_LONGEST = 4096


def reference(x: torch.Tensor, k: int, dim: int, largest: bool, is_sorted: bool) -> Any:
    """torch.topk, with the first ones of equal elements and always in order."""
    del is_sorted
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if _blocks(b) is not None:
        return reject_dtypes(b, "x")
    return reject_order(b, b.k, _LONGEST)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Where lines lie, and how long ones are cut into blocks."""
    del hw
    blocks = _blocks(b)
    if blocks is None:
        return launch_order(b, b.k, b.largest)
    length = b.x.shape[-1]
    lines, shape = (b.x.numel // length, length), (*b.x.shape[:-1], b.k)
    return Launch.of(topk_of_blocks_kernel, b, ("x",), lines, tuple(blocks), shape, b.largest)


def cost(b: Bindings) -> Cost:
    """The searches."""
    blocks = _blocks(b)
    if blocks is None:
        return order_cost(b, b.k)
    lines = b.x.numel // b.x.shape[-1]
    written = lines * b.k * (b.x.dtype.itemsize + 8)
    return Cost(
        vector_flops=lines * blocks.segments * int(blocks.cycles), hbm_bytes=b.x.nbytes + written
    )


def _blocks(b: Bindings) -> Blocks | None:
    """The blocks of lines along the last dimension, where they pay."""
    if b.x.numel == 0 or b.x.ndim == 0 or b.k == 0 or b.dim % b.x.ndim != b.x.ndim - 1:
        return None
    length = b.x.shape[-1]
    found = blocks_of(length, b.k, b.x.numel // length, b.x.dtype.itemsize)
    return found if isinstance(found, Blocks) else None


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, few and many elements, ties, infinities, short and long lines, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        k: int,
        dim: int = -1,
        largest: bool = True,
        dtype: torch.dtype = torch.float32,
        is_sorted: bool = True,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).to(dtype)
        given = {"x": x, "k": k, "dim": dim, "largest": largest, "is_sorted": is_sorted}
        return Sample(given, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 24), 2)
        yield sample(f"of {size} columns", (5, size), min(size, 9), largest=False)
    for k in (1, 7, 8, 9, 64):
        yield sample(f"{k} of 64 experts", (300, 64), k)
    yield sample("of eight experts", (1000, 8), 2, is_sorted=False)
    yield sample("the middle", (4, 20, 70), 10, 1)
    yield sample("the first", (30, 140), 3, 0, largest=False)
    yield sample("one dimension", (300,), 300, 0)
    yield sample("long lines", (3, 4096), 20)
    yield sample("ragged blocks", (129, 1003), 9, largest=False)
    yield sample("a vocabulary", (2, 3, 20001), 50)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", (130, 33), 12, dtype=dtype)
        yield sample(f"the smallest of {dtype}", (130, 33), 12, largest=False, dtype=dtype)
    for largest in (True, False):
        ties = sample(f"ties and infinities, largest={largest}", (9, 40), 25, largest=largest)
        x = ties.values["x"].mul_(3).round_()
        x[:, ::3], x[:, 1::5], x[0] = float("inf"), float("-inf"), float("-inf")
        yield ties


def _topk(x: torch.Tensor, k: int, dim: int, largest: bool, is_sorted: bool) -> Any:
    return aten.topk.default(x, k, dim, largest, is_sorted)


register(
    KernelSpec(
        name="topk",
        patterns=(Pattern(_topk),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=first_in_order_kernel,
        launch=launch,
    )
)
