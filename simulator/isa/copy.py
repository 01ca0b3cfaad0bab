"""Copies within the chip and constants: `tensor_copy`, `memset`."""

from __future__ import annotations

from typing import Any

import torch

from trnx.simulator.costs.vector import copied, filled, halves_on_scalar, on_scalar, on_vector
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import encoded, reachable
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtype_conversion import append_load_f32, append_store_f32
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.propagation import by_element
from trnx.simulator.program.step_effects import Places, moves


def append_copy(
    emit: Emit,
    source: torch.Tensor,
    source_dtype: DType,
    target: torch.Tensor,
    target_dtype: DType,
    *,
    through_f32: bool = False,
) -> None:
    """Steps that copy equal shapes: bits for equal dtypes, else through float32, rounding once."""
    floats = source_dtype.is_float and target_dtype.is_float
    plain = not (source_dtype.needs_codec or target_dtype.needs_codec)
    if source_dtype == target_dtype and (not through_f32 or floats):
        emit.step(target.copy_, source)
    elif floats and plain:
        # Every float type is exact in float32, so torch's direct conversion rounds once as well.
        emit.step(target.copy_, source)
    else:
        value = emit.scratch(source.shape, torch.float32)
        append_load_f32(emit.steps, source_dtype, source, value)
        if target_dtype == "float32":
            emit.step(target.copy_, value)
        else:
            append_store_f32(emit.steps, target_dtype, value, target, exact=False)


def has_cache_conflicts(source: torch.Tensor) -> bool:
    """True where a column of `source` falls into few cache sets: rows a multiple of 1 KiB apart.

    A dense copy before a transpose is several times faster then.
    """
    return source.stride(0) * source.element_size() % 1024 == 0 and source.numel() >= 1024


def is_turned_by_blocks(source: torch.Tensor) -> bool:
    """True where `transposed` is faster than a strided copy: its calls cost what 8192 elements
    gain.
    """
    return source.dtype is torch.float32 and source.numel() >= 8192


def transposed(source: torch.Tensor) -> torch.Tensor:
    """source[p, f].T of a dense source, as new memory.

    A channel shuffle in channels-last order is a transpose, and the one operator of torch on the
    CPU that does it in blocks of registers: three to four times as fast as a strided copy.
    """
    rows, columns = source.shape
    return torch.native_channel_shuffle(_pixels(source), rows).view(columns, rows)


def _pixels(source: torch.Tensor) -> torch.Tensor:
    return source.view(1, 1, 1, source.numel()).permute(0, 3, 1, 2)


def _turned_places(pixels: torch.Tensor, rows: int, columns: int, target: torch.Tensor) -> Places:
    return pixels, target, (columns, rows), (1, columns)


@moves(_turned_places)
def _turn(pixels: torch.Tensor, rows: int, columns: int, target: torch.Tensor) -> None:
    target.copy_(torch.native_channel_shuffle(pixels, rows).view(columns, rows))


def append_transpose(emit: Emit, source: torch.Tensor, target: torch.Tensor) -> None:
    """Steps that copy source[p, f].T into target[f, p]."""
    by_blocks = is_turned_by_blocks(source)
    if has_cache_conflicts(source) or (by_blocks and not source.is_contiguous()):
        held = emit.scratch(source.shape, source.dtype)
        emit.step(held.copy_, source)
        source = held
    if by_blocks:
        emit.step(_turn, emit.derived(_pixels, source), *source.shape, target)
    else:
        emit.step(target.copy_, emit.turned(source))


@instruction(
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    undefined=by_element("src"),
    indirect=("dst", "src"),
    cost=(on_vector(copied), on_scalar(halves_on_scalar)),
)
def tensor_copy(
    emit: Emit, dst: NkiTensor, src: NkiTensor, engine: Any = Engine.unknown, name: Any = None
) -> None:
    """Copy `src` to `dst`: bits for equal dtypes on Vector and GpSimd, else through float32."""
    touches_psum = MemoryRegion.psum in (dst.buffer, src.buffer)
    allowed = [Engine.vector]
    if emit.generation > 2:
        allowed.append(Engine.scalar)
    if not touches_psum:
        allowed.append(Engine.gpsimd)
    chosen = emit.on(engine, allowed)
    if chosen is Engine.gpsimd and (src.has_column_index or dst.has_column_index):
        emit.finding("engine", "tensor indirection needs the Vector or Scalar engine")
    if dst.shape[0] != src.shape[0] or dst.free_size != src.free_size:
        emit.illegal(
            f"dst {dst.shape} and src {src.shape} differ in partitions or elements per partition"
        )
    source = emit.read(src, "src", shape=dst.shape)
    target = emit.write(dst, "dst")
    through_f32 = chosen is Engine.scalar and not src.dtype.is_packed
    append_copy(emit, source, src.dtype, target, dst.dtype, through_f32=through_f32)


@instruction(engines=(Engine.vector, Engine.gpsimd), cost=(on_vector(filled),))
def memset(
    emit: Emit, dst: NkiTensor, value: Any, engine: Any = Engine.unknown, name: Any = None
) -> None:
    """Fill `dst` with a constant."""
    emit.on(engine)
    reachable(emit, dst=dst)
    if not isinstance(value, int | float):
        emit.illegal(f"value must be a number, not {type(value).__name__}")
    if dst.dtype.is_packed and value != 0:
        emit.illegal(f"{dst.dtype} takes the value 0 alone")
    limits = dst.dtype.limits
    if limits is not None:
        if not (float(value).is_integer() and limits[0] <= value <= limits[1]):
            emit.illegal(f"value {value} is not a {dst.dtype}")
        value = int(value)
    elif not dst.dtype.is_packed:
        # What the type makes of it; torch refuses to fill with a number beyond the type's range.
        value = encoded(float(value), dst.dtype).item()
    target = emit.write(dst, "dst")
    emit.step(target.fill_, value)
