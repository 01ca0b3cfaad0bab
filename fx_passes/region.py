"""What partition produces: regions with their engine, and the ledger of refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import fx

from trnx.nki_kernels.spec import Kernel
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

Engine = Literal["nki", "xla", "eager", "collective"]


@dataclass(frozen=True)
class KernelMatch:
    """A kernel found in the graph.

    `bindings`: name -> the node that is bound (a tensor or a symbolic number), or the constant,
    which may be a list with nodes of symbolic integers in it. `results`: for each tensor that the
    kernel returns, in order, the node that holds it, or None where nobody uses it.
    """

    kernel: Kernel
    bindings: Mapping[str, Any]
    results: tuple[fx.Node | None, ...] = ()


@dataclass(frozen=True)
class LedgerEntry:
    """An op that does not run on NKI, or runs there without a bigger kernel that nearly took it
    (`engine` is `nki` then): the reason, the user's line, and what the user can do."""

    op: str
    node: str
    engine: Engine
    reason: str
    source: str
    advice: str

    def __str__(self) -> str:
        where = self.source or "unknown line"
        return f"{self.op} ({self.engine}) at {where}: {self.reason} -> {self.advice}"


@dataclass(frozen=True)
class Region:
    """Nodes that run together on one engine; convex; listed in an order that can be run.

    `nodes` are in topological order and hold the `getitem`s of multi-output nodes. Views, factories
    of constants and symbolic integers between regions belong to no region: the executable evaluates
    them. `inputs` are the nodes read from outside (graph inputs included), `outputs` those used
    outside. A collective between ranks is a region of its own, of the engine `collective`.
    """

    name: str
    engine: Engine
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    match: KernelMatch | None = None


@dataclass(frozen=True)
class Plan:
    """The partitioned graph.

    `steps` is everything that the executable has to do, in order: regions, and the glue nodes that
    it evaluates itself. `regions` are the regions among them.
    """

    graph_module: fx.GraphModule
    regions: tuple[Region, ...]
    ledger: tuple[LedgerEntry, ...]
    steps: tuple[Region | fx.Node, ...] = ()


class Generator(Protocol):
    """What partition needs of `trnx.nki_kernels.generator`."""

    def supports_node(self, node: fx.Node, hw: Hardware) -> Reject | None:
        """None where the generator lowers this node."""

    def fused_kernel(self, gm: fx.GraphModule, hw: Hardware) -> Kernel | Reject:
        """The kernel of these nodes, a graph module of their own, or why they do not fit one; its
        bindings are named like the placeholders of `gm`."""


class Predictor(Protocol):
    """What partition needs of `trnx.backend.prediction`; passed in, never imported here."""

    def __call__(self, match: KernelMatch) -> float:
        """Predicted seconds of the kernel as a region of a launched graph."""


RegionFunction = Callable[[Sequence[Any]], Sequence[torch.Tensor]]


class Refuse(Protocol):
    """Told why a region, given to an engine, runs in eager instead, and what a user can do."""

    def __call__(self, reason: str, advice: str, /) -> None: ...


class FallbackEngine(Protocol):
    """What partition and the executable need of `trnx.fallback`; passed in, never imported here."""

    @property
    def name(self) -> Engine:
        """`xla` or `eager`."""

    def supports(self, node: fx.Node) -> Reject | None:
        """None where the engine can run this node."""

    def cost(self, nodes: Sequence[fx.Node]) -> float:
        """Predicted seconds on the target for these nodes as one region, launch included."""

    def compile(self, graph_module: fx.GraphModule, refuse: Refuse | None = None) -> RegionFunction:
        """A callable for a region given as a graph module of its own (placeholders in the order of
        `Region.inputs`, output a tuple in the order of `Region.outputs`). Inputs are tensors and,
        for symbolic sizes, integers. Outputs have the strides of the graph's metadata. Where the
        engine fails, now or for sizes that come later, the region runs in eager and `refuse` is
        called."""
