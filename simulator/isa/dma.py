"""DMA: `dma_copy`, `dma_transpose`, `dma_compute`, direct and indirect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trnx.simulator.costs.attributes import DmaIssuer, dma_attributes
from trnx.simulator.costs.dma import accumulating, transposing
from trnx.simulator.isa.copy import append_copy, append_transpose, is_turned_by_blocks, transposed
from trnx.simulator.isa.dma_legality import (
    check_descriptors,
    check_hwdge_transpose,
    check_indirect_transpose,
    check_issuer,
    check_read_modify_write,
    check_transpose_destination,
    mode_of,
    transpose_index,
)
from trnx.simulator.isa.indirect import (
    all_rows,
    gather,
    index_view,
    keep_invalid,
    put,
    require_rows_written,
    require_some_written,
    require_unique,
    rows_of,
    unwritten_rows,
)
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.skips import note_skips, require_rows_kept, rows_of_elements
from trnx.simulator.language.enums import DgeMode, Engine, OobMode
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtype_conversion import append_load_f32
from trnx.simulator.memory.storage import DMA_REACHABLE, SBUF
from trnx.simulator.program.propagation import by_element, transposed_place
from trnx.simulator.program.step_effects import Places, moves

_SWAPS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


@instruction(engines=(Engine.dma,), undefined=by_element("src", "dst"))
def dma_copy(
    emit: Emit,
    dst: NkiTensor,
    src: NkiTensor,
    priority: Any = None,
    oob_mode: Any = OobMode.error,
    dge_mode: Any = DgeMode.unknown,
    engine: Any = Engine.unknown,
    name: Any = None,
) -> None:
    """dst = src element by element in row-major order; another dtype goes through float32."""
    _check_pair(emit, dst, src)
    mode = mode_of(emit, DgeMode, dge_mode, "dge_mode")
    check_issuer(emit, mode, engine, priority)
    check_descriptors(emit, mode, dst=dst, src=src)
    emit.attributes = dma_attributes(_issuer(engine, mode, dst, src), _class(emit, priority))
    if src.dtype != dst.dtype and mode is DgeMode.hwdge:
        emit.illegal(f"hwdge cannot convert {src.dtype} to {dst.dtype}")
    skip = mode_of(emit, OobMode, oob_mode, "oob_mode") is OobMode.skip
    if src.indirection is None and dst.indirection is None:
        source = emit.read(src, "src", shape=dst.shape, buffers=DMA_REACHABLE)
        target = emit.write(dst, "dst", buffers=DMA_REACHABLE)
        append_copy(emit, source, src.dtype, target, dst.dtype)
        return
    if src.indirection is not None:
        emit.require(
            not skip or dst.indirection is None,
            "oob_mode.skip with a dynamic address on both sides: rows left out have no place",
        )
        keep = dst if skip else None
        if keep is not None and src.dtype != dst.dtype:
            _gather_converted(emit, dst, src)
            return
        source = _gathered(emit, src, "src", keep, skip).view(dst.shape)
    else:
        source = emit.read(src, "src", shape=dst.shape, buffers=DMA_REACHABLE)
    if dst.indirection is None:
        target = emit.write(dst, "dst", buffers=DMA_REACHABLE)
        append_copy(emit, source, src.dtype, target, dst.dtype)
        return
    staged = emit.scratch(dst.shape, dst.dtype.torch)
    append_copy(emit, source, src.dtype, staged, dst.dtype)
    _scatter(emit, dst, "dst", staged, skip)


def _class(emit: Emit, priority: Any) -> int | None:
    """The class of a transfer (0 to 3, NeuronCore-v4), where one was asked for."""
    if emit.generation < 4 or not isinstance(priority, int):
        return None
    return min(max(int(priority), 0), 3)


_ISSUERS = {
    Engine.gpsimd: DmaIssuer.gpsimd,
    Engine.scalar: DmaIssuer.scalar,
    Engine.sync: DmaIssuer.sync,
}


def _issuer(engine: Any, mode: DgeMode, dst: NkiTensor, src: NkiTensor) -> DmaIssuer:
    """Who issues the transfer, where that is known."""
    if mode is DgeMode.swdge or dst.indirection is not None or src.indirection is not None:
        return DmaIssuer.gpsimd
    if mode is DgeMode.none:
        return DmaIssuer.static
    return _ISSUERS.get(engine, DmaIssuer.unknown)


def _check_pair(emit: Emit, dst: NkiTensor, src: NkiTensor) -> None:
    for operand, tensor in (("dst", dst), ("src", src)):
        emit.check(tensor, operand, DMA_REACHABLE)
        if not tensor.storage.is_on_chip:
            emit.hbm_bytes += tensor.form.size * tensor.dtype.itemsize
    if dst.form.size != src.form.size:
        emit.illegal(f"dst {dst.shape} has {dst.size} elements, src {src.shape} has {src.size}")


# ---- indirect addresses ----


def _gathered(
    emit: Emit, src: NkiTensor, operand: str, keep: NkiTensor | None, skip: bool
) -> torch.Tensor:
    """Scratch of src's shape and dtype with the gathered elements; skipped rows hold `keep`'s."""
    indirect = src.indirection
    assert indirect is not None
    require_some_written(emit, src, operand)
    index = index_view(emit, src, indirect, operand)
    rows, limit = rows_of(emit, src, indirect)
    # What a register loop writes in its first turn, it may read in the second.
    unwritten = None if emit.is_in_loop else unwritten_rows(emit, src, indirect, limit)
    if unwritten is not None:
        what = f"{emit.name}: {operand} ({src.describe()})"
        emit.step(require_rows_written, unwritten, index, what, emit.location)
    if not emit.is_in_loop:
        require_rows_kept(emit, all_rows(src, indirect, limit), operand, index)
    emit.reads(src)
    out = emit.scratch(src.shape, src.dtype.torch)
    if keep is not None:
        _note_rows_kept(emit, keep, src, index, limit)
        emit.step(
            out.view(keep.shape).copy_, emit.overwrite_some(keep, "dst", buffers=DMA_REACHABLE)
        )
    shaped = out if indirect.is_vector else out.view(1, *src.shape)
    emit.step(gather, rows, index, shaped, limit, skip, emit.location)
    return out


def _note_rows_kept(
    emit: Emit, dst: NkiTensor, src: NkiTensor, index: torch.Tensor, limit: int
) -> None:
    """Rows of invalid indices keep dst's elements, if there are any."""
    note_skips(emit, dst, rows_of_elements(dst.shape, index.numel()), index, limit)


def _gather_converted(emit: Emit, dst: NkiTensor, src: NkiTensor) -> None:
    """Gather with another type, where rows of invalid indices keep dst's elements bit by bit."""
    indirect = src.indirection
    assert indirect is not None
    source = _gathered(emit, src, "src", None, True)
    index = index_view(emit, src, indirect, "src")
    _, limit = rows_of(emit, src, indirect)
    _note_rows_kept(emit, dst, src, index, limit)
    fresh, kept = (emit.scratch(dst.shape, dst.dtype.torch) for _ in range(2))
    append_copy(emit, source.view(dst.shape), src.dtype, fresh, dst.dtype)
    emit.step(kept.copy_, emit.overwrite_some(dst, "dst", buffers=DMA_REACHABLE))
    flat = (src.shape[0] if indirect.is_vector else 1, -1)
    emit.step(keep_invalid, index, fresh.view(flat), kept.view(flat), limit)
    emit.step(emit.write(dst, "dst", buffers=DMA_REACHABLE).copy_, kept)


def _scatter(
    emit: Emit,
    dst: NkiTensor,
    operand: str,
    value: torch.Tensor,
    skip: bool,
    is_sum: bool = False,
) -> None:
    indirect = dst.indirection
    assert indirect is not None
    index = index_view(emit, dst, indirect, operand)
    rows, limit = rows_of(emit, dst, indirect)
    emit.writes_some(dst)
    if is_sum:
        emit.step(require_unique, index, limit, emit.location)
    shaped = value if indirect.is_vector else value.view(1, *dst.shape)
    emit.step(put, rows, index, shaped, limit, skip, emit.location)


# ---- transposes and arithmetic ----


@instruction(
    engines=(Engine.dma,), undefined=by_element("dst", src=transposed_place), cost=(transposing,)
)
def dma_transpose(
    emit: Emit,
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: Any = None,
    dge_mode: Any = DgeMode.unknown,
    oob_mode: Any = OobMode.error,
    name: Any = None,
) -> None:
    """Reverse the dimensions of `src`: (1, 0), (2, 1, 0) or (3, 1, 2, 0)."""
    _check_pair(emit, dst, src)
    emit.attributes = dma_attributes(DmaIssuer.unknown, _class(emit, priority))
    mode = mode_of(emit, DgeMode, dge_mode, "dge_mode")
    skip = mode_of(emit, OobMode, oob_mode, "oob_mode") is OobMode.skip
    check_issuer(emit, mode, None, priority)
    if src.ndim not in _SWAPS:
        emit.illegal(f"src has {src.ndim} dimensions; 2, 3 and 4 are possible")
    order = _SWAPS[src.ndim] if axes is None else tuple(axes)
    if order != _SWAPS[src.ndim]:
        emit.illegal(
            f"axes {order} are not possible; {src.ndim} dimensions take {_SWAPS[src.ndim]}"
        )
    wanted = tuple(src.shape[axis] for axis in order)
    if dst.shape != wanted:
        emit.illegal(f"dst is {dst.shape}; the transpose of src is {wanted}")
    if dst.dtype != src.dtype:
        emit.illegal(f"dst is {dst.dtype}, src {src.dtype}; they must be equal")
    if src.indirection is not None:
        emit.require(emit.generation >= 3, "an indirect transpose needs trn2 or newer")
        check_indirect_transpose(emit, src, mode)
        source = _gathered_columns(emit, src, dst if skip else None).permute(order)
    else:
        emit.require(not skip, "oob_mode.skip is for indirect sources")
        check_hwdge_transpose(emit, src, mode)
        emit.read(src, "src", buffers=DMA_REACHABLE)
        # A view of its own: binding retargets the objects that steps hold, not views of them.
        strides = tuple(src.strides[axis] for axis in order)
        source = src.storage.view(src.dtype, wanted, strides, src.offset)
    target = emit.write(dst, "dst", buffers=DMA_REACHABLE, elementwise=False)
    if src.indirection is None and src.ndim < 4 and dst.is_on_chip:
        _append_reversed(emit, src, target)
    else:
        emit.step(target.copy_, source)
    check_transpose_destination(emit, dst)


def _gathered_columns(emit: Emit, src: NkiTensor, keep: NkiTensor | None) -> torch.Tensor:
    """Scratch with the rows of `src` that the index names, which counts down its columns; skipped
    rows hold what `keep`, the transpose, has.
    """
    indirect = src.indirection
    assert indirect is not None
    index = transpose_index(emit, src, indirect)
    stored = emit.read(index, "index of src", buffers=SBUF)
    flat = emit.scratch((index.size,), index.dtype.torch)
    emit.step(flat.view(index.shape[1], index.shape[0]).t().copy_, stored)
    rows, limit = rows_of(emit, src, indirect)
    emit.reads(src)
    out = emit.scratch(src.shape, src.dtype.torch)
    chosen = flat[: src.shape[0]]
    if keep is not None:
        order = _SWAPS[src.ndim]
        places = rows_of_elements(src.shape, src.shape[0]).permute(order)
        note_skips(emit, keep, places, chosen, limit)
        kept = emit.overwrite_some(keep, "dst", buffers=DMA_REACHABLE)
        emit.step(out.permute(order).copy_, kept)
    emit.step(gather, rows, chosen, out, limit, keep is not None, emit.location)
    return out


def _append_reversed(emit: Emit, src: NkiTensor, target: torch.Tensor) -> None:
    """Two or three dimensions reversed: a dense source in one go where that is fast, else plane by
    plane through contiguous scratch.

    One strided copy of it all takes two to four times as long: columns share cache sets.
    """
    rows, columns = src.shape[0], src.shape[-1]
    planes = src.shape[1] if src.ndim == 3 else 1
    source = src.torch_view()
    if source.is_contiguous() and is_turned_by_blocks(source):
        emit.step(_reverse, source, target, (rows, planes, columns))
        return
    step = src.strides[1] if src.ndim == 3 else 0
    held = emit.scratch((rows, columns), src.dtype.torch)
    by_plane = target.as_strided(
        (planes, columns, rows),
        (target.stride(1) if src.ndim == 3 else 0, target.stride(0), target.stride(-1)),
    )
    for plane in range(planes):
        strides = (src.strides[0], src.strides[-1])
        offset = src.offset + plane * step
        emit.step(held.copy_, src.storage.view(src.dtype, (rows, columns), strides, offset))
        append_transpose(emit, held, by_plane[plane])


def _reversed_places(
    source: torch.Tensor, target: torch.Tensor, sizes: tuple[int, int, int]
) -> Places:
    rows, planes, columns = sizes
    if target.ndim == 2:
        return source, target, (columns, rows), (1, columns)
    return source, target, (columns, planes, rows), (1, columns, planes * columns)


@moves(_reversed_places)
def _reverse(source: torch.Tensor, target: torch.Tensor, sizes: tuple[int, int, int]) -> None:
    rows, planes, columns = sizes
    turned = transposed(source.view(rows, planes * columns)).view(planes, columns, rows)
    target.copy_(turned[0] if target.ndim == 2 else turned.transpose(0, 1))


@instruction(engines=(Engine.dma,), cost=(accumulating,))
def dma_compute(
    emit: Emit,
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: Any = OobMode.error,
    name: Any = None,
) -> None:
    """dst = sum of `srcs` in float32; with an indirect operand, a scatter or gather read-modify-
    write.
    """
    emit.require(getattr(reduce_op, "name", None) == "add", "reduce_op must be nl.add")
    emit.require(isinstance(srcs, list | tuple), "srcs must be a list of tensors")
    factors = [1.0] * len(srcs) if scales is None else scales
    emit.require(
        isinstance(factors, list | tuple) and len(factors) == len(srcs), "one scale for each source"
    )
    emit.require(all(factor == 1.0 for factor in factors), "every scale must be 1.0")
    if not (1 <= len(srcs) <= 16):
        emit.illegal(f"{len(srcs)} sources; 1 to 16 are possible")
    for src in srcs:
        _check_pair(emit, dst, src)
    indirect = [t for t in (dst, *srcs) if t.indirection is not None]
    # SDK/nki/api/nki/isa/__init__.py (dma_compute): software descriptors for a read-modify-write,
    # static ones for anything else.
    emit.attributes = dma_attributes(DmaIssuer.gpsimd if indirect else DmaIssuer.static)
    if indirect:
        fixed = all(t.indirection is not None and t.indirection.is_vector for t in indirect)
        emit.require(fixed, "addresses must be known beforehand, but for a vector_offset")
        check_read_modify_write(emit, dst, srcs)
        emit.require(unique_indices, "unique_indices must be True")
    skip = mode_of(emit, OobMode, oob_mode, "oob_mode") is OobMode.skip
    emit.require(bool(indirect) or not skip, "oob_mode.skip needs an indirect operand")
    values = [_as_f32(emit, src, dst, skip) for src in srcs]
    total = emit.scratch(dst.shape, torch.float32)
    emit.step(total.copy_, values[0])
    for value in values[1:]:
        emit.step(total.add_, value)
    if dst.indirection is None:
        emit.step(emit.write_f32(dst, "dst", buffers=DMA_REACHABLE).copy_, total)
        return
    staged = emit.scratch(dst.shape, dst.dtype.torch)
    emit.store_f32(dst.dtype, total, staged)
    _scatter(emit, dst, "dst", staged, skip, is_sum=True)


def _as_f32(emit: Emit, src: NkiTensor, dst: NkiTensor, skip: bool) -> torch.Tensor:
    """A source as float32 in dst's shape; the elements of skipped indices count as 0."""
    if src.indirection is None:
        return emit.read_f32(src, "srcs", shape=dst.shape, buffers=DMA_REACHABLE)
    raw = _gathered_or_zero(emit, src, skip)
    value = emit.scratch((math.prod(src.shape),))
    append_load_f32(emit.steps, src.dtype, raw.view(-1), value)
    return value.view(dst.shape)


def _gathered_or_zero(emit: Emit, src: NkiTensor, skip: bool) -> torch.Tensor:
    out = emit.scratch(src.shape, src.dtype.torch)
    indirect = src.indirection
    assert indirect is not None
    require_some_written(emit, src, "srcs")
    index = index_view(emit, src, indirect, "srcs")
    rows, limit = rows_of(emit, src, indirect)
    emit.reads(src)
    emit.step(out.zero_)
    shaped = out if indirect.is_vector else out.view(1, *src.shape)
    emit.step(gather, rows, index, shaped, limit, skip, emit.location)
    return out
