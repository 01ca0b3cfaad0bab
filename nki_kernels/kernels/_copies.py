"""Copies of whole regions of memory: what `cat`, `constant_pad`, `repeat`, `roll` and
`slice_scatter` share.

An op is a list of pieces: views of its result with the view of an operand that each is a copy of,
or none where a number fills it. `plan` turns them into access patterns for one of two kernels:

* `copy_kernel` moves each piece from HBM to HBM by one transfer, which every byte passes once.
* `assembly_kernel` loads what rows of the result are made of as it lies in memory, copies it to
  its places in SBUF, and stores whole rows: every byte passes twice, but in long runs.

The first is slow where runs are short, because each takes a descriptor; `plan` takes the one with
less to move, a descriptor counted as the bytes that pass in its time. Bytes are copied as they are,
NaN payloads included; an int64 is two words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from trnx.nki_kernels.kernels._copy_kernels import Pattern, assembly_kernel, copy_kernel
from trnx.nki_kernels.spec import Bindings, Cost, Launch
from trnx.simulator.errors import Reject
from trnx.simulator.memory.tensor_spec import TensorSpec

MOST_SOURCES = 16  # operands that the kernels take

_DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16),
    *(torch.int32, torch.int64, torch.bool, torch.uint8, torch.int8),
)
# A DMA engine moves so many bytes in the time of one descriptor: 7 ns of 23 bytes each.
_DESCRIPTOR_BYTES = 160
# Descriptors that lie in HBM as long as a model is loaded (nki-dge.rst).
_MOST_DESCRIPTORS = 2**12
# What all engines move while the first load of an assembly and its copy wait for each other.
_LATENCY_BYTES = 1 << 20
_FILL_BYTES = 8192  # of the constant that fills are copied from
_TILE_BYTES = 16384  # of a tile of rows in one partition
_ROW_BYTES = 49152  # the longest row that is assembled
_FREE_DIMS = 3  # of an access pattern in SBUF, besides the partitions and the rows in each

Dims = list[tuple[int, int, int]]  # (count, stride in the result, stride in the source)


class Piece(NamedTuple):
    """`target`, a view of the result, is a copy of `source`, a view of the operand `name`; of the
    number that fills where that is empty."""

    target: torch.Tensor
    name: str = ""
    source: torch.Tensor | None = None


PiecesOf = Callable[..., Iterable[Piece]]


class _Region(NamedTuple):
    """A piece in elements of memory: where it starts, and its dimensions, merged, along those of
    the result; `operand` is -1 for a fill."""

    operand: int
    start: int
    place: int
    dims: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        return math.prod(count for count, _, _ in self.dims)

    @property
    def run(self) -> int:
        """Elements that lie side by side in the result and in the source."""
        count, target, source = self.dims[-1]
        return count if target == 1 and (source == 1 or self.operand < 0) else 1


def reject_copies(b: Bindings, names: Sequence[str]) -> Reject | None:
    """A Reject where the operands `names` (None: there is none) have other dtypes than copies
    take, or different ones, or no elements."""
    given = [(name, b[name]) for name in names if b[name] is not None]
    for name, spec in given:
        if spec.dtype not in _DTYPES:
            return Reject(f"dtype {spec.dtype} of {name} is none that copies take")
        if spec.dtype is not given[0][1].dtype:
            return Reject(f"{given[0][0]} is {given[0][1].dtype}, {name} {spec.dtype}")
    if not any(spec.numel for _, spec in given):
        return Reject(f"{', '.join(names[: len(given)])} have no elements")
    return None


def launch_copies(
    b: Bindings,
    names: Sequence[str],
    result_of: Callable[..., torch.Tensor],
    pieces_of: PiecesOf,
    value: float = 0,
) -> Launch:
    """The launch of an op over the operands `names`.

    `result_of` is the op, `pieces_of` its pieces; it takes the result, then what the op takes, as
    tensors without memory. `value` fills.
    """
    tensors = {n: meta(spec) for n, spec in b.items() if isinstance(spec, TensorSpec)}
    values = {name: tensors.get(name, b[name]) for name in b}
    order, target = empty_result(result_of(**values))
    pieces = [p for p in pieces_of(target, **values) if p.target.numel()]
    used = tuple(name for name in names if any(p.name == name for p in pieces))
    regions = [r for p in pieces for r in _regions(p, used, target.dtype)]
    shape = tuple(target.shape[i] for i in order)
    words = 2 if target.dtype is torch.int64 else 1
    full = (*shape, words) if words > 1 else shape or (1,)
    numbers = words_of(int(value)) if words > 1 else (value,)
    kernel, *constants = _plan(regions, full, target.dtype.itemsize // words, numbers)
    orders = (order,) if order != tuple(range(len(order))) else ()
    arguments = (full, *constants, *(b[name] for name in used))
    return Launch(kernel, arguments, used, orders)


def words_of(value: int) -> tuple[int, ...]:
    """The two words of an int64, low and high, as int32; one where they are equal."""
    high, low = value >> 32, (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
    return (low,) if low == high else (low, high)


def cost_of_copies(b: Bindings, result_of: Callable[..., torch.Tensor]) -> Cost:
    """Every element of the result is written, and read where it is a copy, once."""
    tensors = {n: meta(spec) for n, spec in b.items() if isinstance(spec, TensorSpec)}
    result = TensorSpec.of(result_of(**{name: tensors.get(name, b[name]) for name in b}))
    read = sum(spec.nbytes for spec in b.values() if isinstance(spec, TensorSpec))
    return Cost(hbm_bytes=result.nbytes + min(read, result.nbytes))


def meta(spec: TensorSpec) -> torch.Tensor:
    """A tensor of this spec without memory."""
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")


def empty_result(result: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
    """The result's dimensions as they lie in memory, and an empty one that lies so."""
    spec = TensorSpec.of(result)
    order = tuple(sorted(range(spec.ndim), key=lambda i: -spec.strides[i]))
    if spec.is_contiguous or not spec.permuted(order).is_contiguous:
        order = tuple(range(spec.ndim))
    dense = torch.empty([spec.shape[i] for i in order], dtype=spec.dtype, device="meta")
    return order, dense.permute([order.index(i) for i in range(spec.ndim)])


def _regions(piece: Piece, used: Sequence[str], dtype: torch.dtype) -> Iterable[_Region]:
    """The piece in words of four bytes or less; a long fill in parts that the constant holds."""
    target, source = piece.target, piece.source
    words = 2 if dtype is torch.int64 else 1
    strides = [0] * target.ndim if source is None else source.stride()
    rows = zip(target.shape, target.stride(), strides, strict=True)
    dims = [(n, t * words, s * words) for n, t, s in rows]
    if words > 1:
        dims.append((2, 1, 0 if source is None else 1))
    place = int(target.storage_offset()) * words
    merged = _merged(dims, fill=source is None)
    if source is not None:
        yield _Region(used.index(piece.name), int(source.storage_offset()) * words, place, merged)
        return
    count, step, _ = merged[-1]
    limit = _FILL_BYTES * words // dtype.itemsize
    whole = count // limit if step == 1 else 0
    if whole:
        yield _Region(-1, 0, place, (*merged[:-1], (whole, limit, 0), (limit, 1, 0)))
    if count - whole * limit:
        part = (count - whole * limit, step, 0)
        yield _Region(-1, 0, place + whole * limit, (*merged[:-1], part))


def _merged(dims: Iterable[tuple[int, int, int]], *, fill: bool = False) -> Any:
    """`dims` as they lie in the result, outermost first, neighbours of one stride as one."""
    kept: Dims = []
    for count, target, source in sorted(dims, key=lambda d: -d[1]):
        if count == 1:
            continue
        if kept and kept[-1][1] == count * target and (fill or kept[-1][2] == count * source):
            kept[-1] = (kept[-1][0] * count, target, source)
        else:
            kept.append((count, target, source))
    return tuple(kept) or ((1, 1, 1),)


def _plan(
    regions: list[_Region], shape: tuple[int, ...], itemsize: int, numbers: tuple[float, ...]
) -> Any:
    """A kernel and its constants; `numbers` fill, in turns."""
    direct = sum(_moved(r.size, r.run, itemsize) for r in regions)
    best = direct
    chosen = None
    for width in itertools.accumulate(reversed(shape), lambda a, b: a * b):
        assembly = _assembled(regions, math.prod(shape), width, itemsize)
        if assembly is not None:
            moved = _LATENCY_BYTES + math.prod(shape) * itemsize + assembly.loaded(itemsize)
            if moved < best:
                chosen, best = assembly, moved
            break
    if chosen is not None:
        return assembly_kernel, *chosen.constants(itemsize, numbers)
    copies, fills = [], []
    for r in regions:
        goal = tuple((t, n) for n, t, _ in r.dims)
        if r.operand < 0:
            count = r.run
            fills.append((r.place, goal, ((0, r.size // count), (1, count))))
        else:
            copies.append((r.operand, r.start, tuple((s, n) for n, _, s in r.dims), r.place, goal))
    longest = max((pattern[1][1] for _, _, pattern in fills), default=0)
    is_static = sum(r.size // r.run for r in regions) <= _MOST_DESCRIPTORS
    return copy_kernel, tuple(copies), tuple(fills), (longest, *numbers), is_static


def _moved(count: int, run: int, itemsize: int) -> int:
    return max(count * itemsize, count // run * _DESCRIPTOR_BYTES)


class _Assembly(NamedTuple):
    """What `assembly_kernel` does, apart from how many rows it takes at a time, and the numbers."""

    rows: int
    width: int
    loads: Mapping[tuple[Any, ...], int]
    moves: tuple[tuple[Any, ...], ...]
    fills: tuple[tuple[int, Pattern], ...]

    def loaded(self, itemsize: int) -> int:
        """Bytes to load, as `_moved` counts them."""
        total = 0
        for _, _, step, pattern, size in self.loads:
            stride, run = pattern[-1]
            if run == size == step:
                run *= self.rows
            total += _moved(self.rows * size, run if stride == 1 else 1, itemsize)
        return total

    def constants(self, itemsize: int, numbers: tuple[float, ...]) -> tuple[Any, ...]:
        """The kernel's constants."""
        each = itemsize * (self.width + sum(load[4] for load in self.loads))
        fold = max(1, min(_TILE_BYTES // each, -(-self.rows // 128)))
        fills = [f for place, pattern in self.fills for f in _filled(place, pattern, numbers)]
        return (self.rows, self.width, fold), tuple(self.loads), self.moves, tuple(fills)


def _filled(
    place: int, pattern: Pattern, numbers: tuple[float, ...]
) -> Iterable[tuple[int, Pattern, float]]:
    """A fill by one number, or by two in turns: a fill of each, of every second word."""
    step, count = pattern[-1]
    part = (*pattern[:-1], (step * len(numbers), count // len(numbers)))
    for i, number in enumerate(numbers):
        yield place + i * step, part, number


def _assembled(regions: list[_Region], total: int, width: int, itemsize: int) -> _Assembly | None:
    """The assembly of rows of `width`; None where a piece is no part of every row, or a row too
    long."""
    rows = total // width
    loads: dict[tuple[Any, ...], int] = {}
    moves, fills = [], []
    for region in regions:
        outer, inner = _at(region.dims, width)
        row = _merged(outer, fill=region.operand < 0)
        if len(row) > 1 or row[0][0] != rows or region.place >= width:
            return None
        if region.operand < 0:
            target = _merged(inner, fill=True)
            if len(target) > _FREE_DIMS:
                return None
            fills.append((region.place, tuple((t, n) for n, t, _ in target)))
            continue
        in_memory = _merged([(n, s, s) for n, _, s in inner if s])
        size = math.prod(n for n, _, _ in in_memory)
        pattern = tuple((s, n) for n, s, _ in in_memory)
        load = (region.operand, region.start, row[0][2] if rows > 1 else 0, pattern, size)
        number = loads.setdefault(load, len(loads))
        places = _merged([(n, t, _place(s, in_memory)) for n, t, s in inner if n > 1])
        if len(places) > _FREE_DIMS:
            return None
        there = tuple((s, n) for n, _, s in places)
        moves.append((number, there, region.place, tuple((t, n) for n, t, _ in places)))
    if itemsize * (width + sum(load[4] for load in loads)) > _ROW_BYTES:
        return None
    return _Assembly(rows, width, loads, tuple(moves), tuple(fills))


def _at(dims: tuple[tuple[int, int, int], ...], width: int) -> tuple[Dims, Dims]:
    """`dims` of the rows and inside of a row; one that does both is divided."""
    outer: Dims = []
    inner: Dims = []
    for count, target, source in dims:
        here = width // target if target < width and width % target == 0 else 0
        if target >= width:
            outer.append((count, target, source))
        elif here and count > here and count % here == 0:
            outer.append((count // here, width, source * here))
            inner.append((here, target, source))
        else:
            inner.append((count, target, source))
    return outer, inner


def _place(stride: int, in_memory: Sequence[tuple[int, int, int]]) -> int:
    """The stride in a dense tile of what has `stride` in memory."""
    if not stride:
        return 0
    dense = 1
    for count, step, _ in reversed(in_memory):
        if step <= stride < step * count:
            return dense * (stride // step)
        dense *= count
    raise AssertionError(stride)
