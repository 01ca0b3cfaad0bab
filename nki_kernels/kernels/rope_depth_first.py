"""`rope_depth_first`: rotary position embedding of tensors whose first dimension is the depth.

Pattern: `cat((low * cos - high * sin, high * cos + low * sin))` of the two halves of x, `[D, ...]`
of two to four dimensions, in the first of them. Of x as `[D, B, H, S]`, cos and sin are `[D/2, B,
1, S]` or `[D/2, 1, 1, S]`; all of one dtype (float32, bfloat16, float16), D even and at most 256.
Products and sums round where eager rounds them, so that results are equal.

Both halves of a depth lie in one partition, groups of heads side by side on the partitions, so that
one DMA loads a tile. VectorE multiplies by cos and adds, GpSimd multiplies by sin.
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
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_TENSORS = ("x", "cos", "sin")
_DIMS = 4
_TILE = 1024  # elements of a half of x in one partition of a tile
_LANES = 128
aten = torch.ops.aten


@nki.jit
def rope_depth_first_kernel(
    x: nl.NkiTensor,
    cos: nl.NkiTensor,
    sin: nl.NkiTensor,
    sizes: tuple[int, int, int, int],
    groups: int,
    block: tuple[int, int],
    cores: int = 1,
) -> nl.NkiTensor:
    """x, cos and sin -> the result, of x's shape. `sizes` are half of D, and B, H and S; `groups`
    of the heads lie side by side; a tile has `block` heads of a group and positions. `cores` share
    the positions.
    """
    half, batch, heads, length = sizes
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    own = cos.size > half * length  # a table for each of the batch
    together = heads // groups
    first, end = share_of(length, cores)
    for b in range(batch):
        for start in range(first, end, block[1]):
            count = min(block[1], end - start)
            tables = []  # type: list[nl.NkiTensor]
            for table in (cos, sin):
                row, offset = length, start
                if own:
                    row, offset = batch * length, b * length + start
                pattern = [[0, groups], [row, half], [1, count]]
                tile = nl.ndarray((groups * half, count), dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=tile, src=table.ap(pattern=pattern, offset=offset))
                tables.append(tile)
            for head in range(0, together, block[0]):
                some = min(block[0], together - head)
                plane = batch * heads * length
                pattern = [[together * length, groups], [plane, half], [half * plane, 2]]
                pattern.append([length, some])
                pattern.append([1, count])
                offset = (b * heads + head) * length + start
                shape = (groups * half, 2, some, count)
                data = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
                result = _turned(data, tables[0], tables[1])
                nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=result)
    return out


def _turned(data: nl.NkiTensor, cos: nl.NkiTensor, sin: nl.NkiTensor) -> nl.NkiTensor:
    """`[P, 2, heads, positions]` of the two halves, turned."""
    products = []  # type: list[nl.NkiTensor]
    for table, engine in ((cos, nisa.engine.vector), (sin, nisa.engine.gpsimd)):
        product = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
        wide = table.expand_dim(1).broadcast(1, 2).expand_dim(2).broadcast(2, data.shape[2])
        nisa.tensor_tensor(dst=product, data1=data, data2=wide, op=nl.multiply, engine=engine)
        products.append(product)
    result = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    for here, there, op in ((0, 1, nl.subtract), (1, 0, nl.add)):
        nisa.tensor_tensor(
            dst=result[:, here], data1=products[0][:, here], data2=products[1][:, there], op=op
        )
    return result


def _as_four(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[D, B, H, S]`."""
    return (shape[0],) + (1,) * (_DIMS - len(shape)) + shape[1:]


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, shapes, and that the pattern takes halves of the first dimension."""
    del hw
    if reject := reject_dtypes(b, *_TENSORS):
        return reject
    shape = b.x.shape
    if len({b[name].dtype for name in _TENSORS}) > 1:
        return Reject(f"x is {b.x.dtype}, cos {b.cos.dtype}, sin {b.sin.dtype}")
    if not 2 <= len(shape) <= _DIMS or b.x.numel == 0:
        return Reject(f"x{shape} has not two to four dimensions with elements")
    depth, batch, _, length = _as_four(shape)
    if depth % 2 or depth > 2 * _LANES:
        return Reject(f"the first dimension of x{shape} is odd or above {2 * _LANES}")
    if b.cos.shape != b.sin.shape or len(b.cos.shape) != len(shape):
        return Reject(f"cos{b.cos.shape} and sin{b.sin.shape} have not the dimensions of x{shape}")
    half, own, each, positions = _as_four(b.cos.shape)
    if (half, positions) != (depth // 2, length) or own not in (1, batch) or each != 1:
        return Reject(f"cos{b.cos.shape} is not one angle for all heads of x{shape}")
    parts = b.parts or [b.half, min(b.end, depth) - b.half]
    if (b.dim % len(shape), b.cat_dim % len(shape), list(parts)) != (0, 0, [half, half]):
        return Reject(f"dims {b.dim} and {b.cat_dim} of x{shape} are not cut at half of the first")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Groups of heads on the partitions, heads and positions of a tile."""
    depth, batch, heads, length = _as_four(b.x.shape)
    half = depth // 2
    groups = math.gcd(heads, hw.partitions // half)
    positions = min(length, _TILE)
    block = (min(heads // groups, max(1, _TILE // positions)), positions)
    sizes = (half, batch, heads, length)
    return Launch.of(rope_depth_first_kernel, b, _TENSORS, sizes, groups, block)


def cost(b: Bindings) -> Cost:
    """Three operations an element."""
    crossing = 2 * b.x.nbytes + b.cos.nbytes + b.sin.nbytes
    return Cost(vector_flops=3 * b.x.numel, hbm_bytes=crossing)


def _turn(low: Any, high: Any, cos: torch.Tensor, sin: torch.Tensor, dim: int) -> Any:
    first = aten.sub.Tensor(aten.mul.Tensor(low, cos), aten.mul.Tensor(high, sin))
    second = aten.add.Tensor(aten.mul.Tensor(high, cos), aten.mul.Tensor(low, sin))
    return aten.cat.default([first, second], dim)


def _of_parts(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    parts: list[int],
    dim: int,
    cat_dim: int,
) -> Any:
    halves = aten.split_with_sizes.default(x, parts, dim)
    return _turn(halves[0], halves[1], cos, sin, cat_dim)


def _of_slices(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    dim: int,
    half: int,
    end: int,
    cat_dim: int,
) -> Any:
    low = aten.slice.Tensor(x, dim, 0, half)
    high = aten.slice.Tensor(x, dim, half, end)
    return _turn(low, high, cos, sin, cat_dim)


def reference(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    parts: list[int] | None,
    dim: int,
    half: int | None,
    end: int | None,
    cat_dim: int,
) -> Any:
    """The pattern of `parts`, or of `half` and `end`."""
    if parts is not None:
        return _of_parts(x, cos, sin, parts, dim, cat_dim)
    assert half is not None
    assert end is not None
    return _of_slices(x, cos, sin, dim, half, end, cat_dim)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of positions and depths, several heads, one table and several, other ranks, NaN."""

    def sample(
        note: str, shape: tuple[int, ...], own: bool = False, dtype: torch.dtype = torch.float32
    ) -> Sample:
        def draw(size: tuple[int, ...]) -> torch.Tensor:
            return torch.randn(size, generator=generator).to(dtype)

        half = shape[0] // 2
        table = [half, *shape[1:]]
        if len(shape) > 2:
            table[-2] = 1
        if len(shape) > 3 and not own:
            table[1] = 1
        numbers = {"dim": 0, "cat_dim": 0, "parts": [half, half], "half": None, "end": None}
        tensors = {"x": draw(shape), "cos": draw(tuple(table)), "sin": draw(tuple(table))}
        return Sample({**tensors, **numbers}, note)

    for count in (1, 2, 127, 128, 129, 1030):
        yield sample(f"{count} positions", (8, 2, 3, count))
    for depth in (2, 64, 128, 130, 256):
        yield sample(f"depth {depth}", (depth, 1, 4, 33))
    yield sample("a table for each of the batch", (32, 3, 2, 70), own=True)
    yield sample("no batch", (128, 5, 40), dtype=torch.float16)
    yield sample("positions alone", (64, 300))
    yield sample("many heads", (128, 1, 32, 260), dtype=torch.bfloat16)
    sliced = sample("slices", (8, 3, 20))
    yield Sample({**sliced.values, "parts": None, "half": 4, "end": 2**63 - 1}, sliced.note)
    special = sample("infinities and NaN", (16, 2, 2, 20))
    special.values["x"][0, 0], special.values["x"][9, 1, 1] = float("nan"), float("inf")
    yield special


register(
    KernelSpec(
        name="rope_depth_first",
        patterns=(
            Pattern(_of_parts, {"half": None, "end": None}),
            Pattern(_of_slices, {"parts": None}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=rope_depth_first_kernel,
        launch=launch,
    )
)
