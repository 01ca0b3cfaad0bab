"""`rope`: rotary position embedding, x * cos + rotate_half(x) * sin.

Pattern: `cat((-x[..., h:], x[..., :h])) * sin` added to `x * cos`, as models of the Llama family
write it, with h half of the last dimension D. x of two to four dimensions; cos and sin of one shape
that broadcasts to x's, D whole; all of one dtype (float32, bfloat16, float16), D even and at most
2048. Products and sum round where eager rounds them, so that results are equal.

Where cos varies, positions lie on the partitions, several in each; so DMA runs are long and one
load of cos and sin serves all heads. In float32, and where there is little to do, VectorE
multiplies by cos and adds, GpSimd multiplies by sin and adds every sixth tile, so that both are
about as busy. Else VectorE and GpSimd multiply and TensorE adds, by products with the identity,
which ScalarE rounds: equal to eager, but for the sign of a sum of two negative zeros. Such sums run
over positions, so that what is not finite would spread to all of them: then all is computed again
in the first way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._rope_products import (
    Checks,
    Products,
    add_by_products,
    new_checks,
    repairs,
)
from trnx.nki_kernels.kernels._transfers import transfer
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_TENSORS = ("x", "cos", "sin")
_TILE_BYTES = 8192  # of x in one partition of a tile
_TABLE_BYTES = 4096  # of cos
_ON_GPSIMD = 6  # one of so many tiles
_MANY = 1 << 20  # elements of a core from which on TensorE adds, by schedule
_ON_VECTOR = 25  # percent of the products with sin where TensorE adds
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
    by_products: bool,
    is_static: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x, cos and sin -> the sum, of x's shape. Of x as four dims, `dims` are the one that is looped
    over, the one with `heads` elements in a tile, and the one with `fold` elements in a partition.
    `by_products`: TensorE adds, and what is not finite is computed again. `is_static` as in
    `transfer`. `cores` share the positions.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source, target = _arranged(x, dims), _arranged(out, dims)
    tables = _arranged(cos, dims), _arranged(sin, dims)
    places = _places(source.shape, fold, heads, cores)
    if by_products and len(places) > 0:
        columns = []  # type: list[int]
        for place in places:
            columns.append(place.heads * place.run * x.shape[x.ndim - 1])
        checks = new_checks(x.dtype, columns)
        _rotate(source, target, tables, places, checks, is_static)
        for _ in nl.dynamic_range(repairs(checks)):
            _rotate(source, target, tables, places, None, is_static)
    else:
        _rotate(source, target, tables, places, None, is_static)
    return out


class Place(NamedTuple):
    """A tile: the element of the dim that is looped over, the first of `heads` heads and of
    `partitions * run` positions."""

    looped: int
    head: int
    heads: int
    start: int
    partitions: int
    run: int


def _places(shape: tuple[int, ...], fold: int, heads: int, cores: int) -> list[Place]:
    """The tiles of this program, those that share cos and sin one after the other."""
    looped, middle, positions, _ = shape
    places = []  # type: list[Place]
    start, end = share_of(positions, cores)
    while start < end:
        partitions = min(nl.tile_size.pmax, end - start)
        run = min(fold, (end - start) // partitions)
        for i in range(looped):
            for j in range(0, middle, heads):
                places.append(Place(i, j, min(heads, middle - j), start, partitions, run))
        start = start + partitions * run
    return _with_short_ends(places)


def _with_short_ends(places: list[Place]) -> list[Place]:
    """The first and the last of several tiles cut to one head, as no others are loaded, computed or
    stored meanwhile."""
    if len(places) < 2 or places[0].heads < 2 or places[-1].heads < 2:
        return places
    first, last = places[0], places[-1]
    start, partitions, run = first.start, first.partitions, first.run
    ended = [Place(first.looped, first.head, 1, start, partitions, run)]
    ended.append(Place(first.looped, first.head + 1, first.heads - 1, start, partitions, run))
    for i in range(1, len(places) - 1):
        ended.append(places[i])
    start, partitions, run = last.start, last.partitions, last.run
    before = last.heads - 1
    ended.append(Place(last.looped, last.head, before, start, partitions, run))
    ended.append(Place(last.looped, last.head + before, 1, start, partitions, run))
    return ended


def _rotate(
    source: nl.NkiTensor,
    target: nl.NkiTensor,
    tables: tuple[nl.NkiTensor, nl.NkiTensor],
    places: list[Place],
    checks: Checks | None,
    is_static: bool,
) -> None:
    """All tiles; by TensorE where there are `checks`."""
    factors = []  # type: list[tuple[nl.NkiTensor, nl.NkiTensor]]
    started = []  # type: list[tuple[nl.NkiTensor, Products]]
    own_heads, own_looped = tables[0].shape[1] > 1, tables[0].shape[0] > 1
    for place in places:
        data = _load(source, place, is_static)
        first = place.looped == 0 and place.head == 0
        if first or own_heads or (place.head == 0 and own_looped):
            factors.append(_load_factors(tables, place, is_static))
        products = _multiply(data, factors[-1], checks is not None)
        # The products of the next tile come before the sum of this one, so that no engine waits
        # for the other.
        if len(started) > 0:
            _add(started[-1], len(started), checks, is_static)
        started.append((_tile_of(target, place), products))
    if len(started) > 0:
        _add(started[-1], len(started), checks, is_static)


def _load(source: nl.NkiTensor, place: Place, is_static: bool) -> nl.NkiTensor:
    """A tile of x, `[partitions, heads, run, D]`."""
    shape = (place.partitions, place.heads, place.run, source.shape[3])
    data = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    transfer(data, _tile_of(source, place), is_static)
    return data


def _arranged(tensor: nl.NkiTensor, dims: tuple[int, int, int]) -> nl.NkiTensor:
    """Four dims: those of `dims`, and the last."""
    result = tensor
    while result.ndim < 4:
        result = result.expand_dim(0)
    return result.permute((dims[0], dims[1], dims[2], 3))


def _tile_of(tensor: nl.NkiTensor, place: Place) -> nl.NkiTensor:
    """`[partitions, heads, run, D]` of HBM."""
    end = place.start + place.partitions * place.run
    rows = tensor[place.looped, place.head : place.head + place.heads, place.start : end]
    return rows.reshape_dim(1, (place.partitions, place.run)).permute((1, 0, 2, 3))


def _load_factors(
    tables: tuple[nl.NkiTensor, nl.NkiTensor], place: Place, is_static: bool
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """cos and sin, `[partitions, run, D]`, the first half of sin with the other sign."""
    partitions, run = place.partitions, place.run
    tiles = []  # type: list[nl.NkiTensor]
    for table in tables:
        looped, middle, positions, columns = table.shape
        rows = table[min(place.looped, looped - 1), min(place.head, middle - 1)]
        if positions > 1:
            rows = rows[place.start : place.start + partitions * run]
            rows = rows.reshape_dim(0, (partitions, run))
        else:
            rows = rows.expand_dim(1).broadcast(0, partitions).broadcast(1, run)
        tile = nl.ndarray((partitions, run, columns), dtype=table.dtype, buffer=nl.sbuf)
        transfer(tile, rows, is_static)
        tiles.append(tile)
    half = tiles[1][:, :, 0 : tiles[1].shape[2] // 2]
    nisa.activation(dst=half, op=nl.copy, data=half, scale=-1.0)
    return tiles[0], tiles[1]


def _multiply(
    data: nl.NkiTensor, factors: tuple[nl.NkiTensor, nl.NkiTensor], shares: bool
) -> Products:
    """x * cos and rotate_half(x) * sin of a tile, some of the latter by VectorE where it `shares`
    them."""
    count, run = data.shape[1], data.shape[2]
    cos = factors[0].expand_dim(1).broadcast(1, count)
    sin = factors[1].expand_dim(1).broadcast(1, count)
    own = run * _ON_VECTOR // 100 if shares else 0
    straight = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=straight, data1=data, data2=cos, op=nl.multiply)
    turned = []  # type: list[tuple[int, nl.NkiTensor]]
    for first, end, engine in ((own, run, nisa.engine.gpsimd), (0, own, nisa.engine.vector)):
        if first < end:
            part = _turn(data[:, :, first:end], sin[:, :, first:end], engine)
            turned.append((first, part))
    return Products(straight, turned)


def _turn(data: nl.NkiTensor, sin: nl.NkiTensor, engine: object) -> nl.NkiTensor:
    """rotate_half(x) * sin, the sign of which is that of sin."""
    columns = data.shape[3]
    half = columns // 2
    result = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    for here, there in (((0, half), (half, columns)), ((half, columns), (0, half))):
        nisa.tensor_tensor(
            dst=result[:, :, :, here[0] : here[1]], data1=data[:, :, :, there[0] : there[1]],
            data2=sin[:, :, :, here[0] : here[1]], op=nl.multiply, engine=engine,
        )  # fmt: skip
    return result


def _add(
    tile: tuple[nl.NkiTensor, Products], number: int, checks: Checks | None, is_static: bool
) -> None:
    """Store the sum of the products of a `tile`, after its place in HBM."""
    target, products = tile
    straight = products.straight
    if checks is None:
        turned = products.turned[0][1]
        engine = nisa.engine.gpsimd if number % _ON_GPSIMD == 0 else nisa.engine.vector
        nisa.tensor_tensor(dst=straight, data1=straight, data2=turned, op=nl.add, engine=engine)
        transfer(target, straight, is_static)
        return
    result = nl.ndarray(straight.shape, dtype=straight.dtype, buffer=nl.sbuf)
    add_by_products(result, products, checks)
    transfer(target, result, is_static)


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
    by_products = _adds_by_products(b, hw)
    rows = (2 * b.x.numel + b.cos.numel + b.sin.numel) // shape[-1]
    plan = (dims, fold, min(heads, shape[middle]), by_products, rows <= MOST_DESCRIPTORS)
    launch = Launch.of(rope_kernel, b, _TENSORS, *plan)
    return replace(launch, unknown_trips=0) if by_products else launch


def _adds_by_products(b: Bindings, hw: Hardware) -> bool:
    """In half precision, where enough is computed for what comes before and after it; in float32
    VectorE and GpSimd are as fast as DMA."""
    return bool(b.x.dtype.itemsize == 2 and b.x.numel >= _MANY * hw.cores)


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
    yield sample("sums by products", (1, 9, 1030, 128), (1030, 128), dtype=torch.bfloat16)
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
