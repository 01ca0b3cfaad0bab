"""The engine of last resort: PyTorch's own implementation of each op, on the tensors' device.

It takes every op that has an implementation, mutating and random ones included. A region runs as
the generated `forward` of its graph module, which frees each intermediate after its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from trnx.fallback.cost import eager_seconds
from trnx.fallback.layout import output_layouts, output_values, restride
from trnx.fx_passes.region import Engine, Refuse, RegionFunction
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import TRN2, Hardware

# Where the dispatcher finds an implementation that computes values; Meta and Autograd do not.
_KEYS_OF_VALUES: Sequence[Any] = (
    "CPU",
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "BackendSelect",
)


def has_implementation(op: torch._ops.OpOverload[..., Any]) -> bool:
    """Whether `op` can compute values, and not only shapes."""
    return any(op.has_kernel_for_dispatch_key(key) for key in _KEYS_OF_VALUES)


def _forward(graph_module: fx.GraphModule) -> Callable[..., Any]:
    """The generated code. `as_strided_scatter` refuses what requires a gradient and is not
    contiguous, though none is recorded here: it gets the same memory without the mark."""
    forward: Callable[..., Any] = graph_module.forward
    nodes = graph_module.graph.nodes
    if all(node.target is not torch.ops.aten.as_strided_scatter.default for node in nodes):
        return forward

    def unmarked(*inputs: Any) -> Any:
        return forward(*(x.detach() if isinstance(x, torch.Tensor) else x for x in inputs))

    return unmarked


class EagerEngine:
    """Runs regions op by op in PyTorch."""

    name: Engine = "eager"

    def __init__(self, hardware: Hardware = TRN2) -> None:
        self._hardware = hardware

    def supports(self, node: fx.Node) -> Reject | None:
        """None for every op with an implementation."""
        op = node.target
        if isinstance(op, torch._ops.OpOverload) and not has_implementation(op):
            return Reject(
                f"{op} has a fake kernel but no implementation for the CPU; register one "
                f"with torch.library.register_kernel({op._schema.name!r}, 'cpu', function)",
                node,
            )
        return None

    def cost(self, nodes: Sequence[fx.Node]) -> float:
        """Predicted seconds on the target: one launch an op."""
        return eager_seconds(nodes, self._hardware)

    def compile(self, graph_module: fx.GraphModule, refuse: Refuse | None = None) -> RegionFunction:
        """The module's generated code; outputs with other strides than promised are copied, and so
        are those of another dtype: the saved mean of a batch norm in half precision is promised as
        float32."""
        del refuse  # eager takes everything
        forward = _forward(graph_module)
        promised = [
            (value.dtype, layout) if isinstance(value, torch.Tensor) and layout else None
            for value, layout in zip(
                output_values(graph_module), output_layouts(graph_module), strict=True
            )
        ]

        def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            outputs = forward(*inputs)
            return [
                value if one is None else restride(value.to(one[0]), one[1])
                for value, one in zip(outputs, promised, strict=True)
            ]

        return run
