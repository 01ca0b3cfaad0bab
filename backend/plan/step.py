"""Seconds of one step of a mesh: kernels, collectives, pipeline bubble, optimizer and launches.

Tensor- and expert-parallel collectives stand between kernels that need them, so none is hidden.
The reduction of gradients runs beside the backward of the last micro-batch, all layers but the
first; the gathering of updated weights is not hidden. The pipeline is 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from trnx.backend.plan.block import Shard, shard_of
from trnx.backend.plan.cluster import Cluster
from trnx.backend.plan.collectives import Group, all_gather, all_reduce, all_to_all, send
from trnx.backend.plan.description import ModelDescription
from trnx.backend.plan.kernels import Seconds, block_seconds, head_seconds
from trnx.backend.plan.memory import stage_parameters
from trnx.backend.plan.mesh import Mesh
from trnx.backend.plan.workload import Workload
from trnx.simulator.timing.estimate import hbm_seconds


@dataclass(frozen=True)
class Step:
    """Seconds of one step on its slowest rank. `scheduled` is the part of `kernels` that rests on
    schedules, for which the error band holds; it is no time of its own."""

    kernels: float
    tensor: float
    expert: float
    pipeline: float
    bubble: float
    data: float
    optimizer: float
    launches: float
    scheduled: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """What the step is made of."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "scheduled"}

    @property
    def total(self) -> float:
        """All together."""
        return sum(self.parts.values())


Predict = Callable[[Shard, str, bool], Seconds]


def step_of(
    model: ModelDescription,
    cluster: Cluster,
    mesh: Mesh,
    work: Workload,
    block: Predict = block_seconds,
    head: Predict = head_seconds,
) -> Step:
    """The step with kernels as predicted."""
    shard, target = shard_of(model, mesh, work), cluster.chip.target
    each, last = block(shard, target, work.training), head(shard, target, work.training)
    # Checkpointing computes a block's forward again.
    again = 2 if work.training and work.checkpointing else 1
    layers = model.layers // mesh.pipeline
    kernels = layers * (again * each.forward + each.backward) + last.forward + last.backward
    scheduled = layers * (again * each.forward_scheduled + each.backward_scheduled)
    scheduled += last.forward_scheduled + last.backward_scheduled
    hidden = (layers - 1) * each.backward
    return _assembled(model, cluster, mesh, work, kernels, scheduled, hidden)


def least_step(model: ModelDescription, cluster: Cluster, mesh: Mesh, work: Workload) -> Step:
    """A lower bound: kernels at the roofline of TensorE and HBM, collectives as in `step_of`, all
    of the gradients' reduction hidden."""
    chip, data = cluster.chip, mesh.data
    tokens = work.sequences(data) * work.rows
    peak = chip.peak_bf16_flops if work.dtype.itemsize == 2 else chip.peak_fp32_flops
    passes = (4 if work.checkpointing else 3) if work.training else 1
    heads = tokens if work.training else work.sequences(data)
    flops = model.layers / mesh.pipeline * model.block_flops(tokens, work.context(model.causal))
    flops = (passes * flops + min(passes, 3) * model.head_flops(heads)) / mesh.tensor
    read = stage_parameters(model, mesh, mesh.pipeline - 1).total - (
        model.embedding_parameters / mesh.tensor if mesh.pipeline == 1 and not model.tied else 0
    )
    if model.experts > 1:  # few tokens need not meet every expert
        read = 0
    rate = min(chip.dma_bytes_per_second, chip.hbm_bytes_per_second)
    kernels = max(flops / peak, max(read, 0) * work.dtype.itemsize / rate)
    return _assembled(model, cluster, mesh, work, kernels, 0.0, float("inf"))


def _assembled(
    model: ModelDescription,
    cluster: Cluster,
    mesh: Mesh,
    work: Workload,
    kernels: float,
    scheduled: float,
    hidden: float,
) -> Step:
    """A step from the seconds of one micro-batch's kernels on the last stage."""
    micro = work.micro_batches(mesh.data)
    tensor = _tensor_seconds(model, cluster, mesh, work)
    expert = _expert_seconds(model, cluster, mesh, work)
    sent = _pipeline_seconds(model, cluster, mesh, work)
    chip, graphs = cluster.chip, 2 if work.training else 1
    data, optimizer = 0.0, 0.0
    if work.training:
        data = _data_seconds(model, cluster, mesh, work, hidden)
        optimizer = _optimizer_seconds(model, cluster, mesh, work)
    return Step(
        kernels=micro * kernels,
        tensor=micro * tensor,
        expert=micro * expert,
        pipeline=micro * sent,
        bubble=(mesh.pipeline - 1) * (kernels + tensor + expert + sent),
        data=data,
        optimizer=optimizer,
        launches=(micro * graphs + work.training) * chip.launch_seconds,
        scheduled=(micro + mesh.pipeline - 1) * scheduled,
    )


def _tensor_seconds(model: ModelDescription, cluster: Cluster, mesh: Mesh, work: Workload) -> float:
    """Two sums a block and pass, and one behind the embedding; as reduce-scatter and all-gather
    with sequence parallelism, which are the same bytes."""
    if mesh.tensor == 1:
        return 0.0
    size = work.dtype.itemsize
    nbytes = work.sequences(mesh.data) * work.rows * model.hidden * size
    passes = (3 if work.checkpointing else 2) if work.training else 1
    sums = 2 * passes * (model.layers // mesh.pipeline) + 1
    return sums * all_reduce(cluster, Group(mesh.tensor, 1), nbytes)


def _expert_seconds(model: ModelDescription, cluster: Cluster, mesh: Mesh, work: Workload) -> float:
    """Tokens to their experts and back, in each block and pass."""
    if mesh.expert == 1:
        return 0.0
    shard = shard_of(model, mesh, work)
    nbytes = shard.experts * shard.expert_rows * model.hidden * work.dtype.itemsize
    passes = (3 if work.checkpointing else 2) if work.training else 1
    exchanges = 2 * passes * (model.layers // mesh.pipeline)
    return exchanges * all_to_all(cluster, Group(mesh.expert, mesh.tensor), nbytes)


def _pipeline_seconds(
    model: ModelDescription, cluster: Cluster, mesh: Mesh, work: Workload
) -> float:
    """The residual stream to the next stage, and its gradient back."""
    if mesh.pipeline == 1:
        return 0.0
    shard = shard_of(model, mesh, work)
    nbytes = shard.sequences * shard.norm_rows * model.hidden * work.dtype.itemsize
    return 2 * send(cluster, mesh.data * mesh.tensor, nbytes)


def _data_seconds(
    model: ModelDescription, cluster: Cluster, mesh: Mesh, work: Workload, hidden: float
) -> float:
    """What backward does not hide of the reduce-scatter of gradients, and the all-gather of the
    weights that each rank updated."""
    held, size = stage_parameters(model, mesh, 0), work.dtype.itemsize
    dense = all_gather(cluster, Group(mesh.data, mesh.tensor), held.dense * size)
    apart = Group(mesh.data // mesh.expert, mesh.tensor * mesh.expert)
    each = dense + all_gather(cluster, apart, held.experts * size)
    return max(0.0, each - hidden) + each


def _optimizer_seconds(
    model: ModelDescription, cluster: Cluster, mesh: Mesh, work: Workload
) -> float:
    """States are read and written, gradients read, weights written (and read, without a master
    copy)."""
    held = stage_parameters(model, mesh, 0)
    own = (held.dense + held.experts * mesh.expert) / mesh.data
    nbytes = own * (2 * work.state_bytes + 3 * work.dtype.itemsize)
    return hbm_seconds(cluster.chip, round(nbytes))
