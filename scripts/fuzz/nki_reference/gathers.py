"""GpSimd: local_gather, nc_n_gather, topk, nonzero_with_count, sequence_bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference.machine import Machine
from nki_reference.numbers import ANY, STORED
from nki_reference.program import View
from nki_reference.program_builder import TAME, ProgramBuilder
from nki_reference.table import entry

CORE = 16


def _draw_n_gather(s: ProgramBuilder) -> None:
    flat = s.extent()
    count = s.c.pick((1, 8, 33, 512))
    data = s.tile(flat, (s.dtype(ANY),), ("sbuf",))
    indices = s.values.integers(0, flat[1], (flat[0], count)).astype(np.uint32)
    index = s.tile((flat[0], count), ("uint32",), ("sbuf",), values=indices, reuse=False)
    dst = s.tile((flat[0], count), (data.dtype,), ("sbuf",), dst=True)
    s.call("nc_n_gather", dst=dst, data=data, indices=index)


@entry("nc_n_gather", _draw_n_gather, moves=True)
def nc_n_gather(m: Machine, dst: View, data: View, indices: View, name: Any = None) -> None:
    """dst[p, i] = data[p, indices[p, i]]."""
    for tile in (dst, data):
        m.tile(tile, ANY, ("sbuf",))
    m.tile(indices, ("uint32",), ("sbuf",))
    m.require(dst.dtype == data.dtype, "dst and data differ in type")
    m.require(dst.partitions == data.partitions and dst.flat == indices.flat, "sizes")
    index = m.elements(indices).astype(np.int64)
    m.require((index < data.free).all(), "an index is out of bounds")
    m.put(dst, np.take_along_axis(m.elements(data), index, 1))


def _draw_local_gather(s: ProgramBuilder) -> None:
    partitions = s.c.pick((16, 32, 64, 128))
    span = s.c.pick((1, 2, 4, 8))
    free = span + s.c.pick((0, 1, 31, 100))
    columns = s.c.pick((1, 2, 5))
    src = s.tile((partitions, free), (s.dtype(ANY),), ("sbuf",))
    values = s.values.integers(0, free - span + 1, (partitions, columns)).astype(np.uint16)
    index = s.tile((partitions, columns), ("uint16",), ("sbuf",), values=values, reuse=False)
    count = CORE * columns
    valid = s.c.integer(1, count) if s.c.flag(40) else None
    dst = s.tile((partitions, (valid or count) * span), (src.dtype,), ("sbuf",), dst=True)
    s.call(
        "local_gather",
        dst=dst,
        src_buffer=src,
        index=index,
        num_elem_per_idx=span if span > 1 or s.c.flag() else None,
        num_valid_indices=valid,
    )


@entry("local_gather", _draw_local_gather, moves=True)
def local_gather(
    m: Machine,
    dst: View,
    src_buffer: View,
    index: View,
    num_elem_per_idx: Any = 1,
    num_valid_indices: Any = None,
    name: Any = None,
) -> None:
    """Each 16 partitions gather by their own list of indices, which counts down partitions."""
    m.tile(dst, ANY, ("sbuf",))
    m.tile(src_buffer, ANY, ("sbuf",))
    m.tile(index, ("uint16",), ("sbuf",))
    m.require(dst.dtype == src_buffer.dtype, "types")
    partitions = src_buffer.partitions
    m.require(partitions == index.partitions and partitions % CORE == 0, "partitions")
    m.require(type(num_elem_per_idx) is int, "num_elem_per_idx")
    m.require(num_elem_per_idx in (1, 2, 4, 8, 16, 32), "num_elem_per_idx")
    available = CORE * index.free
    count = available if num_valid_indices is None else num_valid_indices
    m.require(type(count) is int and 0 < count <= min(available, 4096), "num_valid_indices")
    m.require(dst.flat == (partitions, count * num_elem_per_idx), "size of dst")
    source, lists = m.elements(src_buffer), m.elements(index).astype(np.int64)
    result = np.empty(dst.flat, dtype=source.dtype)
    for first in range(0, partitions, CORE):
        wanted = lists[first : first + CORE].T.reshape(-1)[:count]
        positions = (wanted[:, None] + np.arange(num_elem_per_idx)).reshape(-1)
        m.require((positions < src_buffer.free).all(), "an index is out of bounds")
        result[first : first + CORE] = source[first : first + CORE, positions]
    m.put(dst, result)


def _draw_topk(s: ProgramBuilder) -> None:
    partitions = s.c.pick((16, 32, 128))
    columns = s.c.integer(1, 8)
    n = s.c.integer(max(8, CORE * (columns - 1)), CORE * columns)
    k = s.c.integer(1, min(n, 20))
    # Distinct values: which of several equal ones is taken is not documented.
    values = np.stack(
        [s.values.permutation(CORE * columns) for _ in range(partitions // CORE)]
    ).reshape(-1, columns, CORE)
    stored = (values.transpose(0, 2, 1).reshape(partitions, columns) - 60).astype(np.float32)
    src = s.tile(
        (partitions, columns),
        ("bfloat16",),
        ("sbuf",),
        values=stored.astype(STORED["bfloat16"]),
        reuse=False,
    )
    val = s.tile((partitions, k), ("bfloat16",), ("sbuf",), dst=True, apart=(src,))
    idx = s.tile((partitions, k), ("uint32",), ("sbuf",), dst=True, apart=(src, val), reuse=False)
    s.call("topk", val_dst=val, idx_dst=idx, src=src, n=n)


@entry("topk", _draw_topk)
def topk(m: Machine, val_dst: View, idx_dst: View, src: View, n: Any, name: Any = None) -> None:
    """The K largest of the first n of each snake of 16 partitions, ascending, and their indices."""
    m.tile(val_dst, ("bfloat16",), ("sbuf",))
    m.tile(idx_dst, ("uint32",), ("sbuf",))
    m.tile(src, ("bfloat16",), ("sbuf",))
    k = val_dst.free
    m.require(src.partitions % CORE == 0, "partitions")
    m.require(src.partitions == val_dst.partitions and val_dst.flat == idx_dst.flat, "sizes")
    m.require(type(n) is int and 8 <= n < 65536 and src.free * CORE >= n, "n")
    m.require(k < 32768 and k <= n, "K")
    m.require(val_dst.storage is not idx_dst.storage, "the results overlap")
    stored = m.elements(src)
    values = np.empty(val_dst.flat, dtype=stored.dtype)
    indices = np.empty(idx_dst.flat, dtype=np.uint32)
    for first in range(0, src.partitions, CORE):
        snake = stored[first : first + CORE].T.reshape(-1)[:n]
        order = np.argsort(snake.astype(np.float32), kind="stable")[-k:]
        values[first : first + CORE] = snake[order]
        indices[first : first + CORE] = order
        # Equal values: any of their indices.
        m.ties |= np.unique(snake[order].astype(np.float32)).size < k or (
            k < n
            and bool(
                (np.sort(snake.astype(np.float32))[-k - 1] == snake[order].astype(np.float32)).any()
            )
        )
    m.put(val_dst, values)
    m.put(idx_dst, indices)
    if m.ties:
        m.bound(idx_dst, np.zeros_like(indices), np.full_like(indices, n - 1))
        m.ties = False


def _draw_nonzero(s: ProgramBuilder) -> None:
    partitions = s.c.pick((1, 16, 17, 64, 128))
    free = s.c.pick((1, 8, 33, 200))
    src = s.tile((partitions, free), ("float32", "int32"), ("sbuf",), kind=TAME)
    dst = s.tile(
        (partitions, free + 1),
        ("int32",),
        ("sbuf",),
        dims=2,
        apart=(src,),
        reuse=False,
        static=True,
    )
    if np.unique(dst.index).size < dst.index.size:
        dst = s.whole(s.storage((partitions, free + 1), "int32"))
    s.call(
        "nonzero_with_count",
        dst=dst,
        src=src,
        index_offset=s.c.pick((None, 0, 16, -5)),
        padding_val=s.c.pick((None, -1, 7)),
    )


@entry("nonzero_with_count", _draw_nonzero, generations=(3, 4))
def nonzero_with_count(
    m: Machine,
    dst: View,
    src: View,
    index_offset: Any = 0,
    padding_val: Any = -1,
    name: Any = None,
) -> None:
    """On partitions 0, 16, ...: indices of what is not 0, padding, the count."""
    m.since(3)
    m.tile(dst, ("int32",), ("sbuf",))
    m.tile(src, ("float32", "int32"), ("sbuf",))
    m.require(dst.flat == (src.partitions, src.free + 1), "size of dst")
    for number in (index_offset, padding_val):
        m.require(isinstance(number, int) and -(2**31) <= number < 2**31, "not int32")
    result = np.zeros(dst.flat, dtype=np.int32)
    written = np.zeros(dst.flat, dtype=bool)
    indices = m.indices(src).reshape(src.flat)[::CORE]
    m.require(m.written[src.storage][indices].all(), "src is not written")
    for row, values in zip(
        range(0, src.partitions, CORE), m.memory[src.storage][indices], strict=True
    ):
        found = np.flatnonzero(values)
        result[row] = padding_val
        result[row, : found.size] = found + index_offset
        result[row, -1] = found.size
        written[row] = True
    m.put(dst, result, written)


def _draw_bounds(s: ProgramBuilder) -> None:
    length = s.c.pick((1, 2, 17, 512))
    lengths = s.values.integers(1, 6, length)
    ids = np.repeat(s.values.integers(0, 4, length), lengths)[:length]
    dtype = s.c.pick(("float32", "int32"))
    segments = s.tile(
        (1, length), (dtype,), ("sbuf",), values=ids.astype(STORED[dtype]), reuse=False
    )
    dst = s.tile((1, 2 * length), ("float32", "int32"), ("sbuf",), dst=True, apart=(segments,))
    s.call("sequence_bounds", dst=dst, segment_ids=segments)


@entry("sequence_bounds", _draw_bounds)
def sequence_bounds(m: Machine, dst: View, segment_ids: View, name: Any = None) -> None:
    """Start and exclusive end of each element's segment; (n, -1) for padding."""
    m.tile(dst, ("float32", "int32"), ("sbuf",))
    m.tile(segment_ids, ("float32", "int32"), ("sbuf",))
    length = segment_ids.free
    m.require(segment_ids.partitions == 1 and dst.flat == (1, 2 * length), "sizes")
    ids = m.elements(segment_ids)[0]
    m.require(bool((ids >= 0).all() and (ids == np.trunc(ids)).all()), "no segment's number")
    result = np.zeros((2, length))
    start = 0
    for i in range(length):
        if i and ids[i] != ids[i - 1]:
            start = i
        end = i + 1
        while end < length and ids[end] == ids[i]:
            end += 1
        result[:, i] = (length, -1) if ids[i] == 0 else (start, end)
    m.put(dst, result.reshape(1, -1).astype(STORED[dst.dtype]))
