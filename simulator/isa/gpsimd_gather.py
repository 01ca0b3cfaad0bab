"""Gathers and top-k on GpSimd: local_gather, nc_n_gather, topk.

An index out of bounds, whose effect is undefined on the device, raises OutOfBoundsError in every
run. Source: the entries of these names in SDK nki.isa, and nki/test/test_nki_isa_local_gather.py
for the order of local_gather's indices.
"""

from __future__ import annotations

import torch

from trnx.simulator.costs.vector import on_gpsimd, sorted_out
from trnx.simulator.errors import Location, OutOfBoundsError
from trnx.simulator.isa.gpsimd import core_groups
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import bits_of, flat, in_sbuf, is_overlapping, require_dtype
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_element, same_partition

_CORE = 16
_MAX_INDICES = 4096
_ELEMENTS_PER_INDEX = (1, 2, 4, 8, 16, 32)


def _check_bounds(indices: torch.Tensor, limit: int, location: Location | None) -> None:
    if indices.numel() and bool((indices >= limit).any() | (indices < 0).any()):
        raise OutOfBoundsError(
            "gather-index",
            f"an index of {int(indices.max())} exceeds the {limit} elements of a partition",
            location,
        )


@instruction(engines=(Engine.gpsimd,))
def nc_n_gather(
    emit: Emit, dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None
) -> None:
    """dst[p, i] = data[p, indices[p, i]], free dimensions flattened."""
    in_sbuf(emit, dst=dst, data=data, indices=indices)
    require_dtype(emit, "indices", indices, ("uint32",))
    if dst.dtype != data.dtype:
        emit.illegal(f"dst is {dst.dtype}, data is {data.dtype}; must be equal")
    if dst.shape[0] != data.shape[0] or flat(dst) != flat(indices):
        emit.illegal(
            f"dst has shape {dst.shape}, indices {indices.shape}, data {data.shape}; "
            "partitions must be equal, and the elements per partition of dst and indices"
        )
    source = bits_of(emit.read(data, "data", shape=flat(data)))
    index = emit.read(indices, "indices", shape=flat(indices))
    out = bits_of(emit.write(dst, "dst", shape=flat(dst), elementwise=False))
    wide = emit.scratch(flat(indices), torch.int64)
    emit.step(_gather, source, index, wide, out, emit.location)


def _gather(
    source: torch.Tensor,
    index: torch.Tensor,
    wide: torch.Tensor,
    out: torch.Tensor,
    location: Location | None,
) -> None:
    wide.copy_(index)
    _check_bounds(wide, source.shape[1], location)
    out.copy_(source.gather(1, wide))


@instruction(engines=(Engine.gpsimd,), undefined=by_element(src_buffer=same_partition))
def local_gather(
    emit: Emit,
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> None:
    """Each group of 16 partitions gathers by its own indices, flattened partition first."""
    in_sbuf(emit, dst=dst, src_buffer=src_buffer, index=index)
    require_dtype(emit, "index", index, ("uint16",))
    emit.require(dst.dtype == src_buffer.dtype, "dst and src_buffer differ in dtype")
    partitions = src_buffer.shape[0]
    if not (partitions == index.shape[0] and partitions % _CORE == 0):
        emit.illegal(
            f"src_buffer has {partitions} partitions, index {index.shape[0]}; they must be equal "
            "and a multiple of 16"
        )
    if num_elem_per_idx not in _ELEMENTS_PER_INDEX:
        emit.illegal(f"num_elem_per_idx={num_elem_per_idx} must be one of {_ELEMENTS_PER_INDEX}")
    available = _CORE * index.free_size
    count = available if num_valid_indices is None else num_valid_indices
    if not (0 < count <= min(available, _MAX_INDICES)):
        emit.illegal(f"num_valid_indices={count} must be 1 to {min(available, _MAX_INDICES)}")
    if dst.shape[0] != partitions or dst.free_size != count * num_elem_per_idx:
        emit.illegal(
            f"dst has shape {dst.shape}; expected ({partitions}, {count * num_elem_per_idx})"
        )
    source = bits_of(emit.read(src_buffer, "src_buffer", shape=flat(src_buffer)))
    lists = emit.read(index, "index", shape=flat(index))
    out = bits_of(emit.write(dst, "dst", shape=flat(dst), elementwise=False))
    span = torch.arange(num_elem_per_idx, device="cpu")
    groups = core_groups(src_buffer)
    emit.step(_gather_groups, source, lists, groups, count, span, out, emit.location)


def _gather_groups(
    source: torch.Tensor,
    lists: torch.Tensor,
    groups: list[tuple[int, int]],
    count: int,
    span: torch.Tensor,
    out: torch.Tensor,
    location: Location | None,
) -> None:
    for first, last in groups:
        indices = lists[first:last].to(torch.int64).t().reshape(-1)[:count]
        positions = (indices[:, None] + span).reshape(-1)
        _check_bounds(positions, source.shape[1], location)
        out[first:last] = source[first:last].index_select(1, positions)


@instruction(engines=(Engine.gpsimd,), cost=(on_gpsimd(sorted_out),))
def topk(
    emit: Emit,
    val_dst: NkiTensor,
    idx_dst: NkiTensor,
    src: NkiTensor,
    n: int,
    name: str | None = None,
) -> None:
    """The K largest of the n elements of each group of 16 partitions, ascending, and their indices.

    Element i of a group lies at partition i % 16, column i // 16. Every partition of the group gets
    the result.
    """
    in_sbuf(emit, val_dst=val_dst, idx_dst=idx_dst, src=src)
    require_dtype(emit, "src", src, ("bfloat16",))
    require_dtype(emit, "val_dst", val_dst, ("bfloat16",))
    require_dtype(emit, "idx_dst", idx_dst, ("uint32",))
    k = val_dst.free_size
    emit.require(
        src.shape[0] % _CORE == 0 and src.shape[0] == val_dst.shape[0] == idx_dst.shape[0],
        "src, val_dst and idx_dst must have the same number of partitions, a multiple of 16",
    )
    emit.require(not is_overlapping(val_dst, idx_dst), "val_dst and idx_dst overlap")
    emit.require(idx_dst.free_size == k, "val_dst and idx_dst differ in elements per partition")
    if not (8 <= n < 65536):
        emit.illegal(f"n={n} must be 8 to 65535")
    if not (1 <= k < 32768 and k <= n):
        emit.illegal(f"K={k} must be 1 to {min(n, 32767)}")
    if src.free_size * _CORE < n:
        emit.illegal(f"src has {src.free_size} columns, too few for n={n}")
    value = emit.read(src, "src", shape=flat(src))
    values = emit.write(val_dst, "val_dst", shape=flat(val_dst), elementwise=False)
    indices = emit.write(idx_dst, "idx_dst", shape=flat(idx_dst), elementwise=False)
    emit.step(_topk, value, n, k, core_groups(src), values, indices)


def _topk(
    source: torch.Tensor,
    n: int,
    k: int,
    groups: list[tuple[int, int]],
    values: torch.Tensor,
    indices: torch.Tensor,
) -> None:
    for first, last in groups:
        snake = source[first:last].t().reshape(-1)[:n]
        largest, positions = torch.topk(snake, k, 0, True, True)
        values[first:last] = largest.flip(0)
        indices[first:last] = positions.flip(0).to(torch.uint32)
