"""Linear layers in Dynamo's graph become one op where autograd does not follow them.

    linear(x, w, b)                                          trnx::linear(x, w, b)
    view(addmm(b, view(x, [-1, K]), w), [*x's sizes, N])     trnx::linear(x, w, b, is_turned=True)

The second is how GPT-2 writes it. AOTAutograd makes three or four ops of each, views and a
transposed weight, and takes two milliseconds for an op: together more than half of the ops of an
encoder. `canonicalise/name_products.py` has the product again, as it finds it among those ops.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from trnx.fx_passes.metadata import EXAMPLE_VALUE, call_if_same
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.rewrite import COMPUTED, on_each_graph, plain_tensor
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

_LINEAR = torch.ops.trnx.linear.default
_VIEWS = ("view", "reshape")


def _arguments(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
    return input, weight, bias


def _is_plain(root: fx.Node, x: Any, weight: Any, bias: Any) -> bool:
    """True for floating tensors of one dtype, without gradients: autocast makes another one."""
    given = (root, x, weight) if bias is None else (root, x, weight, bias)
    values = [value for node in given if (value := plain_tensor(node)) is not None]
    if len(values) < len(given):
        return False
    result, of_x, of_weight, *of_bias = values
    dtypes = {value.dtype for value in values}
    ranks_fit = of_x.ndim >= 2 and of_weight.ndim == 2 and all(one.ndim == 1 for one in of_bias)
    return ranks_fit and not result.requires_grad and len(dtypes) == 1 and dtypes <= COMPUTED


def _name_linear(node: fx.Node) -> None:
    x, weight, bias = _arguments(*node.args, **node.kwargs)
    if _is_plain(node, x, weight, bias):
        _put(node, (x, weight, bias, False))


def _name_addmm(node: fx.Node) -> None:
    if len(node.args) != 3 or node.kwargs or len(node.users) != 1:
        return
    bias, flat, weight = node.args
    root = next(iter(node.users))
    if not (isinstance(flat, fx.Node) and _is_view(flat) and _is_view(root)):
        return
    # They follow each other: nothing writes to x in between.
    if flat.next is not node or node.next is not root or len(flat.users) != 1:
        return
    x = flat.args[0]
    if _is_plain(root, x, weight, bias) and _put(root, (x, weight, bias, True)):
        node.graph.erase_node(node)
        node.graph.erase_node(flat)


def _is_view(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target in _VIEWS


def _put(root: fx.Node, args: tuple[Any, ...]) -> bool:
    """The op in the place of `root`, where its result lies like that of `root`."""
    new = call_if_same(root, _LINEAR, args, key=EXAMPLE_VALUE)
    if new is None:
        return False
    root.replace_all_uses_with(new)
    root.graph.erase_node(root)
    return True


def _name_all(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is F.linear:
            _name_linear(node)
        elif node.target is torch.addmm:
            _name_addmm(node)


NAME_PYTHON_LINEAR = Pass("name_python_linear", on_each_graph(_name_all))
