"""FLOPs of matrix products, counted on a graph's nodes by the formulas of torch's FlopCounterMode.

The `trnx::` ops and `aten.linear` have formulas here; pointwise work counts nothing, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from trnx.fx_passes.nodes import schema_of
from trnx.nki_kernels.grouped_ops import GROUPED_BACKWARD, GROUPED_PRODUCTS
from trnx.nki_kernels.hints import hint, hint_int

Shape = Sequence[int]


def _linear(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(x) * weight[0]


def _named_linear(x: Shape, weight: Shape, _: Any, is_turned: bool, **__: Any) -> int:
    """The weight is [K, N] where it is turned."""
    return 2 * prod(x) * weight[1 if is_turned else 0]


def _grouped(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """Every row is in one group; of a batch of x and one weight, every column of the weight."""
    rows = prod(x[1:]) if len(weight) < len(x) else prod(x)
    return 2 * rows * weight[-1]


def _grouped_backward(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """The gradients of both operands."""
    return 2 * _grouped(x, weight)


def _attention(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """Scores, and their product with v."""
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _attention_backward(_: Shape, q: Shape, k: Shape, v: Shape, *__: Any, **___: Any) -> int:
    """The scores again, then the gradients of q, k, v and of the weights."""
    return 2 * prod(q[:-1]) * k[-2] * (3 * q[-1] + 2 * v[-1])


def _recurrent(gates: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """A product with the weights in every step."""
    return 2 * prod(gates) * weight[1]


def _recurrent_backward(
    grad_out: Shape, _: Any, __: Any, weight: Shape, *___: Any, **____: Any
) -> int:
    """The same with the weights turned."""
    return 2 * prod(grad_out) * weight[0]


@cache
def _formulas() -> dict[Any, Callable[..., int]]:
    return {
        torch.ops.aten.linear: _linear,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        torch.ops.trnx.grouped_mm: _grouped,
        torch.ops.trnx.grouped_mm_weight_gradient: _grouped,
        torch.ops.trnx.linear: _named_linear,
        torch.ops.trnx.recurrent: _recurrent,
        torch.ops.trnx.recurrent_backward: _recurrent_backward,
        torch.ops.trnx.sdpa: _attention,
        torch.ops.trnx.sdpa_backward: _attention_backward,
    }


def _shape_or_value(argument: Any) -> Any:
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    if isinstance(value, (list, tuple)):
        return [_shape_or_value(item) for item in value]
    if isinstance(value, torch.Tensor):
        return torch.Size(map(hint_int, value.shape))
    return hint(value)


def node_flops(node: fx.Node) -> int:
    """FLOPs of one node, by the sizes seen at capture."""
    if node.op != "call_function":
        return 0
    packet = getattr(node.target, "overloadpacket", None)
    formula = _formulas().get(packet) or flop_registry.get(packet)
    schema = schema_of(node)
    if schema is not None and schema.name in GROUPED_PRODUCTS:
        formula = _grouped
    elif schema is not None and schema.name == GROUPED_BACKWARD:
        formula = _grouped_backward
    if formula is None:
        return 0
    shapes = map(_shape_or_value, node.args)
    named = {name: _shape_or_value(value) for name, value in node.kwargs.items()}
    return int(formula(*shapes, **named, out_val=_shape_or_value(node)))


def graph_flops(nodes: Iterable[fx.Node]) -> int:
    """FLOPs of all `nodes`."""
    return sum(node_flops(node) for node in nodes)
