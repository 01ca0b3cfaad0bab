"""Search on VectorE: max8, nc_find_index8, nc_match_replace8.

They work per partition on 8 values at a time, compared in float32; a value that occurs several
times in `vals` is paired with as many different positions. Source: the entries of these names in
SDK nki.isa.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trnx.simulator.costs.vector import on_vector, per_element
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import is_overlapping, match_tiles, number, require_dtype
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition

_MISSING = -1  # all ones, as unsigned
_MAX_DIMENSIONS = 3

_Positions = np.ndarray[Any, np.dtype[np.int64]]


def _check_data(emit: Emit, data: NkiTensor, operand: str) -> None:
    emit.check(data, operand)
    if not (8 <= data.free_size <= 16384):
        emit.illegal(
            f"{operand} has {data.free_size} elements per partition; there must be 8 to 16384"
        )


def _check_dimensions(emit: Emit, **operands: NkiTensor) -> None:
    """At most three, as max8 and nc_find_index8 take."""
    for name, tile in operands.items():
        if tile.ndim > _MAX_DIMENSIONS:
            emit.illegal(
                f"{name} has shape {tile.shape}; at most {_MAX_DIMENSIONS} dimensions are "
                "possible: merge free ones (flatten_dims, reshape)"
            )


def _check_eight(emit: Emit, tile: NkiTensor, operand: str, like: NkiTensor) -> None:
    emit.check(tile, operand)
    if tile.shape[0] != like.shape[0] or tile.free_size != 8:
        emit.illegal(f"{operand} has shape {tile.shape}; expected ({like.shape[0]}, 8)")


@instruction(engines=(Engine.vector,), undefined=by_partition(), cost=(on_vector(per_element(1)),))
def max8(emit: Emit, dst: NkiTensor, src: NkiTensor, name: str | None = None) -> None:
    """dst[p] = the 8 largest elements of src[p] in descending order, duplicates included."""
    _check_data(emit, src, "src")
    _check_eight(emit, dst, "dst", src)
    _check_dimensions(emit, src=src)
    if dst.ndim != 2:
        emit.illegal(f"dst has shape {dst.shape}; it has two dimensions, ({src.shape[0]}, 8)")
    partitions, length = src.shape[0], src.free_size
    value = emit.read_f32(src, "src", shape=(partitions, length))
    out = emit.write_f32(dst, "dst", shape=(partitions, 8), elementwise=False)
    largest = emit.scratch((partitions, 8))
    index = emit.scratch((partitions, 8), torch.int64)
    emit.step(torch.topk, value, 8, 1, True, True, out=(largest, index))
    emit.step(out.copy_, largest)


def _match(data: torch.Tensor, values: torch.Tensor, order: Sequence[int]) -> _Positions:
    """Position of each value's next unused occurrence in `data`, by columns in `order`; -1 if none.

    With NumPy, whose search for the first True stops there.
    """
    left = data.numpy().copy()
    wanted = values.numpy()
    rows = np.arange(len(left))
    is_equal = np.empty(left.shape, np.bool_)
    positions = np.empty(wanted.shape, np.int64)
    for i in order:
        np.equal(left, wanted[:, i : i + 1], out=is_equal)
        found = is_equal.argmax(1)
        hit = is_equal[rows, found]
        positions[:, i] = np.where(hit, found, _MISSING)
        # What is used equals nothing any more.
        left[rows[hit], found[hit]] = np.nan
    return positions


def _find(data: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
    # Unsigned: the low bits of -1 are all ones.
    out.copy_(torch.from_numpy(_match(data, values, range(8))))


@instruction(engines=(Engine.vector,), undefined=by_partition(), cost=(on_vector(per_element(1)),))
def nc_find_index8(
    emit: Emit, dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None
) -> None:
    """dst[p, i] = index of vals[p, i] in data[p]; duplicates take successive occurrences."""
    _check_data(emit, data, "data")
    _check_eight(emit, vals, "vals", data)
    _check_eight(emit, dst, "dst", data)
    _check_dimensions(emit, data=data, vals=vals)
    require_dtype(emit, "dst", dst, ("uint16", "uint32"))
    partitions = data.shape[0]
    value = emit.read_f32(data, "data", shape=(partitions, data.free_size))
    wanted = emit.read_f32(vals, "vals", shape=(partitions, 8))
    out = emit.write(dst, "dst", shape=(partitions, 8), elementwise=False)
    emit.step(_find, value, wanted, out)


def _replace(
    data: torch.Tensor,
    values: torch.Tensor,
    immediate: float,
    out: torch.Tensor,
    indices: torch.Tensor | None,
) -> None:
    positions = _match(data, values, range(7, -1, -1))
    out.copy_(data)
    rows, columns = (torch.from_numpy(part) for part in np.nonzero(positions != _MISSING))
    found = torch.from_numpy(positions)
    out[rows, found[rows, columns]] = immediate
    if indices is not None:
        indices.copy_(found)


@instruction(engines=(Engine.vector,), undefined=by_partition(), cost=(on_vector(per_element(1)),))
def nc_match_replace8(
    emit: Emit,
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: Any,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> None:
    """dst = data with the first occurrence of each of vals replaced by imm; dst_idx = where they
    were.
    """
    _check_data(emit, data, "data")
    match_tiles(emit, dst, data=data)
    _check_eight(emit, vals, "vals", data)
    partitions, length = data.shape[0], data.free_size
    value = emit.read_f32(data, "data", shape=(partitions, length))
    wanted = emit.read_f32(vals, "vals", shape=(partitions, 8))
    immediate = number(emit, imm, "imm")
    out = emit.write_f32(dst, "dst", shape=(partitions, length))
    indices = None
    if dst_idx is not None:
        _check_eight(emit, dst_idx, "dst_idx", data)
        require_dtype(emit, "dst_idx", dst_idx, ("uint16", "uint32"))
        emit.require(not is_overlapping(dst, dst_idx), "dst and dst_idx overlap")
        indices = emit.write(dst_idx, "dst_idx", shape=(partitions, 8), elementwise=False)
    emit.step(_replace, value, wanted, immediate, out, indices)
