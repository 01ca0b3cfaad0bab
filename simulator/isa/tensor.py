"""Tensor engine: `nc_matmul`, `nc_transpose` (also on the Vector engine)."""

from __future__ import annotations

import functools
from typing import Any

import torch

from trnx.simulator.costs.attributes import ArrayTile, ProductMode, product_attributes
from trnx.simulator.costs.tensor import on_tensor_transposed
from trnx.simulator.costs.vector import on_vector, per_element
from trnx.simulator.errors import IllegalInstructionError, Location, UninitialisedReadError
from trnx.simulator.isa.copy import append_transpose
from trnx.simulator.isa.indirect import load_scalar_indirect
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.language.enums import Engine, MatmulPerfMode
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtype_conversion import append_load_f32
from trnx.simulator.memory.storage import PSUM, SBUF, MemoryRegion
from trnx.simulator.memory.views import Shape, reshape_strides
from trnx.simulator.program.propagation import (
    by_element,
    product_columns,
    product_rows,
    transposed_place,
)

# The types of operands; float8_e4m3fn exists from generation 4 on.
_FP8_TYPES = ("float8_e4m3", "float8_e5m2")
_MATMUL_TYPES = (*_FP8_TYPES, "bfloat16", "float16", "tfloat32", "float32")
_WIDE = ("float32", "tfloat32")
# Columns of the systolic array.
_COLUMNS = 128


@instruction(
    engines=(Engine.tensor,),
    undefined=by_element("dst", stationary=product_rows, moving=product_columns),
    indirect=("dst", "stationary", "moving"),
)
def nc_matmul(
    emit: Emit,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = MatmulPerfMode.none,
    name: Any = None,
) -> None:
    """dst[M, N] = stationary[K, M].T @ moving[K, N] in float32, overwriting or accumulating in
    PSUM.
    """
    double_row = perf_mode in (MatmulPerfMode.double_row, "double_row")
    if not double_row and perf_mode not in (MatmulPerfMode.none, "none"):
        emit.illegal(f"perf_mode={perf_mode} must be none or double_row")
    if double_row:
        mode = ProductMode.double_row
    elif is_transpose:
        mode = ProductMode.transpose
    else:
        is_onezero = is_stationary_onezero or is_moving_onezero
        mode = ProductMode.onezero if is_onezero else ProductMode.plain
    rows, m, n = _matmul_sizes(emit, dst, stationary, moving, double_row)
    _check_types(emit, stationary, moving, double_row)
    tile = _tiling(emit, rows, m, tuple(tile_position or ()), tuple(tile_size or ()))
    if double_row and tile_size and tile_size[1] != _COLUMNS:
        emit.illegal("double_row does not go with column tiling; tile_size[1] must be 128")
    emit.attributes = product_attributes(mode, tile)
    _check_indirect(emit, dst, stationary, moving, tuple(tile_position or ()), is_transpose)
    if is_transpose:
        _check_flag(emit, accumulate)
        _append_matmul_transpose(emit, dst, stationary, moving, rows, m, n)
        return
    check_destination(emit, dst, n)
    k = rows * (2 if double_row else 1)
    a = _operand(emit, stationary, "stationary", _operand_shape(rows, m, double_row), True)
    places = _places(dst, moving, n)
    if places is not None:
        b = _with_gaps(emit, moving)
    else:
        b = _operand(emit, moving, "moving", _operand_shape(rows, n, double_row), m >= 32)
    if double_row:
        a, b = a.reshape(k, m), b.reshape(k, n)
    append_matmul(emit, dst, a, b, accumulate, places)


def _operand(
    emit: Emit, tensor: NkiTensor, name: str, shape: tuple[int, ...], is_worth_a_copy: bool
) -> torch.Tensor:
    """The operand as float32. It is a dense copy, kept for the next product, where its rows lie a
    multiple of 2 KiB apart: they share cache sets, and the host's product reads them slowly.
    """
    view = emit.read(tensor, name, shape=shape, buffers=SBUF)
    if tensor.dtype == "float32" and not (is_worth_a_copy and _has_conflicts(view)):
        return view
    copy, is_there = emit.kept_copy(tensor, view.shape)
    if not is_there:
        append_load_f32(emit.steps, tensor.dtype, view, copy)
    return copy


def _places(dst: NkiTensor, moving: NkiTensor, n: int) -> Shape | None:
    """Distances of the elements of dst's free dimensions in the columns from the first to the last
    of `moving`, where a product with all of these costs the host less than a copy of its own.
    """
    is_plain = dst.indirection is None and moving.indirection is None
    if not (is_plain and dst.dtype == moving.dtype == "float32") or moving.free_size < 2:
        return None
    if _is_matrix(dst) or _is_matrix(moving):
        return None
    if moving.strides[0] * moving.dtype.itemsize % 2048 == 0:  # as in `_has_conflicts`
        return None
    if 2 * _reach(moving.shape[1:], moving.strides[1:]) > 3 * n:
        return None
    return reshape_strides(moving.shape[1:], moving.strides[1:], dst.shape[1:])


def _is_matrix(tensor: NkiTensor) -> bool:
    """True where a view has the elements of each partition as one dimension."""
    flat = (tensor.shape[0], tensor.free_size)
    return reshape_strides(tensor.shape, tensor.strides, flat) is not None


def _reach(shape: Shape, strides: Shape) -> int:
    """Elements from the first to the last."""
    return 1 + sum([(size - 1) * step for size, step in zip(shape, strides, strict=True)])


def _with_gaps(emit: Emit, moving: NkiTensor) -> torch.Tensor:
    """The operand with what lies between its elements, which nothing needs to have written."""
    view = emit.read(moving, "moving", buffers=SBUF)
    reached: torch.Tensor = emit.derived(_gapless, view)
    return reached


def _gapless(view: torch.Tensor) -> torch.Tensor:
    columns = _reach(tuple(view.shape[1:]), view.stride()[1:])
    return view.as_strided((view.shape[0], columns), (view.stride(0), 1))


def _check_flag(emit: Emit, accumulate: Any) -> None:
    if not (accumulate is None or isinstance(accumulate, bool)):
        emit.illegal(f"accumulate={accumulate} must be True, False or None")


def _has_conflicts(view: torch.Tensor) -> bool:
    return view.stride(0) * view.element_size() % 2048 == 0 and not view.is_contiguous()


def append_matmul(
    emit: Emit,
    dst: NkiTensor,
    a: torch.Tensor,
    b: torch.Tensor,
    accumulate: bool | None,
    places: Shape | None = None,
) -> None:
    """Steps of dst[m, n] = a[k, m].T @ b[k, n], float32 operands, with PSUM's accumulation. With
    `places`, b has other columns between, and an element of dst lies in the sum of its indices
    times these.
    """
    (k, m), n = a.shape, dst.free_size
    _check_flag(emit, accumulate)
    if dst.indirection is not None and dst.indirection.base is not None:
        _append_scattered(emit, dst, dst.indirection.base, a, b, accumulate)
        emit.flops = 2 * k * m * n
        return
    mode = _accumulation(emit, dst, accumulate)
    emit.keeps = mode is not Covered.NONE
    if mode is Covered.ALL:
        emit.require_written(dst, "dst")
    if dst.dtype != "float32":
        _append_narrow(emit, dst, a, b, mode)
    elif places is None and (mode is Covered.NONE or _is_matrix(dst)):
        out = emit.write(dst, "dst", shape=(m, n), buffers=PSUM)
        _append_product(emit, out, a, b, mode, dst)
    else:
        _append_parts(emit, dst, a, b, mode, places)
    emit.products.append(dst)
    emit.flops = 2 * k * m * n


def _append_scattered(
    emit: Emit,
    dst: NkiTensor,
    base: NkiTensor,
    a: torch.Tensor,
    b: torch.Tensor,
    accumulate: bool | None,
) -> None:
    """Columns of the product go to columns of `base` that values decide, added to what is there or
    in its place. Which of the two is decided for the whole tile: where products lie is not known.
    """
    mode = _accumulation(emit, base, accumulate)
    if mode is Covered.SOME:
        emit.finding(
            "matmul-accumulate",
            f"dst scatters into {base.describe()}, of which products lie in a part; say accumulate="
            "True or False",
        )
    value = emit.scratch((a.shape[1], b.shape[1]))
    emit.step(torch.mm, a.t(), b, out=value)
    if mode is Covered.ALL:
        before = load_scalar_indirect(emit, dst, "dst")
        emit.step(torch.add, value, before.view(value.shape), out=value)
    out = emit.write(dst, "dst", shape=value.shape, buffers=PSUM)
    emit.step(out.copy_, value)
    emit.products.append(base)


def _operand_shape(rows: int, free: int, double_row: bool) -> tuple[int, ...]:
    return (rows, 2, free) if double_row else (rows, free)


def _matmul_sizes(
    emit: Emit, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, double_row: bool
) -> tuple[int, int, int]:
    for operand, tensor in (("stationary", stationary), ("moving", moving)):
        emit.check(tensor, operand, SBUF)
        if double_row and not (tensor.ndim >= 3 and tensor.shape[1] == 2):
            emit.illegal(f"double_row needs {operand} [K, 2, free], not {tensor.shape}")
    rows = stationary.shape[0]
    share = 2 if double_row else 1
    m, n = stationary.free_size // share, moving.free_size // share
    if moving.shape[0] != rows:
        emit.illegal(
            f"stationary {stationary.shape} and moving {moving.shape} differ in the contraction "
            "dimension (partitions)"
        )
    if m > 128:
        emit.illegal(f"stationary has {m} columns; the maximum is 128")
    emit.check(dst, "dst", PSUM)
    if dst.shape[0] != m or dst.free_size != n:
        emit.illegal(
            f"dst is {dst.shape}; stationary {stationary.shape} and moving {moving.shape} "
            f"give ({m}, {n})"
        )
    return rows, m, n


def _check_types(emit: Emit, stationary: NkiTensor, moving: NkiTensor, double_row: bool) -> None:
    allowed: tuple[str, ...] = _FP8_TYPES if double_row else _MATMUL_TYPES
    if emit.generation >= 4:
        allowed = (*allowed, "float8_e4m3fn")
    if double_row:
        emit.require(emit.generation > 2, "double_row needs NeuronCore-v3")
    pair = (stationary.dtype, moving.dtype)
    for dtype in pair:
        if dtype not in allowed:
            emit.illegal(f"operand type {dtype} must be one of {', '.join(allowed)}")
    if (pair[0] in _WIDE) != (pair[1] in _WIDE):
        emit.illegal(f"float32 cannot be mixed: {pair[0]} with {pair[1]}")
    is_mixed = "float8_e4m3" in pair and "float8_e4m3fn" in pair
    emit.require(not is_mixed, "float8_e4m3 and float8_e4m3fn cannot be mixed")


def _tiling(
    emit: Emit, rows: int, m: int, position: tuple[int, ...], size: tuple[int, ...]
) -> ArrayTile | None:
    """The part of the array that a product uses, where it does not use all of it."""
    emit.require(bool(position) == bool(size), "tile_position and tile_size must be given together")
    if not size:
        return None
    emit.require(len(size) == 2 and len(position) == 2, "tile_position and tile_size are pairs")
    least = 64 if emit.generation == 2 else 32
    for extent, start, used, what in zip(size, position, (rows, m), ("row", "column"), strict=True):
        if not (extent in (least, 64, 128) and start % extent == 0 and start + extent <= 128):
            emit.illegal(f"{what} tile of size {extent} at {start} is not possible")
        if used > extent:
            emit.illegal(f"{used} {what}s do not fit a tile of {extent}")
    return ArrayTile(*position, *size)


def _check_indirect(
    emit: Emit,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    position: tuple[int, ...],
    is_transpose: bool,
) -> None:
    """Tensor indirection excludes tiling, 4-byte types, and the identity of a transpose."""
    for operand, tensor in (("dst", dst), ("stationary", stationary), ("moving", moving)):
        if tensor.indirection is None or tensor.indirection.base is None:
            continue
        if position not in ((), (0, 0)):
            emit.illegal(f"{operand} is indirect, which excludes tiling")
        if tensor.dtype in _WIDE:
            emit.illegal(f"{operand} is indirect; it is {tensor.dtype}")
        emit.require(not is_transpose or tensor is not moving, "moving cannot be indirect here")


def check_destination(emit: Emit, dst: NkiTensor, n: int) -> None:
    """Type, columns and PSUM bank of a product's destination."""
    types = ("float32",) if emit.generation < 4 else ("float32", "bfloat16")
    if dst.dtype not in types:
        emit.illegal(f"dst is {dst.dtype}; it must be {' or '.join(types)}")
    limit = emit.hardware.matmul_moving_columns * (2 if dst.dtype == "bfloat16" else 1)
    if n > limit:
        emit.illegal(f"moving has {n} columns; the maximum is {limit}")
    if emit.generation < 4:
        low, high, _, _ = dst.byte_range()
        place = dst.storage.place
        base = place.span[0] if place else 0
        bank = emit.hardware.psum_bank_bytes
        if (base + low) // bank != (base + high - 1) // bank:
            emit.finding(
                "psum-bank",
                f"dst spans bytes {low} to {high - 1} of its partition, which is more than one "
                f"PSUM bank of {bank} bytes",
            )


def _accumulation(emit: Emit, dst: NkiTensor, accumulate: bool | None) -> Covered:
    """Which locations keep their content: ALL accumulate, NONE are overwritten."""
    if accumulate is False:
        return Covered.NONE
    state = emit.product_state(dst)
    if emit.generation < 4 and emit.is_product_modified(dst):
        emit.finding(
            "matmul-accumulate",
            f"accumulates onto {dst.describe()}, where another instruction has overwritten the "
            "products; start a new group with accumulate=False, or add in SBUF",
        )
        return Covered.ALL
    if accumulate is None:
        if emit.generation >= 4 and state is not Covered.ALL and emit.initialised.covers(dst):
            return Covered.ALL
        if state is Covered.NONE:
            emit.starts_group(dst)
        return state
    if state is not Covered.ALL and not (emit.generation >= 4 and emit.initialised.covers(dst)):
        emit.finding(
            "matmul-accumulate",
            f"accumulate=True onto {dst.describe()}, which no matmul has written "
            "before; the first matmul of a group needs accumulate=False (or None)",
            UninitialisedReadError,
        )
    return Covered.ALL


def _append_product(
    emit: Emit, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, mode: Covered, dst: NkiTensor
) -> None:
    if mode is Covered.NONE:
        emit.step(torch.mm, emit.turned(a), b, out=out)
        return
    if mode is Covered.SOME:
        emit.step(out.masked_fill_, _is_fresh(emit, dst, tuple(out.shape)), 0.0)
    emit.step(torch.addmm, out, emit.turned(a), b, out=out)


def _append_parts(
    emit: Emit,
    dst: NkiTensor,
    a: torch.Tensor,
    b: torch.Tensor,
    mode: Covered,
    places: Shape | None,
) -> None:
    """The product in memory of its own, then in `dst`, of which no view is a matrix."""
    value = emit.scratch((a.shape[1], b.shape[1]))
    emit.step(torch.mm, emit.turned(a), b, out=value)
    found = (
        value.view(dst.shape)
        if places is None
        else value.as_strided(dst.shape, (b.shape[1], *places))
    )
    out = emit.write(dst, "dst", buffers=PSUM)
    if mode is Covered.NONE:
        emit.step(out.copy_, found)
        return
    if mode is Covered.SOME:
        emit.step(out.masked_fill_, _is_fresh(emit, dst, dst.shape), 0.0)
    emit.step(out.add_, found)


def _is_fresh(emit: Emit, dst: NkiTensor, shape: Shape) -> torch.Tensor:
    """True where no product lies."""
    return emit.psum_groups.products.of(dst.storage).mask(dst).reshape(shape) == 0


def _append_narrow(
    emit: Emit,
    dst: NkiTensor,
    a: torch.Tensor,
    b: torch.Tensor,
    mode: Covered,
) -> None:
    """bfloat16 PSUM (NeuronCore-v4): the old value is upcast, added in float32, rounded once."""
    m, n = a.shape[1], b.shape[1]
    value = emit.scratch((m, n))
    if mode is not Covered.NONE:
        emit.step(value.copy_, dst.torch_view().reshape(m, n))
    out = emit.write(dst, "dst", shape=(m, n), buffers=PSUM)
    _append_product(emit, value, a, b, mode, dst)
    emit.step(out.copy_, value)


def _append_matmul_transpose(
    emit: Emit,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    k: int,
    m: int,
    n: int,
) -> None:
    """Transpose mode moves bits: `moving` is the identity, so the result is stationary.T."""
    if n != k:
        emit.illegal(f"transpose mode needs an identity [{k}, {k}] as moving, not {moving.shape}")
    is_product = emit.generation < 3 and dst.dtype == "float32"
    if not (is_product or dst.dtype == stationary.dtype):
        emit.illegal(f"dst is {dst.dtype}, the data {stationary.dtype}")
    identity = emit.read_f32(moving, "moving", shape=(k, k), buffers=SBUF)
    emit.step(_require_identity, identity, moving.describe(), emit.location)
    source = emit.read(stationary, "stationary", shape=(k, m), buffers=SBUF)
    append_transpose(emit, source, emit.write(dst, "dst", shape=(m, k), buffers=PSUM))
    scattered = dst.indirection.base if dst.indirection is not None else None
    emit.products.append(scattered or dst)


def _require_identity(moving: torch.Tensor, what: str, where: Location | None) -> None:
    """With other values the device returns other bits than the transposed ones, as a step."""
    if not torch.equal(moving, _identity(len(moving))):
        raise IllegalInstructionError(
            "nc_matmul",
            f"nc_matmul: is_transpose=True needs an identity matrix as moving, which {what} is not",
            where,
        )


@functools.cache
def _identity(size: int) -> torch.Tensor:
    return torch.eye(size, device="cpu")


_ON_TENSOR = "; use engine=nisa.engine.tensor, from SBUF into a tile in PSUM"


@instruction(
    engines=(Engine.tensor, Engine.vector),
    undefined=by_element(data=transposed_place),
    cost=(on_tensor_transposed, on_vector(per_element(1))),
)
def nc_transpose(
    emit: Emit, dst: NkiTensor, data: NkiTensor, engine: Any = Engine.unknown, name: Any = None
) -> None:
    """dst[F, P] = data[P, F].T: Tensor engine SBUF to PSUM up to 128x128, Vector engine up to
    32x32.
    """
    in_psum = emit.check(dst, "dst").buffer is MemoryRegion.psum
    default = Engine.tensor if in_psum and data.buffer is MemoryRegion.sbuf else Engine.vector
    chosen = emit.on(engine, default=default)
    p, f = data.shape[0], data.free_size
    limit = 128 if chosen is Engine.tensor else 32
    if not (p <= limit and f <= limit):
        instead = "" if limit == 128 or max(p, f) > 128 else _ON_TENSOR
        emit.illegal(f"data ({p}, {f}) exceeds {limit}x{limit} on {chosen.name}{instead}")
    if dst.shape[0] != f or dst.free_size != p:
        emit.illegal(f"dst is {dst.shape}; expected ({f}, {p})")
    if dst.dtype != data.dtype:
        emit.illegal(f"dst is {dst.dtype}; it must be of data's type {data.dtype}")
    if chosen is Engine.tensor:
        emit.require(in_psum, "the Tensor engine writes to PSUM; dst is in sbuf")
    sources = SBUF if chosen is Engine.tensor else (MemoryRegion.sbuf, MemoryRegion.psum)
    source = emit.read(data, "data", shape=(p, f), buffers=sources)
    target = emit.write(dst, "dst", shape=(f, p), elementwise=False)
    append_transpose(emit, source, target)
    if chosen is Engine.tensor:
        emit.products.append(dst)
