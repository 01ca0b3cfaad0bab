"""The `trnx::` ops of the canonical graph as ATen, where no kernel takes them.

TorchNeuron lowers ATen and NKI ops, and knows nothing of trnx's composites.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from trnx.backend.shapes import Symbols, concrete_spec
from trnx.backend.torch_internals import implementation, trace_on_meta
from trnx.fx_passes.metadata import copied_meta


def decomposed(
    graph: fx.Graph, node: fx.Node, args: Any, device: torch.device, symbols: Symbols
) -> Any:
    """Write the ATen ops of a composite's implementation into `graph`; what its value is there.

    `args` are the call's arguments in `graph`.
    """
    tensors = _nodes(node.args)
    given = [concrete_spec(a.meta["val"], symbols) for a in tensors]

    def call(*values: torch.Tensor) -> Any:
        known = dict(zip(tensors, values, strict=True))
        return implementation(node.target)(*fx.map_arg(node.args, known.__getitem__))

    traced = trace_on_meta(call, given)
    values = iter(_nodes(args))
    copies: dict[fx.Node, Any] = {}
    for inner in traced.graph.nodes:
        if inner.op == "placeholder":
            copies[inner] = next(values)
        elif inner.op == "output":
            return fx.map_arg(inner.args[0], copies.__getitem__)
        else:
            copies[inner] = graph.node_copy(inner, copies.__getitem__)
            copies[inner].kwargs = fx.node.map_aggregate(
                copies[inner].kwargs, lambda v: device if isinstance(v, torch.device) else v
            )
            copies[inner].meta = copied_meta(node)
    raise AssertionError("a traced graph has an output")


def _nodes(args: Any) -> list[fx.Node]:
    """The nodes in arguments, those of lists included, in order."""
    return [a for a in tree_leaves(args) if isinstance(a, fx.Node)]
