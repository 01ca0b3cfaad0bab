"""Keys and values that are repeated for the query heads of their group are read as they are.

Models without `enable_gqa` write `[B, Hkv, S, D]` out as `[B, Hq, S, D]`; `trnx::sdpa` groups the
query heads itself. In forward alone: the gradients that backward returns are of the repeated heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.nodes import aten, has_tensor, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic, same_numbers
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

_COPIES = frozenset({aten.clone.default, aten.alias.default})
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})


def _without_copies(node: Any) -> Any:
    while isinstance(node, fx.Node) and node.target in _COPIES:
        node = node.args[0]
    return node


def _unrepeated(node: fx.Node) -> fx.Node | None:
    """The heads that `node` repeats: an unsqueezed dim after them, expanded and flattened."""
    if node.target not in _VIEWS or val(node).ndim != 4:
        return None
    expanded = _without_copies(node.args[0])
    if not has_tensor(expanded) or expanded.target is not aten.expand.default:
        return None
    single = _without_copies(expanded.args[0])
    if not has_tensor(single) or single.target is not aten.unsqueeze.default:
        return None
    source, dim = call_arguments(single)
    if val(source).ndim != 4 or dim % 5 != 2:
        return None
    batch, heads, group, *rest = val(expanded).shape
    if is_symbolic(heads) or is_symbolic(group):
        return None
    flat = same_numbers((batch, heads * group, *rest), tuple(val(node).shape))
    return (
        source if flat and same_numbers((batch, heads, *rest), tuple(val(source).shape)) else None
    )


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not torch.ops.trnx.sdpa.default:
            continue
        q, k, v, *rest = call_arguments(node)
        keys, values = _unrepeated(k), _unrepeated(v)
        if keys is not None and values is not None and val(keys).shape[1] == val(values).shape[1]:
            node.args = (q, keys, values, *rest)
    return gm


NAME_GROUPS = Pass("name_groups", _run, requires=("attention_named",), ensures=("groups_named",))
