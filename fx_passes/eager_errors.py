"""Errors that eager raises for a number or a dtype whatever the values are: a fill value that the
dtype does not hold, an integer to a negative power, the difference of booleans.

Fake tensors know few of them, and neither kernels nor XLA raise them. So each pointwise op and each
fill is asked once, with tensors of no elements. A graph that holds such an op raises in every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.metadata import real_values
from trnx.fx_passes.nodes import aten, is_mutation, is_number, is_pointwise, is_random

_FILLS = frozenset(
    {
        aten.fill.Scalar,
        aten.full.default,
        aten.full_like.default,
        aten.new_full.default,
        aten.scalar_tensor.default,
    }
)


def find_refused(graph: fx.Graph) -> tuple[fx.Node, str] | None:
    """The first node that eager refuses in every call, and its error; None where there is none."""
    with real_values():
        for node in graph.nodes:
            if _is_asked(node) and (error := _error(node)):
                return node, error
    return None


def _is_asked(node: fx.Node) -> bool:
    if is_mutation(node) or is_random(node) or any(is_number(n) for n in node.all_input_nodes):
        return False
    return node.target in _FILLS or is_pointwise(node)


def _error(node: fx.Node) -> str:
    try:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), _empty)
        node.target(*args, **kwargs)  # type: ignore[operator]
    except NotImplementedError:  # of a dtype: an op of a decomposition, which the user did not call
        return ""
    except RuntimeError as error:
        return str(error)
    return ""


def _empty(node: fx.Node) -> Any:
    """The value of `node` without elements, but for sizes of 1, as they decide on broadcasting."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise NotImplementedError
    shape = [1 if isinstance(size, int) and size == 1 else 0 for size in value.shape]
    return torch.ones(shape, dtype=value.dtype)
