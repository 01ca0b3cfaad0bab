"""GELU written out in Dynamo's graph becomes one op where autograd does not follow it.

`canonicalise/name_gelu.py` does so behind AOTAutograd, which takes a millisecond for each of the
eight ops: a sixth of the ops of GPT-2. In training the ops stay: their gradients are theirs.
"""

from __future__ import annotations

from torch import fx

from trnx.fx_passes.gelu import PYTHON, Gelu, find_gelu, name_gelu
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.rewrite import on_each_graph, plain_tensor


def _name_all(graph: fx.Graph) -> None:
    number = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        found = find_gelu(PYTHON, node)
        if found is not None and _is_free(found, number):
            name_gelu(PYTHON, found)


def _is_free(found: Gelu, number: dict[fx.Node, int]) -> bool:
    """True where autograd does not follow it, and nothing can write to x while it is computed:
    the nodes that compute it follow each other."""
    value = plain_tensor(found.root)
    at = [number[node] for node in found.inside]
    follow = max(at) - min(at) + 1 == len(at)
    return value is not None and not value.requires_grad and follow


NAME_PYTHON_GELU = Pass("name_python_gelu", on_each_graph(_name_all))
