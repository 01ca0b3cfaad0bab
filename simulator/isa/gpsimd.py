"""GpSimd: iota, affine_select, tensor_partition_reduce, nonzero_with_count, sequence_bounds.

GpSimd reaches SBUF only. What iota and affine_select derive from their pattern is computed once,
when the instruction is recorded; a register as offset makes it part of every run. Source: the
entries of these names in SDK nki.isa.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch

from trnx.simulator.costs.vector import on_gpsimd, per_element
from trnx.simulator.errors import IllegalInstructionError, Location
from trnx.simulator.isa.alu import operator, token_name
from trnx.simulator.isa.arguments import integer, integers
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import (
    bits_of,
    constant,
    encoded,
    flat,
    in_sbuf,
    is_bits,
    match_tiles,
    number,
    require_dtype,
)
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.operators.table import OPERATORS, Operator, find
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import SBUF
from trnx.simulator.program.propagation import (
    by_element,
    by_partition,
    other_partitions,
    rows_of_gpsimd_cores,
)

_COMPARISONS = ("equal", "not_equal", "greater_equal", "greater", "less_equal", "less")


Pattern = tuple[tuple[int, int], ...]


def _checked_pattern(emit: Emit, dst: NkiTensor, pattern: Any) -> Pattern:
    """The pattern as (step, count) pairs that give dst's elements per partition."""
    rows = pattern if isinstance(pattern, tuple | list) else ()
    if not (1 <= len(rows) <= 4):
        emit.illegal(f"pattern {pattern} must have 1 to 4 pairs [step, count]")
    pairs = [integers(emit, row, "pattern") for row in rows]
    if not all(len(pair) == 2 and pair[1] > 0 for pair in pairs):
        emit.illegal(f"pattern {pattern} must be pairs [step, count] with positive counts")
    steps = tuple((step, count) for step, count in pairs)
    size = math.prod(count for _, count in steps)
    if size != dst.free_size:
        emit.illegal(
            f"pattern {pattern} gives {size} elements per partition; dst has {dst.free_size}"
        )
    return steps


def _affine(partitions: int, pattern: Pattern, offset: int, multiplier: int) -> torch.Tensor:
    """offset + partition * multiplier + sum(step * index), as int64 [partitions, elements].

    The engine computes in 32 bits: values wrap around.
    """
    values = torch.arange(partitions, device="cpu")[:, None] * multiplier + offset
    for step, count in pattern:
        values = (values[..., None] + torch.arange(count, device="cpu") * step).flatten(1)
    return wrap_int32(values)


def wrap_int32(values: torch.Tensor) -> torch.Tensor:
    """The low 32 bits of int64 values, with sign."""
    return values.to(torch.int32).to(torch.int64)


def _store_integers(values: torch.Tensor, dtype: DType, out: torch.Tensor) -> None:
    """Convert int32 values into `out`: 32-bit types keep the bits, narrower integers saturate."""
    if dtype.limits is not None and dtype.itemsize < 4:
        values = values.clamp(*dtype.limits)
    out.copy_(values if dtype.limits is not None else values.to(torch.float32))


@instruction(engines=(Engine.gpsimd,))
def iota(
    emit: Emit,
    dst: NkiTensor,
    pattern: Any,
    offset: Any = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> None:
    """dst[p, i...] = offset + p * channel_multiplier + sum(step * i)."""
    emit.check(dst, "dst", SBUF)
    if dst.dtype.is_packed:
        emit.illegal(f"dst is {dst.dtype}, which has no arithmetic")
    steps = _checked_pattern(emit, dst, pattern)
    shape = flat(dst)
    multiplier = integer(emit, channel_multiplier, "channel_multiplier")
    # Partitions with equal values need one row of them: steps keep what they copy.
    partitions = dst.shape[0] if multiplier else 1
    if isinstance(offset, VirtualRegister):
        values = _affine(partitions, steps, 0, multiplier)
        write = emit.write_f32 if dst.dtype.is_float else emit.write
        emit.step(_iota_from_register, values, offset, dst.dtype, write(dst, "dst", shape=shape))
        return
    values = _affine(partitions, steps, integer(emit, offset, "offset"), multiplier)
    if dst.dtype.needs_codec:
        emit.step(emit.write_f32(dst, "dst", shape=shape).copy_, values.to(torch.float32))
        return
    ready = torch.empty(values.shape, dtype=dst.dtype.torch, device="cpu")
    _store_integers(values, dst.dtype, ready)
    emit.step(emit.write(dst, "dst", shape=shape).copy_, ready)


def _iota_from_register(
    values: torch.Tensor, register: VirtualRegister, dtype: DType, out: torch.Tensor
) -> None:
    _store_integers(wrap_int32(values + register.value), dtype, out)


@instruction(engines=(Engine.gpsimd,), undefined=by_partition())
def affine_select(
    emit: Emit,
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: Any,
    cmp_op: Any = None,
    offset: Any = 0,
    name: str | None = None,
) -> None:
    """dst = on_true_tile where `affine <cmp_op> 0`, else on_false_value."""
    in_sbuf(emit, dst=dst, on_true_tile=on_true_tile)
    match_tiles(emit, dst, on_true_tile=on_true_tile)
    compare = OPERATORS["equal"]
    if cmp_op is not None:
        compare = operator(emit, cmp_op, "cmp_op", _COMPARISONS)
    fill = constant(number(emit, on_false_value, "on_false_value"))
    steps = _checked_pattern(emit, dst, pattern)
    shape = flat(dst)
    if dst.dtype == on_true_tile.dtype:
        # Equal types are copied bit by bit; the number rounds to the type as a result would.
        fill = encoded(float(fill), dst.dtype)
        value = emit.read(on_true_tile, "on_true_tile", shape=shape)
        target = emit.write(dst, "dst", shape=shape)
    else:
        value = emit.read_f32(on_true_tile, "on_true_tile", shape=shape)
        target = emit.write_f32(dst, "dst", shape=shape)
    if isinstance(offset, VirtualRegister):
        affine = _affine(
            dst.shape[0], steps, 0, integer(emit, channel_multiplier, "channel_multiplier")
        )
        operands = (bits_of(value), bits_of(fill), bits_of(target))
        emit.step(_select_from_register, compare.function, affine, offset, *operands)
        return
    bits = int(bits_of(fill))
    selection = _Selection(
        dst.shape[0],
        steps,
        integer(emit, offset, "offset"),
        integer(emit, channel_multiplier, "channel_multiplier"),
        compare,
        bits,
        target.itemsize,
    )
    keep, filled = _MASKS.get_or_make(selection, selection.masks)
    # Two bit operations are several times faster than torch.where.
    out = bits_of(target)
    if keep is None:
        emit.step(out.copy_, filled)
    elif filled is None:
        emit.step(target.copy_, value)
    else:
        emit.step(torch.bitwise_and, bits_of(value), keep, out=out)
        emit.step(out.bitwise_or_, filled)


class _Selection(NamedTuple):
    """A selection by an affine predicate, for elements of `itemsize` bytes."""

    partitions: int
    pattern: Pattern
    offset: int
    multiplier: int
    compare: Operator
    fill: int
    itemsize: int

    def masks(self) -> _Masks:
        """Masks of bits: all ones where the predicate holds, else 0; and `fill` where it does not.

        The first is None where the predicate holds nowhere, the second where it holds everywhere.
        """
        dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32}[self.itemsize]
        affine = _affine(self.partitions, self.pattern, self.offset, self.multiplier)
        chosen: torch.Tensor = self.compare.function(affine, 0)
        keep = -chosen.to(dtype) if bool(chosen.any()) else None
        filled = (~chosen).to(dtype) * self.fill if not bool(chosen.all()) else None
        return keep, filled


_Masks = tuple[torch.Tensor | None, torch.Tensor | None]


def _bytes_of(kept: Collection[_Masks]) -> int:
    return sum(mask.nbytes for masks in kept for mask in masks if mask is not None)


# Kernels ask for the same few selections again and again, of at most 256 KiB a mask: eight or more
# are kept, where the attention of a training step has seven.
_MASKS: LruCache[_Masks] = LruCache(128, 4 << 20, _bytes_of)


def _select_from_register(
    compare: Any,
    affine: torch.Tensor,
    register: VirtualRegister,
    chosen: torch.Tensor,
    fill: torch.Tensor,
    out: torch.Tensor,
) -> None:
    mask = compare(wrap_int32(affine + register.value), 0)
    torch.where(mask, chosen, fill, out=out)


_PARTITION_OPS = ("add", "average", "max", "maximum", "bitwise_or", "bitwise_and")


@instruction(engines=(Engine.gpsimd,), cost=(on_gpsimd(per_element(16)),))
def tensor_partition_reduce(
    emit: Emit, dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None
) -> None:
    """dst[0] = op-reduce of data over its partitions."""
    in_sbuf(emit, dst=dst, data=data)
    kind = token_name(op)
    if kind not in _PARTITION_OPS:
        emit.illegal(f"op={kind} is not supported; use one of {', '.join(_PARTITION_OPS)}")
    if dst.shape[0] != 1 or dst.free_size != data.free_size:
        emit.illegal(f"dst has shape {dst.shape}; expected (1, {data.free_size})")
    found = find(kind)
    if found is not None and found.is_bitvec:
        if not (
            is_bits(data.dtype) and data.dtype.itemsize == dst.dtype.itemsize and is_bits(dst.dtype)
        ):
            emit.illegal(f"nl.{kind} takes integers of one width, not {data.dtype} and {dst.dtype}")
        bits = bits_of(emit.read(data, "data", shape=flat(data)))
        target = bits_of(emit.write(dst, "dst", shape=flat(dst), elementwise=False))
        emit.step(found.reduce(), bits.t(), out=target.t())
        return
    value = emit.read_f32(data, "data", shape=flat(data))
    out = emit.write_f32(dst, "dst", shape=flat(dst), elementwise=False)
    if kind == "add":
        emit.step(torch.sum, value, 0, True, out=out)
    elif kind == "average":
        emit.step(torch.mean, value, 0, True, out=out)
    else:
        emit.step(torch.amax, value, 0, True, out=out)


_CORE = 16  # partitions per GpSimd core


@instruction(engines=(Engine.gpsimd,), generation=3)
def nonzero_with_count(
    emit: Emit,
    dst: NkiTensor,
    src: NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> None:
    """On partitions 0, 16, ...: indices of nonzero elements, padding, and their count last."""
    in_sbuf(emit, dst=dst, src=src)
    require_dtype(emit, "src", src, ("float32", "int32"))
    require_dtype(emit, "dst", dst, ("int32",))
    if dst.shape[0] != src.shape[0] or dst.free_size != src.free_size + 1:
        emit.illegal(f"dst has shape {dst.shape}; expected ({src.shape[0]}, {src.free_size + 1})")
    first_rows = range(0, src.shape[0], _CORE)
    emit.propagation = by_element(
        src=rows_of_gpsimd_cores, dst=functools.partial(other_partitions, first_rows)
    )
    rows = emit.read(src[::_CORE], "src", shape=(len(first_rows), src.free_size))
    if not (dst.ndim == 2 or dst.is_contiguous()):
        emit.illegal(f"dst {dst.shape} has gaps")
    target = emit.update(dst, "dst", buffers=SBUF).flatten(1)[::_CORE]
    offset = integer(emit, index_offset, "index_offset")
    padding = integer(emit, padding_val, "padding_val")
    emit.step(_nonzero, rows, offset, padding, target)


def _nonzero(rows: torch.Tensor, offset: int, padding: int, out: torch.Tensor) -> None:
    out[:, :-1] = padding
    for row, result in zip(rows, out, strict=True):
        found = row.nonzero().flatten()
        result[: found.numel()] = found + offset
        result[-1] = found.numel()


@instruction(engines=(Engine.gpsimd,))
def sequence_bounds(
    emit: Emit, dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None
) -> None:
    """dst[0, 0] and dst[0, 1] = start and exclusive end of the segment of each element."""
    in_sbuf(emit, dst=dst, segment_ids=segment_ids)
    require_dtype(emit, "segment_ids", segment_ids, ("float32", "int32"))
    require_dtype(emit, "dst", dst, ("float32", "int32"))
    length = segment_ids.free_size
    emit.require(segment_ids.shape[0] == 1, "segment_ids must have one partition")
    if dst.shape[0] != 1 or dst.free_size != 2 * length:
        emit.illegal(f"dst has shape {dst.shape}; expected (1, 2, {length})")
    ids = emit.read(segment_ids, "segment_ids", shape=(length,))
    out = emit.write(dst, "dst", shape=(2, length), elementwise=False)
    emit.step(_bounds, ids, out, emit.location)


def _bounds(ids: torch.Tensor, out: torch.Tensor, where: Location | None) -> None:
    wrong = ids[(ids < 0) | (ids != ids.trunc())]
    if wrong.numel():
        raise IllegalInstructionError(
            "sequence_bounds",
            f"sequence_bounds: segment_ids has {float(wrong[0])}; segments are numbered by "
            "integers from 1, and 0 is padding",
            where,
        )
    length = ids.numel()
    position = torch.arange(length, device="cpu")
    starts_here = torch.ones(length, dtype=torch.bool, device="cpu")
    starts_here[1:] = ids[1:] != ids[:-1]
    ends_here = torch.ones(length, dtype=torch.bool, device="cpu")
    ends_here[:-1] = starts_here[1:]
    start = torch.where(starts_here, position, 0).cummax(0).values
    end = torch.where(ends_here, position + 1, length).flip(0).cummin(0).values.flip(0)
    is_padding = ids == 0
    out[0] = torch.where(is_padding, length, start)
    out[1] = torch.where(is_padding, -1, end)


def core_groups(tile: NkiTensor) -> Sequence[tuple[int, int]]:
    """(first, last + 1) partition of each GpSimd core's slice of `tile`."""
    return [(start, start + _CORE) for start in range(0, tile.shape[0], _CORE)]
