"""How a model is divided over cores: the degrees of parallelism, and which of them are legal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trnx.backend.plan.cluster import Cluster
from trnx.backend.plan.description import ModelDescription
from trnx.backend.plan.workload import Workload


@dataclass(frozen=True)
class Mesh:
    """Degrees; data x tensor x pipeline cores. Ranks number tensor first, pipeline last.

    `sequence` divides norms and residuals over the tensor ranks by tokens (Megatron's sequence
    parallelism). `expert` ranks are those of `data`: each holds experts / expert of them.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sequence: bool = False
    expert: int = 1

    @property
    def cores(self) -> int:
        """Physical cores."""
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        named = [("dp", self.data), ("tp", self.tensor), ("pp", self.pipeline)]
        named += [("ep", self.expert)] if self.expert > 1 else []
        return " ".join(f"{name}={size}" for name, size in named) + " sp" * self.sequence

    def to_dict(self) -> dict[str, int | bool]:
        """Plain numbers."""
        return {
            "data": self.data,
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "sequence": self.sequence,
            "expert": self.expert,
        }


def meshes(model: ModelDescription, cluster: Cluster, work: Workload) -> Iterator[Mesh]:
    """All meshes of a cluster's cores that divide the model and the batch."""
    for tensor in _divisors(cluster.node_cores):
        if model.heads % tensor or model.ffn % tensor or not _kv_heads_divide(model, tensor):
            continue
        for pipeline in _divisors(cluster.cores // tensor):
            data = cluster.cores // tensor // pipeline
            if model.layers % pipeline or work.batch % data or work.micro_batches(data) == 0:
                continue
            if not work.training and pipeline > 1:
                continue
            for expert in _divisors(data):
                if model.experts % expert == 0:
                    yield from _with_sequence(Mesh(data, tensor, pipeline, False, expert), work)


def _with_sequence(mesh: Mesh, work: Workload) -> Iterator[Mesh]:
    yield mesh
    if mesh.tensor > 1 and work.rows % mesh.tensor == 0:
        yield Mesh(mesh.data, mesh.tensor, mesh.pipeline, True, mesh.expert)


def _kv_heads_divide(model: ModelDescription, tensor: int) -> bool:
    """More ranks than key heads repeat them, so one number must divide the other."""
    return model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
