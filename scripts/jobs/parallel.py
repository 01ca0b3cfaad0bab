"""Data, sharded and tensor parallelism of a model over a device mesh (data, tensor).

* `ddp`: DistributedDataParallel. * `fsdp`: FSDP2, `fully_shard` on every block and the root.
* tensor parallel: attention heads, feed-forward columns and the vocabulary of the head are split;
  it goes alone or with `fsdp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from trnx.jobs.devices import Platform, Ranks
from trnx.jobs.errors import FlagError
from trnx.jobs.models import architecture

MODES = ("auto", "none", "ddp", "fsdp")


@dataclass(frozen=True)
class ParallelDims:
    """How ranks are arranged: `data` groups of `tensor` neighbouring ranks."""

    mode: str
    data: int
    tensor: int
    ranks: Ranks

    @property
    def data_rank(self) -> int:
        """The group of this rank: which part of a batch it computes."""
        return self.ranks.rank // self.tensor

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"mode": self.mode, "data": self.data, "tensor": self.tensor}


def make_layout(mode: str, tensor: int, ranks: Ranks) -> ParallelDims:
    """The layout that flags ask for. Raises FlagError where it cannot be."""
    if tensor < 1 or ranks.world % tensor:
        raise FlagError(
            f"--tensor-parallel {tensor} does not divide the {ranks.world} processes of this job"
        )
    data = ranks.world // tensor
    if mode == "auto":
        mode = "none" if data == 1 else ("fsdp" if tensor > 1 else "ddp")
    if mode == "none" and data > 1:
        raise FlagError(
            f"--parallel none leaves {data} groups of processes without anything to share; say "
            "--parallel ddp or fsdp, or start one process"
        )
    if mode == "ddp" and tensor > 1:
        raise FlagError("--parallel ddp does not go with --tensor-parallel; say --parallel fsdp")
    if mode in ("ddp", "fsdp") and not dist.is_initialized():
        raise FlagError(f"--parallel {mode} needs torchrun: torchrun --nproc-per-node N ...")
    return ParallelDims(mode, data, tensor, ranks)


# Linear layers of a Llama block whose outputs are split, and those whose inputs then are.
_COLUMNS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)
_ROWS = ("self_attn.o_proj", "mlp.down_proj")


# Parts of a layer with an adapter (peft's names) that are split as the layer is; the other factor
# of its two has the rank's few rows or columns, and is whole on every rank.
_SPLIT_COLUMNS = ("base_layer", "lora_B.default")
_SPLIT_ROWS = ("base_layer", "lora_A.default")


def _tensor_plan(block: torch.nn.Module) -> dict[str, ParallelStyle]:
    def parts(names: tuple[str, ...], inner: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            adapted = hasattr(block.get_submodule(name), "base_layer")
            yield from (f"{name}.{part}" for part in inner) if adapted else (name,)

    plan: dict[str, ParallelStyle] = {n: ColwiseParallel() for n in parts(_COLUMNS, _SPLIT_COLUMNS)}
    return plan | {name: RowwiseParallel() for name in parts(_ROWS, _SPLIT_ROWS)}


def _check_tensor(config: Any, size: int) -> None:
    if config.model_type != "llama":
        raise FlagError(
            f"--tensor-parallel needs a Llama model; {config.model_type} keeps queries, keys and "
            "values in one matrix"
        )
    if config.tie_word_embeddings:
        raise FlagError("--tensor-parallel needs a head of its own: tie_word_embeddings is true")
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        if getattr(config, name) % size:
            raise FlagError(
                f"--tensor-parallel {size} does not divide {name} = {getattr(config, name)}"
            )


def split_tensors(
    model: torch.nn.Module, config: Any, layout: ParallelDims, mesh: DeviceMesh
) -> None:
    """Split every block and the head over the tensor dimension of the mesh, in place."""
    _check_tensor(config, layout.tensor)
    where = architecture(config)
    for block in model.get_submodule(where.blocks).children():
        parallelize_module(block, mesh, _tensor_plan(block))
    parallelize_module(model, mesh, {where.head: ColwiseParallel(output_layouts=Replicate())})


def make_mesh(layout: ParallelDims, platform: Platform) -> DeviceMesh | None:
    """The mesh with dimensions (data, tensor); None in a single process."""
    if not dist.is_initialized():
        return None
    shape = (layout.data, layout.tensor)
    return init_device_mesh(platform.device.type, shape, mesh_dim_names=("data", "tensor"))


def shard(
    model: torch.nn.Module, config: Any, mesh: DeviceMesh, dtype: torch.dtype
) -> torch.nn.Module:
    """FSDP2 over the data dimension: every block, then the rest; computes in `dtype`."""
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.get_submodule(architecture(config).blocks).children():
        fully_shard(block, mesh=mesh["data"], mp_policy=policy)
    fully_shard(model, mesh=mesh["data"], mp_policy=policy)
    return model


def replicate(model: torch.nn.Module) -> torch.nn.Module:
    """DDP; gradients are averaged while backward runs."""
    return DistributedDataParallel(model)


def linear_layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """(path, module) of every linear layer."""
    from transformers.pytorch_utils import Conv1D

    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, Conv1D)):
            yield name, module


def local_size(weight: torch.Tensor) -> int:
    """Elements that this rank has."""
    return int((weight.to_local() if isinstance(weight, DTensor) else weight).numel())


def linear_sizes(model: torch.nn.Module) -> Iterator[tuple[str, int]]:
    """(path, elements of the local weight) of every linear layer; after `split_tensors`, before
    `shard`."""
    return ((name, local_size(module.weight)) for name, module in linear_layers(model))


def _full(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def clip_gradients(model: torch.nn.Module, limit: float) -> torch.Tensor:
    """Scale gradients so that their norm over the whole model is at most `limit` (0: no limit);
    the norm before.

    Split parameters and whole ones may be mixed, which `clip_grad_norm_` does not take.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    squares = [_full(torch.linalg.vector_norm(g, dtype=torch.float32) ** 2) for g in gradients]
    norm = torch.stack(squares).sum().sqrt()
    if limit:
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.mul_(scale.to(local.dtype))
    return norm
