"""The gradients of a convolution are ops of their own, so that each finds its kernel.

convolution_backward(g, x, w, ...)[0]    convolution(g, w, ..., transposed=not transposed)
convolution_backward(g, x, w, ...)[2]    sum(g, all dims but the channels)

What is left computes the gradient of the weight alone. The gradient of `x` has the layout of `x`; a
convolution has that of its input, so `g` is copied where only one of them has its channels last.
Sizes must be numbers: the output padding of the gradient depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same, insert_call, replace
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic

_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
_MASK = 10  # the argument that says which gradients are wanted


def _each(values: Sequence[int], dims: int) -> list[int]:
    return list(values) * dims if len(values) == 1 else list(values)


def _input_gradient(node: fx.Node, item: fx.Node) -> fx.Node | None:
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = call_arguments(node)
    dims = val(weight).ndim - 2
    steps, pads, dilations = (_each(v, dims) for v in (stride, padding, dilation))
    more = [0] * dims
    if not transposed:
        # The outputs that the formula for a transposed convolution does not count.
        for i in range(dims):
            reach = dilations[i] * (val(weight).shape[2 + i] - 1) + 1
            counted = (val(grad).shape[2 + i] - 1) * steps[i] - 2 * pads[i] + reach
            more[i] = val(x).shape[2 + i] - counted
    how = (steps, pads, dilations, not transposed, more, groups)
    found = call_if_same(item, aten.convolution.default, (grad, weight, None, *how))
    if found is not None or dims not in _CHANNELS_LAST:
        return found
    is_plain = val(item).is_contiguous()
    layout = torch.contiguous_format if is_plain else _CHANNELS_LAST[dims]
    copied = insert_call(item, aten.clone.default, (grad,), {"memory_format": layout})
    found = call_if_same(item, aten.convolution.default, (copied, weight, None, *how))
    if found is None:
        item.graph.erase_node(copied)
    return found


def _bias_gradient(node: fx.Node, item: fx.Node) -> fx.Node | None:
    grad = node.args[0]
    assert isinstance(grad, fx.Node)
    dims = [d for d in range(val(grad).ndim) if d != 1]
    return call_if_same(item, aten.sum.dim_IntList, (grad, dims))


def _split(node: fx.Node) -> None:
    tensors = [val(n) for n in node.args[:3] if isinstance(n, fx.Node)]
    if tensors[0].ndim != tensors[2].ndim:
        return  # one image, without a dimension for it
    if any(is_symbolic(size) for tensor in tensors for size in tensor.shape):
        return
    mask = list(call_arguments(node)[_MASK])
    for item in list(node.users):
        wanted: Any = item.args[1]
        rule = {0: _input_gradient, 2: _bias_gradient}.get(wanted)
        new = rule(node, item) if rule is not None else None
        if new is not None:
            mask[wanted] = False
            replace(item, new)
    if node.users and mask != list(call_arguments(node)[_MASK]):
        node.update_arg(_MASK, mask)
        found: tuple[torch.Tensor | None, ...] = node.meta["val"]
        node.meta["val"] = tuple(v if m else None for v, m in zip(found, mask, strict=True))


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is aten.convolution_backward.default:
            _split(node)
    return gm


SPLIT_CONVOLUTION_BACKWARD = Pass(
    "split_convolution_backward", _run, ensures=("gradients_of_convolutions_apart",)
)
