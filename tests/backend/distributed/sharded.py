"""A Llama block, sharded over the ranks of a mesh in the ways of torch, and its reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

import trnx

HIDDEN, ROWS = 64, 16
CONFIG = {
    "hidden_size": HIDDEN, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 64,
    "attn_implementation": "sdpa",
}  # fmt: skip
_OPTIONS = {"runner": "simulator"}


class Blocks(nn.Module):
    """`count` decoder layers one after the other."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        config = LlamaConfig(**CONFIG)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, place) for place in range(count))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[batch, rows, hidden] -> the same."""
        for layer in self.layers:
            found = layer(x, position_embeddings=(cos, sin))
            x = found[0] if isinstance(found, tuple) else found
        return x


class Gathered(nn.Module):
    """FSDP inside of the graph: weights are sharded DTensors, gathered where the layers run."""

    def __init__(self, blocks: Blocks, mesh: DeviceMesh) -> None:
        super().__init__()
        self.names = [name for name, _ in blocks.named_parameters()]
        self.blocks = [blocks]  # no submodule: its parameters are replaced in every call
        self.shards = nn.ParameterList(
            nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)]))
            for p in blocks.parameters()
        )

    def forward(self, *args: torch.Tensor) -> Any:
        """As the blocks'."""
        whole = [
            shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            for shard in self.shards
        ]
        weights = dict(zip(self.names, whole, strict=True))
        return torch.func.functional_call(self.blocks[0], weights, args)


@dataclass
class Sharded:
    """What a rank compiles and calls: `local` is its part of a whole tensor; gradients are means
    over `scale` ranks."""

    module: nn.Module
    local: Callable[[torch.Tensor], torch.Tensor]
    scale: int = 1
    compiled: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        self.compiled = torch.compile(self.module, backend="trnx", options=_OPTIONS)


_LINEAR = {
    **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
    **{f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
}


def tensor_parallel(blocks: Blocks, mesh: DeviceMesh) -> Sharded:
    """Heads and columns of the feed-forward are split."""
    plan = {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in blocks.layers:
        parallelize_module(layer, mesh, {**_LINEAR, **plan})
    return Sharded(blocks, lambda value: value)


def sequence_parallel(blocks: Blocks, mesh: DeviceMesh) -> Sharded:
    """As `tensor_parallel`; norms and the residual stream have a part of the rows."""
    rows = {"hidden_states": Shard(1)}, {"hidden_states": Replicate()}
    plan = {
        "input_layernorm": SequenceParallel(),
        "post_attention_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts=rows[0], desired_input_kwarg_layouts=rows[1]
        ),
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    for layer in blocks.layers:
        parallelize_module(layer, mesh, {**_LINEAR, **plan})
    return Sharded(blocks, lambda value: value.chunk(mesh.size(), 1)[mesh.get_local_rank()])


def _part_of_batch(mesh: DeviceMesh) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value.chunk(mesh.size(), 0)[mesh.get_local_rank()]


def gathered(blocks: Blocks, mesh: DeviceMesh) -> Sharded:
    """The batch and the weights are split; weights are gathered inside of the graph."""
    return Sharded(Gathered(blocks, mesh), _part_of_batch(mesh))


def fsdp_block(blocks: Blocks, mesh: DeviceMesh) -> Sharded:
    """FSDP2 of every block."""
    for layer in blocks.layers:
        fully_shard(layer, mesh=mesh)
    return Sharded(blocks, _part_of_batch(mesh), scale=mesh.size())


def fsdp_whole(blocks: Blocks, mesh: DeviceMesh) -> Sharded:
    """FSDP2 of the whole model as one."""
    fully_shard(blocks, mesh=mesh)
    return Sharded(blocks, _part_of_batch(mesh), scale=mesh.size())


WAYS = {
    "tensor": tensor_parallel,
    "sequence": sequence_parallel,
    "gathered": gathered,
    "fsdp_block": fsdp_block,
    "fsdp_whole": fsdp_whole,
}


@dataclass
class Case:
    """A block, its inputs, and what one process computes of them in eager."""

    blocks: Blocks
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    tangent: torch.Tensor
    output: torch.Tensor
    input_gradient: torch.Tensor
    gradients: list[torch.Tensor]


def make_case(count: int = 1, rows: int = ROWS) -> Case:
    """The same on every rank."""
    torch.manual_seed(0)
    blocks = Blocks(count)
    x = torch.randn(2, rows, HIDDEN, requires_grad=True)
    cos, sin = LlamaRotaryEmbedding(LlamaConfig(**CONFIG))(x, torch.arange(rows)[None])
    inputs = (x, cos.detach(), sin.detach())
    tangent = torch.randn(2, rows, HIDDEN)
    reference = copy.deepcopy(blocks)
    output = reference(*inputs)
    output.backward(tangent)
    assert x.grad is not None
    gradients = [p.grad for p in reference.parameters() if p.grad is not None]
    return Case(blocks, inputs, tangent, output.detach(), x.grad.clone(), gradients)


@dataclass
class Found:
    """What a rank has after one step."""

    output: torch.Tensor
    input_gradient: torch.Tensor
    local_gradients: list[torch.Tensor]


def run_step(sharded: Sharded, case: Case) -> Found:
    """Forward and backward of one rank."""
    x = sharded.local(case.inputs[0]).detach().clone().requires_grad_()
    output = sharded.compiled(x, *case.inputs[1:])
    output.backward(sharded.local(case.tangent).contiguous())
    assert x.grad is not None
    grads = [p.grad for p in sharded.module.parameters()]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
    return Found(output.detach(), x.grad, [g for g in local if g is not None])


def whole_gradients(sharded: Sharded) -> list[torch.Tensor]:
    """Gradients of the whole parameters; a collective."""
    grads = [p.grad for p in sharded.module.parameters() if p.grad is not None]
    whole = [g.full_tensor() if isinstance(g, DTensor) else g for g in grads]
    return [sharded.scale * g for g in whole]


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference in units of rtol 1e-4 with a floor: at most 1 is equal."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    limit = 1e-4 * expected.abs() + 1e-5 * expected.abs().max()
    return float(((found - expected).abs() / limit).max())


def graph_facts(reports: Any) -> list[dict[str, Any]]:
    """What the tests ask of each graph."""
    return [
        {
            "kind": report.kind,
            "engines": [region.engine for region in report.regions],
            "stretches": report.stretches,
            "collectives": [
                {
                    "op": c.op, "group": c.group_size, "bytes": c.nbytes, "seconds": c.seconds,
                    "exposed": c.exposed_seconds,
                }
                for c in report.collectives
            ],
            "fallbacks": [str(entry) for entry in report.fallbacks],
            "flops": [report.flops_nki, report.flops_total],
            "text": str(report),
        }
        for report in reports
    ]  # fmt: skip


def report_of(sharded: Sharded, case: Case) -> tuple[Found, list[dict[str, Any]]]:
    """A step, and its graphs."""
    with trnx.collect_reports() as reports:
        found = run_step(sharded, case)
    return found, graph_facts(reports)
