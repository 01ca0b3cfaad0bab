"""The fastest mesh that fits: meshes in the order of a lower bound of their step, each predicted
from kernels until the next bound is above the best prediction.

A bound is the roofline plus collectives, so what is left out cannot win. Blocks of at most
`most_blocks` different sizes are predicted, to keep answers short; what this leaves open
is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnx.backend.plan.block import Shard, shard_of
from trnx.backend.plan.cluster import Cluster
from trnx.backend.plan.description import ModelDescription
from trnx.backend.plan.errors import NoMeshError
from trnx.backend.plan.kernels import block_seconds, head_seconds
from trnx.backend.plan.memory import Memory, memory_of
from trnx.backend.plan.mesh import Mesh, meshes
from trnx.backend.plan.step import Predict, Step, least_step, step_of
from trnx.backend.plan.workload import Workload


def most_blocks(work: Workload) -> int:
    """Blocks of different sizes that are predicted for one answer: each takes some five seconds
    forward, and up to thirty with its backward."""
    return 2 if work.training else 3


@dataclass(frozen=True)
class Choice:
    """A mesh, its memory, the lower bound of its step, and the step where it was predicted."""

    mesh: Mesh
    memory: Memory
    fits: bool
    least: Step
    step: Step | None = None

    @property
    def seconds(self) -> float:
        """Predicted, else the bound."""
        return (self.step or self.least).total


@dataclass(frozen=True)
class Plan:
    """All meshes of a model on a cluster, best first; `open` could be faster than the best."""

    model: ModelDescription
    cluster: Cluster
    work: Workload
    choices: tuple[Choice, ...]
    price: float | None = None

    @property
    def best(self) -> Choice | None:
        """The fastest that fits; None where none does."""
        found = [choice for choice in self.choices if choice.step is not None]
        return min(found, key=lambda choice: choice.seconds, default=None)

    @property
    def open(self) -> tuple[Choice, ...]:
        """Meshes that fit, were not predicted, and whose bound is below the best prediction."""
        best = self.best
        return tuple(
            choice
            for choice in self.choices
            if best is not None
            and choice.fits
            and choice.step is None
            and choice.least.total < best.seconds
        )

    def tokens_per_second(self, choice: Choice) -> float:
        """Of the whole cluster."""
        return self.work.tokens / choice.seconds

    def mfu(self, choice: Choice) -> float:
        """Share of the bfloat16 peak of all cores that the model's own FLOPs are."""
        work, model = self.work, self.model
        heads = work.tokens if work.training else work.batch
        context = work.context(model.causal)
        flops = model.layers * model.block_flops(work.tokens, context) + model.head_flops(heads)
        peak = self.cluster.cores * self.cluster.chip.peak_bf16_flops
        return (3 if work.training else 1) * flops / (choice.seconds * peak)

    def cost(self, choice: Choice) -> float | None:
        """Of a million tokens, in the price's currency."""
        if self.price is None:
            return None
        return self.price * self.cluster.nodes / 3600 * 1e6 / self.tokens_per_second(choice)


def make_plan(
    model: ModelDescription,
    cluster: Cluster,
    work: Workload,
    price: float | None = None,
    block: Predict = block_seconds,
    head: Predict = head_seconds,
) -> Plan:
    """Search the meshes. Raises NoMeshError where none divides the model and the batch."""
    found = list(meshes(model, cluster, work))
    if not found:
        raise NoMeshError(
            f"no mesh of {cluster.cores} cores divides {model.name} ({model.layers} layers, "
            f"{model.heads} heads) and a batch of {work.batch}: choose a batch that is a multiple "
            "of the data ranks (cores / heads, or more), or fewer nodes"
        )
    choices = [_choice(model, cluster, mesh, work) for mesh in found]
    choices.sort(key=lambda choice: (not choice.fits, choice.least.total, choice.memory.total))
    predicted = _predicted(model, cluster, work, choices, block, head)
    predicted.sort(key=lambda choice: (not choice.fits, choice.step is None, choice.seconds))
    return Plan(model, cluster, work, tuple(predicted), price)


def _choice(model: ModelDescription, cluster: Cluster, mesh: Mesh, work: Workload) -> Choice:
    memory = memory_of(model, mesh, work)
    fits = memory.total <= cluster.core_bytes
    return Choice(mesh, memory, fits, least_step(model, cluster, mesh, work))


def _predicted(
    model: ModelDescription,
    cluster: Cluster,
    work: Workload,
    choices: Sequence[Choice],
    block: Predict,
    head: Predict,
) -> list[Choice]:
    """The same, with steps where they can decide."""
    known: set[Shard] = set()
    best = float("inf")
    found = []
    for choice in choices:
        shard = shard_of(model, choice.mesh, work)
        if (
            choice.fits
            and choice.least.total < best
            and (shard in known or len(known) < most_blocks(work))
        ):
            known.add(shard)
            step = step_of(model, cluster, choice.mesh, work, block, head)
            best = min(best, step.total)
            choice = Choice(choice.mesh, choice.memory, True, choice.least, step)
        found.append(choice)
    return found
