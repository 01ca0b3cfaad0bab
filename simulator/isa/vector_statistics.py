"""Mean and variance on VectorE: bn_stats and bn_aggr.

bn_stats gives, per partition, (count, mean, variance * count) of the elements at even positions and
then of those at odd ones; bn_aggr merges such triples into (mean, variance), the variance being
that of the population. Source: the entries of these names in SDK nki.isa.
"""

from __future__ import annotations

import torch

from trnx.simulator.costs.vector import on_vector, per_element
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition

_MAX_ELEMENTS = 512  # nl.tile_size.bn_stats_fmax


@instruction(engines=(Engine.vector,), undefined=by_partition(), cost=(on_vector(per_element(1)),))
def bn_stats(emit: Emit, dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """dst[p] = the statistics of the even and of the odd elements of data[p], 6 values."""
    emit.check(dst, "dst")
    emit.check(data, "data")
    partitions, length = data.shape[0], data.free_size
    if length > _MAX_ELEMENTS:
        emit.illegal(
            f"data has {length} elements per partition; the maximum is {_MAX_ELEMENTS}: use tiles"
        )
    _check_size(emit, dst, data, 6)
    value = emit.read_f32(data, "data", shape=(partitions, length))
    out = emit.write_f32(dst, "dst", shape=(partitions, 6), elementwise=False)
    if length % 2 == 0:
        # As many even elements as odd ones: both in one step.
        pairs = value.view(partitions, length // 2, 2).transpose(1, 2)
        _statistics(emit, pairs, out.view(partitions, 2, 3))
        return
    for first in (0, 1):
        _statistics(emit, value[:, None, first::2], out[:, None, 3 * first :][..., :3])


def _statistics(emit: Emit, value: torch.Tensor, out: torch.Tensor) -> None:
    """out[p, i] = (count, mean, variance * count) of the elements of value[p, i]."""
    count = value.shape[2]
    emit.step(out[..., 0].fill_, count)
    if count == 0:
        emit.step(out[..., 1:].zero_)
        return
    mean, spread = out[..., 1:2], out[..., 2:]
    # Side by side, where torch computes several at once.
    centred = emit.scratch(value.shape)
    emit.step(centred.copy_, value)
    emit.step(torch.mean, centred, 2, True, out=mean)
    emit.step(centred.sub_, mean)
    emit.step(torch.mul, centred, centred, out=centred)
    emit.step(torch.sum, centred, 2, True, out=spread)


def _check_size(emit: Emit, dst: NkiTensor, data: NkiTensor, size: int) -> None:
    if dst.shape[0] != data.shape[0] or dst.free_size != size:
        emit.illegal(f"dst has shape {dst.shape}; expected ({data.shape[0]}, {size})")


@instruction(
    engines=(Engine.vector,),
    undefined=by_partition(),
    cost=(on_vector(per_element(13 / 3)),),
)
def bn_aggr(emit: Emit, dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """dst[p] = (mean, variance) of the triples (count, mean, variance * count) in data[p]."""
    emit.check(dst, "dst")
    emit.check(data, "data")
    partitions, length = data.shape[0], data.free_size
    if length % 3:
        emit.illegal(f"data has {length} elements per partition; not a multiple of 3")
    _check_size(emit, dst, data, 2)
    value = emit.read_f32(data, "data", shape=(partitions, length))
    count, mean, spread = value[:, 0::3], value[:, 1::3], value[:, 2::3]
    out = emit.write_f32(dst, "dst", shape=(partitions, 2), elementwise=False)
    total, average = emit.scratch((partitions, 1)), out[:, :1]
    work = emit.scratch((partitions, length // 3))
    emit.step(torch.sum, count, 1, True, out=total)
    emit.step(torch.mul, count, mean, out=work)
    emit.step(torch.sum, work, 1, True, out=average)
    emit.step(average.div_, total)
    # Sum of variance * count, and of the distance of each mean from the common one.
    emit.step(torch.sub, mean, average, out=work)
    emit.step(work.square_)
    emit.step(work.mul_, count)
    emit.step(work.add_, spread)
    emit.step(torch.sum, work, 1, True, out=out[:, 1:])
    emit.step(out[:, 1:].div_, total)
