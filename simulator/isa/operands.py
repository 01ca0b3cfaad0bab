"""What the compute engines' instructions share: tiles of equal size, scalar operands, accumulators.

The ISA matches tiles by partitions and elements per partition. `common_shape` finds one shape in
which all tiles of an instruction can be walked without copying, where there is one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trnx.simulator.isa.instruction import Emit
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.language.tensor_view import has_overlap
from trnx.simulator.memory.dtype_conversion import append_store_f32
from trnx.simulator.memory.dtypes import DType, float32, int32, uint32
from trnx.simulator.memory.storage import SBUF, MemoryRegion
from trnx.simulator.memory.views import Shape, reshape_strides

FLOATS: tuple[str, ...] = (
    "float32",
    "tfloat32",
    "bfloat16",
    "float16",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
)
INTEGERS: tuple[str, ...] = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "bool")
_WIDE_INTEGERS = (int32, uint32)


def is_psum(tensor: Any) -> bool:
    """True for a tile in PSUM."""
    return isinstance(tensor, NkiTensor) and tensor.storage.buffer is MemoryRegion.psum


def match_tiles(emit: Emit, dst: NkiTensor, **tiles: NkiTensor) -> None:
    """All are tiles with dst's partitions and elements per partition."""
    emit.check(dst, "dst")
    partitions, size = dst.shape[0], dst.form.size
    for name, tile in tiles.items():
        emit.check(tile, name)
        if tile.shape[0] != partitions or tile.form.size != size:
            advice = (
                " (a column of one element is `operand0` of nki.isa.tensor_scalar, and functions "
                "of nki.language broadcast it)"
                if tile.shape[0] == partitions and tile.form.size == 1
                else ""
            )
            emit.illegal(
                f"{name} has {_extent(tile)}, dst has {_extent(dst)}; they must be equal{advice}"
            )


def _extent(tile: NkiTensor) -> str:
    return f"{tile.shape[0]} partitions of {tile.free_size} elements"


def match_column(emit: Emit, column: NkiTensor, operand: str, like: NkiTensor) -> None:
    """`column` has one element in each of the partitions of `like`."""
    emit.check(column, operand)
    if not column.shape[0] == column.form.size == like.shape[0]:
        emit.illegal(
            f"{operand} has shape {column.shape}; expected ({like.shape[0]}, 1), "
            "one element per partition"
        )


def not_both_in_psum(emit: Emit, a: NkiTensor, b: NkiTensor, names: str) -> None:
    """VectorE reads at most one of two tiles from PSUM."""
    if is_psum(a) and is_psum(b):
        emit.illegal(
            f"{names} are both in PSUM; one of them must be in SBUF (copy it with nisa.tensor_copy)"
        )


def reachable(emit: Emit, **operands: Any) -> None:
    """GpSimd reaches no PSUM: no tile is there if GpSimd runs the instruction."""
    if emit.engine is Engine.gpsimd:
        for name, operand in operands.items():
            if is_psum(operand):
                emit.illegal(f"{name} is in PSUM, which GpSimd cannot access")


def in_sbuf(emit: Emit, **operands: NkiTensor) -> None:
    """Every operand is a tile in SBUF."""
    for name, operand in operands.items():
        emit.check(operand, name, SBUF)


def common_shape(*tiles: NkiTensor) -> Shape:
    """A shape in which every tile is a strided view; the first tile's shape where none is found."""
    first = tiles[0].shape
    for tile in tiles:
        if tile.shape != first:
            break
    else:
        return first
    for candidate in dict.fromkeys(tile.shape for tile in tiles):
        if all(reshape_strides(tile.shape, tile.strides, candidate) is not None for tile in tiles):
            return candidate
    return first


def flat(tile: NkiTensor) -> tuple[int, int]:
    """(partitions, elements per partition)."""
    return tile.shape[0], math.prod(tile.shape[1:])


def constant(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A scalar as a 0-d tensor, which torch broadcasts faster than a Python number; never written.

    One for all that ask, told apart by the sign, which 0.0 has and equality does not see.
    """
    return _constant(value, math.copysign(1.0, value), dtype)


@functools.lru_cache(maxsize=1024)
def _constant(value: float, sign: float, dtype: torch.dtype) -> torch.Tensor:
    del sign
    return torch.tensor(value, dtype=dtype, device="cpu")


class Result:
    """The float32 destination `out` of an element-wise instruction, and its rounding into `dst`.

    `value` is an operand that was read from `source`: where it is an upcast copy, it is overwritten
    instead of taking another temporary, which keeps fewer bytes in the cache. Call `store` after
    the last step that writes or reads `out`.
    """

    __slots__ = ("_dtype", "_emit", "_target", "out")

    def __init__(
        self, emit: Emit, dst: NkiTensor, shape: Shape, value: torch.Tensor, source: NkiTensor
    ) -> None:
        self._emit = emit
        self._dtype = dst.dtype
        self._target = emit.write(dst, "dst", shape=shape)
        if dst.dtype == "float32":
            self.out = self._target
        elif source.dtype.torch is not torch.float32:
            self.out = value
        else:
            self.out = emit.scratch(shape)

    def store(self, exact: bool = False) -> None:
        """Append the rounding; `exact` promises values that dst's dtype holds."""
        if self.out is not self._target:
            append_store_f32(self._emit.steps, self._dtype, self.out, self._target, exact)


def encoded(value: float, dtype: DType) -> torch.Tensor:
    """A number as one stored element of `dtype`, shape (1,), rounded as a write rounds."""
    element = torch.empty(1, dtype=dtype.torch, device="cpu")
    steps: list[Any] = []
    append_store_f32(steps, dtype, torch.tensor([value], device="cpu"), element, False)
    for step in steps:
        step()
    return element


def scalar(
    emit: Emit, value: Any, operand: str, like: NkiTensor, shape: Shape, any_dtype: bool = False
) -> torch.Tensor:
    """A scalar operand: a 0-d float32, or one float32 per partition in the rank of `shape`."""
    if not isinstance(value, NkiTensor):
        return constant(number(emit, value, operand))
    match_column(emit, value, operand, like)
    dtypes = None if any_dtype else (float32,)
    return emit.read_f32(value, operand, shape=column_shape(shape), dtypes=dtypes)


def number(emit: Emit, value: Any, operand: str) -> float:
    """A compile-time constant as the float32 that the instruction holds."""
    try:
        return _float32(value)
    except (TypeError, ValueError, OverflowError):
        emit.illegal(f"{operand} must be a number or a tile (partitions, 1), not {value!r}")


def _float32(value: Any) -> float:
    # NumPy also makes numbers of None, of text and of lists of one number.
    if not isinstance(value, int | float | np.generic) or isinstance(value, str):
        raise TypeError(type(value))
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def column_shape(shape: Sequence[int]) -> Shape:
    """The shape of one value per partition that broadcasts against `shape`."""
    return (shape[0],) + (1,) * (len(shape) - 1)


def is_overlapping(dst: NkiTensor, *others: Any) -> bool:
    """True where writing `dst` may change one of `others`."""
    return any(
        isinstance(other, NkiTensor) and other.storage is dst.storage and has_overlap(other, dst)
        for other in others
    )


def intermediate(emit: Emit, out: torch.Tensor, dst: NkiTensor, *later: Any) -> torch.Tensor:
    """Where a first stage may leave its result: `out`, or scratch if a later stage reads there."""
    if is_overlapping(dst, *later):
        return emit.scratch(out.shape, torch.float32)
    return out


def all_wide_integers(*tiles: NkiTensor) -> bool:
    """True where every tile is int32 or uint32, for which exact integer arithmetic is defined."""
    is_first = tiles[0].dtype in _WIDE_INTEGERS
    return is_first and all(tile.dtype in _WIDE_INTEGERS for tile in tiles[1:])


_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def bits_of(view: torch.Tensor) -> torch.Tensor:
    """The same memory as signed integers, for which torch has every operation."""
    return view.view(_SIGNED[view.element_size()])


def append_select(
    emit: Emit, mask: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor, out: torch.Tensor
) -> None:
    """Append out = chosen where mask is -1, other where it is 0; all are float32, mask int32.

    other ^ ((chosen ^ other) & mask): bit operations are several times faster than torch.where.
    `out` may be `chosen`, not `other`.
    """
    bits, base = bits_of(out), bits_of(other)
    emit.step(torch.bitwise_xor, bits_of(chosen), base, out=bits)
    emit.step(bits.bitwise_and_, mask)
    emit.step(bits.bitwise_xor_, base)


def require_dtype(emit: Emit, operand: str, tile: NkiTensor, allowed: Sequence[str]) -> None:
    """The tile has one of the dtypes named in `allowed`."""
    if tile.dtype not in allowed:
        emit.illegal(f"{operand} is {tile.dtype}; it must be one of {', '.join(allowed)}")


def is_bits(dtype: DType) -> bool:
    """True for a dtype that bitvec operators take."""
    return dtype in INTEGERS
