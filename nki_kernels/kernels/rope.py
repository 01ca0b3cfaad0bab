"""`rope`: rotary position embedding, x * cos + rotate_half(x) * sin.

Pattern: `cat((-x[..., h:], x[..., :h])) * sin` added to `x * cos`, as models of the Llama family
write it, with h half of the last dimension D. x of two to four dimensions; cos and sin of one shape
that broadcasts to x's, D whole; all of one dtype (float32, bfloat16, float16), D even and at most
2048. Products and sum round where eager rounds them, so that results are equal.

Where cos varies, positions lie on the partitions, several in each; so DMA runs are long and one
load of cos and sin serves all heads. VectorE multiplies by cos and adds, GpSimd multiplies by sin
and adds every sixth tile, so that both are about as busy. TensorE could add, but its sums run over
positions: one NaN would spread to all of them.
"""

from __future__ import annotations

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
_TILE_BYTES = 8192  # of x in one partition of a tile
_TABLE_BYTES = 4096  # of cos
_ON_GPSIMD = 6  # one of so many tiles
_DIMS = 4
aten = torch.ops.aten


@nki.jit
def rope_kernel(
    x: nl.NkiTensor,
    cos: nl.NkiTensor,
    sin: nl.NkiTensor,
    dims: tuple[int, int, int],
    fold: int,
    heads: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """x, cos and sin -> the sum, of x's shape. Of x as four dims, `dims` are the one that is looped
    over, the one with `heads` elements in a tile, and the one with `fold` elements in a partition.
    `cores` share the latter.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source, target = _arranged(x, dims), _arranged(out, dims)
    tables = _arranged(cos, dims), _arranged(sin, dims)
    looped, middle, positions, _ = source.shape
    started = []  # type: list[tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]]
    start, end = share_of(positions, cores)
    while start < end:
        partitions = min(nl.tile_size.pmax, end - start)
        run = min(fold, (end - start) // partitions)
        factors = []  # type: list[tuple[nl.NkiTensor, nl.NkiTensor]]
        for i in range(looped):
            for j in range(0, middle, heads):
                first = i == 0 and j == 0
                if first or tables[0].shape[1] > 1 or (j == 0 and tables[0].shape[0] > 1):
                    factors.append(_load_factors(tables, (i, j, start), partitions, run))
                place = (i, j, min(heads, middle - j), start)
                tile = _multiply(source, factors[-1], place, partitions, run)
                # The products of the next tile come before the sum of this one, so that no engine
                # waits for the other.
                if len(started) > 0:
                    _add(started[-1], len(started))
                goal = _tile_of(target, place, partitions, run)
                started.append((goal, tile[0], tile[1]))
        start = start + partitions * run
    if len(started) > 0:
        _add(started[-1], len(started))
    return out


def _arranged(tensor: nl.NkiTensor, dims: tuple[int, int, int]) -> nl.NkiTensor:
    """Four dims: those of `dims`, and the last."""
    result = tensor
    while result.ndim < 4:
        result = result.expand_dim(0)
    return result.permute((dims[0], dims[1], dims[2], 3))


def _tile_of(
    tensor: nl.NkiTensor, place: tuple[int, int, int, int], partitions: int, run: int
) -> nl.NkiTensor:
    """`[partitions, heads, run, D]` of HBM."""
    i, j, count, start = place
    rows = tensor[i, j : j + count, start : start + partitions * run]
    return rows.reshape_dim(1, (partitions, run)).permute((1, 0, 2, 3))


def _load_factors(
    tables: tuple[nl.NkiTensor, nl.NkiTensor],
    place: tuple[int, int, int],
    partitions: int,
    run: int,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """cos and sin, `[partitions, run, D]`, the first half of sin with the other sign."""
    tiles = []  # type: list[nl.NkiTensor]
    for table in tables:
        looped, middle, positions, columns = table.shape
        rows = table[min(place[0], looped - 1), min(place[1], middle - 1)]
        if positions > 1:
            rows = rows[place[2] : place[2] + partitions * run].reshape_dim(0, (partitions, run))
        else:
            rows = rows.expand_dim(1).broadcast(0, partitions).broadcast(1, run)
        tile = nl.ndarray((partitions, run, columns), dtype=table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=rows)
        tiles.append(tile)
    half = tiles[1][:, :, 0 : tiles[1].shape[2] // 2]
    nisa.activation(dst=half, op=nl.copy, data=half, scale=-1.0)
    return tiles[0], tiles[1]


def _multiply(
    source: nl.NkiTensor,
    factors: tuple[nl.NkiTensor, nl.NkiTensor],
    place: tuple[int, int, int, int],
    partitions: int,
    run: int,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """x * cos and rotate_half(x) * sin of a tile."""
    count, columns = place[2], source.shape[3]
    half = columns // 2
    cos = factors[0].expand_dim(1).broadcast(1, count)
    sin = factors[1].expand_dim(1).broadcast(1, count)
    shape = (partitions, count, run, columns)
    data = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=_tile_of(source, place, partitions, run))
    turned = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    for here, there in (((0, half), (half, columns)), ((half, columns), (0, half))):
        nisa.tensor_tensor(
            dst=turned[:, :, :, here[0] : here[1]], data1=data[:, :, :, there[0] : there[1]],
            data2=sin[:, :, :, here[0] : here[1]], op=nl.multiply, engine=nisa.engine.gpsimd,
        )  # fmt: skip
    straight = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=straight, data1=data, data2=cos, op=nl.multiply)
    return straight, turned


def _add(tile: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor], number: int) -> None:
    """Store the sum of the two products of a tile (target, products)."""
    target, straight, turned = tile
    engine = nisa.engine.gpsimd if number % _ON_GPSIMD == 0 else nisa.engine.vector
    nisa.tensor_tensor(dst=straight, data1=straight, data2=turned, op=nl.add, engine=engine)
    nisa.dma_copy(dst=target, src=straight)


def _as_four(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (_DIMS - len(shape)) + shape


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, shapes, and that the pattern rotates halves."""
    del hw
    if reject := reject_dtypes(b, *_TENSORS):
        return reject
    shape = b.x.shape
    if len({b[name].dtype for name in _TENSORS}) > 1:
        return Reject(f"x is {b.x.dtype}, cos {b.cos.dtype}, sin {b.sin.dtype}")
    if b.cos.shape != b.sin.shape:
        return Reject(f"cos{b.cos.shape} and sin{b.sin.shape} differ")
    if not 2 <= len(shape) <= _DIMS or b.x.numel == 0:
        return Reject(f"x{shape} has not two to four dimensions with elements")
    columns, last = shape[-1], len(shape) - 1
    if columns % 2 or columns > 2048:
        return Reject(f"the last dimension of x{shape} is odd or above 2048")
    pairs = zip(_as_four(b.cos.shape), _as_four(shape), strict=False)
    if len(b.cos.shape) > len(shape) or any(c not in (1, n) for c, n in pairs):
        return Reject(f"cos{b.cos.shape} does not broadcast to x{shape}")
    if b.cos.shape[-1:] != shape[-1:]:
        return Reject(f"cos{b.cos.shape} has not the last dimension of x{shape}")
    if (b.dim, b.cat_dim % len(shape), b.half) != (last, last, columns // 2):
        return Reject(f"dims {b.dim} and {b.cat_dim} of x{shape} are not cut at half of the last")
    if b.end < columns:
        return Reject(f"x{shape} is cut at {b.end}")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Positions and heads of a tile from the shapes."""
    shape, factors = _as_four(b.x.shape), _as_four(b.cos.shape)
    # On the partitions: where cos varies, and most elements lie.
    positions = max(range(_DIMS - 1), key=lambda i: (factors[i] > 1, shape[i]))
    others = [i for i in range(_DIMS - 1) if i != positions]
    middle = max(others, key=lambda i: (factors[i] == 1, shape[i]))
    looped = next(i for i in others if i != middle)
    row = shape[-1] * b.x.dtype.itemsize
    fold = max(1, min(_TABLE_BYTES // row, -(-shape[positions] // hw.cores // hw.partitions)))
    heads = max(1, _TILE_BYTES // (row * fold)) if factors[middle] == 1 else 1
    dims = (looped, middle, positions)
    return Launch.of(rope_kernel, b, _TENSORS, dims, fold, min(heads, shape[middle]))


def cost(b: Bindings) -> Cost:
    """Three operations an element."""
    crossing = 2 * b.x.nbytes + b.cos.nbytes + b.sin.nbytes
    return Cost(vector_flops=3 * b.x.numel, hbm_bytes=crossing)


def _rope(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    dim: int,
    half: int,
    end: int,
    cat_dim: int,
) -> Any:
    upper = aten.slice.Tensor(x, dim, half, end)
    lower = aten.slice.Tensor(x, dim, 0, half)
    turned = aten.cat.default([aten.neg.default(upper), lower], cat_dim)
    return aten.add.Tensor(aten.mul.Tensor(x, cos), aten.mul.Tensor(turned, sin))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of positions, layouts of models, few positions, tables of each kind, other ranks."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        table: tuple[int, ...],
        swapped: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Sample:
        def draw(size: tuple[int, ...]) -> torch.Tensor:
            return torch.randn(size, generator=generator).to(dtype)

        x = draw(shape)
        last = len(shape) - 1
        numbers = {"dim": last, "half": shape[-1] // 2, "end": 2**63 - 1, "cat_dim": -1}
        tensors = {"x": x.transpose(1, 2) if swapped else x, "cos": draw(table), "sin": draw(table)}
        return Sample({**tensors, **numbers}, note)

    for count in (1, 2, 127, 128, 129, 513):
        yield sample(f"{count} positions", (2, 3, count, 64), (1, 1, count, 64))
    yield sample("heads before positions", (2, 129, 3, 64), (2, 1, 129, 64), swapped=True)
    yield sample("positions before heads", (2, 129, 3, 64), (2, 129, 1, 64))
    yield sample("one position a request", (5, 8, 1, 128), (5, 1, 1, 128))
    yield sample("one position", (2, 8, 1, 128), (1, 1, 1, 128))
    yield sample("many heads", (1, 70, 260, 128), (260, 128), dtype=torch.bfloat16)
    yield sample("a table for each head", (2, 3, 130, 8), (2, 3, 130, 8))
    yield sample("no batch", (40, 6, 80), (40, 1, 80), dtype=torch.float16)
    yield sample("positions alone", (300, 2), (300, 2))
    yield sample("wide", (1, 2, 130, 2048), (1, 1, 130, 2048), dtype=torch.bfloat16)


register(
    KernelSpec(
        name="rope",
        patterns=(Pattern(_rope),),
        supports=supports,
        reference=_rope,
        cost=cost,
        samples=samples,
        kernel=rope_kernel,
        launch=launch,
        strided=frozenset(_TENSORS),
    )
)
