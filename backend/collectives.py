"""Collectives of a graph: what they move, how long they take on the target, how they run here.

A collective begins where it stands in the plan and is waited for where its result is needed. It
runs on the process group that the model was sharded with: gloo on the CPU. Predictions use the
links of `plan/cluster.py`: rank n is core n of as many instances as the job needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.backend.plan.cluster import interconnect
from trnx.backend.plan.collectives import (
    Group,
    Interconnect,
    all_gather,
    all_reduce,
    all_to_all,
    send,
)
from trnx.backend.torch_internals import process_group_ranks
from trnx.fallback.layout import output_layouts, restride
from trnx.fx_passes.nodes import is_collective, is_wait, op_name, schema_of, tensors
from trnx.fx_passes.order import awaited
from trnx.fx_passes.region import Engine, Plan, Refuse, Region, RegionFunction
from trnx.fx_passes.source import source_line
from trnx.nki_kernels.hints import product
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_SECONDS: dict[str, Callable[[Interconnect, Group, float], float]] = {
    "all_gather": all_gather,
    "reduce_scatter": all_gather,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "shard_dim_alltoall": all_to_all,
    # The root's bytes go once around the ring, in pieces.
    "broadcast": all_gather,
}


@dataclass(frozen=True)
class Collective:
    """One collective: its op, its group's ranks, and the bytes of the whole tensors (what an
    all-gather returns, what a reduce-scatter reads)."""

    op: str
    ranks: tuple[int, ...]
    nbytes: int

    def seconds(self, links: Interconnect) -> float:
        """Time on the links, where nothing else uses them."""
        stride = self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 1
        name = self.op.split(".")[1]
        for kind, function in _SECONDS.items():
            if name.startswith(kind):
                return function(links, Group(len(self.ranks), abs(stride)), self.nbytes)
        return send(links, abs(stride), self.nbytes)  # between two ranks


@dataclass(frozen=True)
class CollectiveEntry:
    """The ledger's line of a collective. `exposed_seconds` is the part of `seconds` that nothing
    hides: what the graph waits for it."""

    op: str
    node: str
    region: str
    group_size: int
    nbytes: int
    seconds: float
    exposed_seconds: float
    source: str

    def __str__(self) -> str:
        return (
            f"{self.op} of {self.nbytes} bytes over {self.group_size} ranks at "
            f"{self.source or 'unknown line'}: {self.seconds * 1e6:.1f} us, "
            f"{self.exposed_seconds * 1e6:.1f} us of it not hidden"
        )


def collective_of(node: fx.Node) -> Collective:
    """What the graph says of a collective. Raises UnknownGroupError for a process group that this
    process does not have."""
    names = [argument.name for argument in schema_of(node).arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    read = _bytes(n.meta.get("val") for n in node.all_input_nodes)
    written = _bytes((node.meta.get("val"),))
    return Collective(op_name(node), process_group_ranks(given["group_name"]), max(read, written))


def _bytes(values: Iterable[Any]) -> int:
    return sum(product(value.shape) * value.dtype.itemsize for value in tensors(values))


class CollectiveEngine:
    """Runs collectives on their process groups."""

    name: Engine = "collective"

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def supports(self, node: fx.Node) -> Reject | None:
        """None for a collective."""
        return None if is_collective(node) else Reject("it is no collective", node)

    def cost(self, nodes: Sequence[fx.Node]) -> float:
        """Predicted seconds on the target's links."""
        return sum(self.seconds(node) for node in nodes if is_collective(node))

    def seconds(self, node: fx.Node) -> float:
        """Of one collective."""
        found = collective_of(node)
        return found.seconds(interconnect(self._hardware, max(found.ranks) + 1))

    def compile(self, graph_module: fx.GraphModule, refuse: Refuse | None = None) -> RegionFunction:
        """What begins the collective; results are waited for where their strides are not those that
        the graph promises, and have to be copied."""
        del refuse  # what fails on one rank must not be replaced on that one alone
        forward, layouts = graph_module.forward, output_layouts(graph_module)

        def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            outputs = forward(*inputs)
            return [
                value if layout is None else restride(value, layout, wait)
                for value, layout in zip(outputs, layouts, strict=True)
            ]

        return run

    def ledger(self, plan: Plan, seconds_of: Callable[[Region], float]) -> list[CollectiveEntry]:
        """An entry for each collective of `plan`, whose other regions take `seconds_of`.

        Regions run one after the other; collectives use the links beside them, one after the other,
        from where they begin.
        """
        # What regions take is predicted when somebody asks.
        if all(region.engine != self.name for region in plan.regions):
            return []
        now = links = 0.0
        ends: dict[fx.Node, float] = {}
        exposed: dict[fx.Node, float] = {}
        began: list[tuple[fx.Node, str, float]] = []
        for step in plan.steps:
            if not isinstance(step, Region):
                source = awaited(step)
                if source is not None and source in ends:
                    exposed[source] = exposed.get(source, 0.0) + max(0.0, ends[source] - now)
                    now = max(now, ends[source])
            elif step.engine != self.name:
                now += seconds_of(step)
            else:
                node, taken = step.nodes[0], self.cost(step.nodes)
                links = ends[node] = max(now, links) + taken
                began.append((node, step.name, taken))
                if not is_awaited(step):
                    exposed[node], now = ends[node] - now, ends[node]
        return [
            self._entry(node, name, taken, min(taken, exposed.get(node, 0.0)))
            for node, name, taken in began
        ]

    def _entry(self, node: fx.Node, region: str, seconds: float, exposed: float) -> CollectiveEntry:
        found = collective_of(node)
        return CollectiveEntry(
            found.op,
            node.name,
            region,
            len(found.ranks),
            found.nbytes,
            seconds,
            exposed,
            source_line(node),
        )


def is_awaited(region: Region) -> bool:
    """Whether the plan waits for every result of a collective's region."""
    return all(any(map(is_wait, node.users)) for node in region.outputs)


def wait(value: torch.Tensor) -> torch.Tensor:
    """`value` when its collective has ended; at once where there is none under way."""
    found: torch.Tensor = torch.ops._c10d_functional.wait_tensor.default(value)
    return found


def waited(run: RegionFunction) -> RegionFunction:
    """`run`, and the end of what it began: for results that the graph hands out unfinished, while
    the operands' memory is used for something else."""

    def finished(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        outputs = run(inputs)
        for value in tensors(outputs):
            wait(value)
        return outputs

    return finished
