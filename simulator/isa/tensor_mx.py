"""Tensor engine of trn3: `nc_matmul_mx`, the product of matrices in MX formats."""

from __future__ import annotations

from typing import Any

from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.mx import PACKED_TYPES, append_dequantise
from trnx.simulator.isa.tensor import append_matmul, check_destination
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import PSUM, SBUF
from trnx.simulator.program.propagation import by_element, product_columns, product_rows


@instruction(
    engines=(Engine.tensor,),
    generation=4,
    # A scale is of the columns that its data are of.
    undefined=by_element(
        "dst",
        stationary=product_rows,
        stationary_scale=product_rows,
        moving=product_columns,
        moving_scale=product_columns,
    ),
    indirect=("dst", "stationary", "moving", "stationary_scale", "moving_scale"),
)
def nc_matmul_mx(
    emit: Emit,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: tuple[int, ...] | None = None,
    tile_size: tuple[int, ...] | None = None,
    accumulate: bool | None = None,
    name: Any = None,
) -> None:
    """dst[M, N] = stationary[K, M].T @ moving[K, N], each element four packed values of K."""
    for operand, tensor in (("stationary", stationary), ("moving", moving)):
        emit.check(tensor, operand, SBUF)
        if tensor.dtype not in PACKED_TYPES:
            emit.illegal(
                f"{operand} is {tensor.dtype}; it must be one of {', '.join(PACKED_TYPES)}"
            )
    emit.check(dst, "dst", PSUM)
    rows, _, n = _sizes(emit, dst, stationary, moving)
    _check_tiling(emit, rows, tile_position, tile_size)
    is_indirect = any(tensor.is_indirect() for tensor in (dst, stationary, moving))
    emit.require(
        not is_indirect or tuple(tile_position or (0, 0)) == (0, 0),
        "tensor indirection excludes tiling",
    )
    check_destination(emit, dst, n)
    a = append_dequantise(emit, stationary, "stationary", stationary_scale)
    b = append_dequantise(emit, moving, "moving", moving_scale)
    append_matmul(emit, dst, a, b, accumulate)


def _sizes(
    emit: Emit, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor
) -> tuple[int, int, int]:
    rows, m, n = stationary.shape[0], stationary.free_size, moving.free_size
    if moving.shape[0] != rows:
        emit.illegal(
            f"stationary {stationary.shape} and moving {moving.shape} differ in partitions"
        )
    if rows % 32:
        emit.illegal(f"{rows} partitions; they must be a multiple of 32")
    if not (m <= 128 and m % 2 == 0):
        emit.illegal(f"stationary has {m} columns; they must be even and at most 128")
    if dst.shape[0] != m or dst.free_size != n:
        emit.illegal(
            f"dst is {dst.shape}; stationary {stationary.shape} and moving {moving.shape} "
            f"give ({m}, {n})"
        )
    return rows, m, n


def _check_tiling(
    emit: Emit, rows: int, position: tuple[int, ...] | None, size: tuple[int, ...] | None
) -> None:
    emit.require(bool(position) == bool(size), "tile_position and tile_size must be given together")
    if not position or not size:
        return
    emit.require(len(size) == 2 and len(position) == 2, "tile_position and tile_size are pairs")
    if not (size[0] in (32, 64, 128) and position[0] % size[0] == 0 and position[0] < 128):
        emit.illegal(f"a row tile of size {size[0]} at {position[0]} is not possible")
    emit.require(size[1] == 128 and position[1] == 0, "columns cannot be tiled")
    if rows > size[0]:
        emit.illegal(f"{rows} partitions do not fit a row tile of {size[0]}")
