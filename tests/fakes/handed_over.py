"""What tests read of the fake Dynamo backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx


@dataclass
class Handed:
    """One call of the backend: the graph, the options, the NKI ops that ran, the runs."""

    graph_module: fx.GraphModule
    options: dict[str, Any]
    mode: str
    runs: int = 0
    compiled: int = 0
    ops: list[str] = field(default_factory=list)

    @property
    def nki_ops(self) -> list[str]:
        """Names of the NKI ops among the nodes, in order."""
        return [
            node.target._opname if hasattr(node.target, "_opname") else str(node.target)
            for node in self.graph_module.graph.nodes
            if getattr(node.target, "namespace", "") == "trnx_nki"
        ]


graphs: list[Handed] = []
