"""Bytes of one core: weights, gradients, optimizer, activations and KV cache of its fullest stage.

Activations are what torch's autograd saves of one block of the sharded sizes (counted without
data), times the blocks and micro-batches in flight (1F1B), plus what backward holds at its peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import nn

from trnx.backend.plan.block import Block, Head, Shard, shard_of, without_data
from trnx.backend.plan.description import ModelDescription
from trnx.backend.plan.mesh import Mesh
from trnx.backend.plan.workload import Workload


@dataclass(frozen=True)
class Memory:
    """Bytes of one core, at the peak of a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    kv_cache: int

    @property
    def total(self) -> int:
        """All together."""
        return sum(getattr(self, field.name) for field in fields(self))

    def to_dict(self) -> dict[str, int]:
        """Bytes by what they hold."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "total": self.total
        }


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters of one core: of experts, and of all else."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        """All together."""
        return self.dense + self.experts


def stage_parameters(model: ModelDescription, mesh: Mesh, stage: int) -> Parameters:
    """Of one rank of a pipeline stage; the first has the embedding, the last the head."""
    shard = shard_of(model, mesh, Workload())
    block = _block_parameters(shard)
    layers = model.layers // mesh.pipeline
    experts = _expert_parameters(model, shard)
    dense = layers * (block - experts)
    first, last = stage == 0, stage == mesh.pipeline - 1
    if first:
        small = model.embedding_parameters - model.vocab * model.hidden
        dense += shard.vocab * model.hidden + small
    if last:
        own = 0 if model.tied and first else shard.vocab * model.hidden
        small = model.hidden * (model.hidden + 3) if model.encoder else model.hidden
        dense += own + small + (shard.vocab if model.encoder else 0)
    return Parameters(dense, layers * experts)


def memory_of(model: ModelDescription, mesh: Mesh, work: Workload) -> Memory:
    """The fullest stage's memory."""
    stages = {0, mesh.pipeline - 1}
    found = (_stage_memory(model, mesh, work, stage) for stage in sorted(stages))
    return max(found, key=lambda memory: memory.total)


def _stage_memory(model: ModelDescription, mesh: Mesh, work: Workload, stage: int) -> Memory:
    parameters, size = stage_parameters(model, mesh, stage), work.dtype.itemsize
    states = -(-parameters.dense // mesh.data)
    states += -(-parameters.experts * mesh.expert // mesh.data)
    return Memory(
        weights=parameters.total * size,
        gradients=parameters.total * size if work.training else 0,
        optimizer=states * work.state_bytes,
        activations=_activations(model, mesh, work, stage),
        kv_cache=0 if work.training else _kv_cache(model, mesh, work),
    )


def _kv_cache(model: ModelDescription, mesh: Mesh, work: Workload) -> int:
    if model.encoder:
        return 0
    shard = shard_of(model, mesh, work)
    tokens = shard.sequences * work.sequence
    row = 2 * shard.kv_heads * model.head_dim * work.dtype.itemsize
    return model.layers // mesh.pipeline * tokens * row


def _activations(model: ModelDescription, mesh: Mesh, work: Workload, stage: int) -> int:
    """What is alive at the peak: of training that of the first backward."""
    shard = shard_of(model, mesh, work)
    stream = shard.sequences * shard.norm_rows * model.hidden * work.dtype.itemsize
    last = stage == mesh.pipeline - 1
    block = block_bytes(shard)
    if not work.training:
        logits = shard.sequences * shard.vocab * work.dtype.itemsize
        return stream + max(block.working, logits if last else 0)
    kept = stream if work.checkpointing else block.saved
    flights = min(mesh.pipeline - stage, work.micro_batches(mesh.data))
    working = block.working + (block.saved if work.checkpointing else 0)
    head = head_bytes(shard) if last else 0
    return model.layers // mesh.pipeline * kept * flights + max(working, head)


@dataclass(frozen=True)
class BlockBytes:
    """Of one block: what autograd saves, and what is alive beside it while the block computes."""

    saved: int
    working: int


@lru_cache(maxsize=512)
def block_bytes(shard: Shard) -> BlockBytes:
    """Counted by torch, without data."""
    with without_data():
        block = Block(shard)
        inputs = {name: value.requires_grad_() for name, value in block.inputs().items()}
        saved = saved_bytes(block, inputs)
    size = shard.dtype.itemsize
    rows = shard.sequences * shard.rows
    streams = 2 * shard.sequences * shard.norm_rows * shard.model.hidden * size
    inner = (
        3 * rows * shard.ffn
        if shard.experts == 1
        else 3 * shard.experts * shard.expert_rows * shard.ffn
    )
    return BlockBytes(saved, streams + inner * size)


@lru_cache(maxsize=512)
def head_bytes(shard: Shard) -> int:
    """The head in backward: what is saved, the logits that the loop holds, their gradients in
    float32 and in the model's dtype, and the gradient of the matrix before it is accumulated."""
    tokens, size = shard.sequences * shard.rows, shard.dtype.itemsize
    with without_data():
        head = Head(shard, training=True)
        x = torch.empty(tokens, shard.model.hidden, dtype=shard.dtype, requires_grad=True)
        saved = saved_bytes(head, x, torch.empty(tokens, dtype=torch.int64))
    return saved + tokens * shard.vocab * (4 + 2 * size) + shard.vocab * shard.model.hidden * size


def saved_bytes(module: nn.Module, *inputs: object) -> int:
    """What autograd saves of a call, each storage once, parameters and buffers apart."""
    own = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(_keep(kept), lambda value: value):
        module(*inputs)
        found = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}
    return sum(size for storage, size in found.items() if storage not in own)


def _keep(kept: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def pack(value: torch.Tensor) -> torch.Tensor:
        kept.append(value)
        return value

    return pack


@lru_cache(maxsize=512)
def _block_parameters(shard: Shard) -> int:
    with without_data():
        return sum(parameter.numel() for parameter in Block(shard).parameters())


def _expert_parameters(model: ModelDescription, shard: Shard) -> int:
    if model.experts == 1:
        return 0
    return shard.experts * 3 * model.hidden * shard.ffn
