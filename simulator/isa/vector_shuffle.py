"""nc_stream_shuffle: movement across the partitions of each quadrant of 32, on VectorE.

Source: the entry of this name in SDK nki.isa.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from trnx.simulator.costs.vector import on_vector, per_element
from trnx.simulator.isa.arguments import integers
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import bits_of
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_element, moved_partitions, other_partitions

_QUADRANT = 32
_KEEP = 255


@instruction(engines=(Engine.vector,), cost=(on_vector(per_element(1)),))
def nc_stream_shuffle(
    emit: Emit, dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None
) -> None:
    """Partition i of each quadrant of dst = partition shuffle_mask[i] of that quadrant of src; 255
    keeps.
    """
    emit.check(dst, "dst")
    emit.check(src, "src")
    if src.dtype != dst.dtype:
        emit.illegal(f"src is {src.dtype}, dst is {dst.dtype}; they must be equal")
    if src.free_size != dst.free_size:
        emit.illegal(f"src has {src.free_size} elements per partition, dst has {dst.free_size}")
    _check_placement(emit, dst, src)
    targets, sources = _rows(emit, dst, src, shuffle_mask)
    emit.propagation = by_element(
        src=functools.partial(moved_partitions, targets, sources),
        dst=functools.partial(other_partitions, targets),
    )
    shape = (src.shape[0], src.free_size)
    value = bits_of(emit.read(src, "src", shape=shape))
    if len(targets) == dst.shape[0]:
        out = bits_of(
            emit.write(dst, "dst", shape=(dst.shape[0], dst.free_size), elementwise=False)
        )
        if len(set(sources)) == 1:
            emit.step(out.copy_, value[sources[0] : sources[0] + 1].expand_as(out))
            return
        moved = emit.scratch(out.shape, out.dtype)
        emit.step(torch.index_select, value, 0, _index(sources), out=moved)
        emit.step(out.copy_, moved)
        return
    moved = emit.scratch((len(sources), src.free_size), value.dtype)
    kept = bits_of(emit.update(dst, "dst"))
    emit.step(torch.index_select, value, 0, _index(sources), out=moved)
    emit.step(kept.index_copy_, 0, _index(targets), moved.view(-1, *dst.shape[1:]))


def _index(rows: Sequence[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def _check_placement(emit: Emit, dst: NkiTensor, src: NkiTensor) -> None:
    """Both tiles start where the larger one's number of quadrants may start."""
    quadrants = -(-max(src.shape[0], dst.shape[0]) // _QUADRANT)
    step = {1: 32, 2: 64}.get(quadrants, 128)
    for name, tile in (("src", src), ("dst", dst)):
        if tile.start_partition % step:
            emit.illegal(
                f"{name} starts at partition {tile.start_partition}; with {quadrants * _QUADRANT} "
                f"active partitions it must be a multiple of {step}"
            )


def _rows(
    emit: Emit, dst: NkiTensor, src: NkiTensor, shuffle_mask: Any
) -> tuple[list[int], list[int]]:
    """The partitions of dst that are written, and those of src they come from."""
    mask = integers(emit, shuffle_mask, "shuffle_mask")
    if len(mask) != _QUADRANT:
        emit.illegal(f"shuffle_mask has {len(mask)} entries; it must have 32")
    targets, sources = [], []
    for row in range(dst.shape[0]):
        entry = mask[row % _QUADRANT]
        if entry == _KEEP:
            continue
        if not (0 <= entry < _QUADRANT):
            emit.illegal(f"shuffle_mask has {entry}; entries are 0 to 31, or 255")
        source = row - row % _QUADRANT + entry
        if source >= src.shape[0]:
            emit.illegal(f"shuffle_mask takes partition {source} of src, which has {src.shape[0]}")
        targets.append(row)
        sources.append(source)
    return targets, sources
