"""Run-time numbers become 0-d tensors, so that one program serves all their values.

Numbers that sizes determine stay: a program is made for its sizes anyway. A number that no tensor
may stand for (the slope of `leaky_relu`) stays too, and what runs it is made for its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.canonicalise._overloads import ARITHMETIC, COMPARISONS
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same, fake_mode, insert_call, replace, without_guards
from trnx.fx_passes.nodes import aten, has_tensor, schema_of, val
from trnx.fx_passes.numbers import number_tensor, run_time_numbers
from trnx.fx_passes.passes import Pass
from trnx.nki_kernels.hints import hint

_NARROW = (torch.bfloat16, torch.float16)
# Eager reads the number of these in float32 where the tensor is narrower.
_WIDE = frozenset(
    {aten.mul.Tensor, aten.div.Tensor, aten.div.Tensor_mode, aten.floor_divide.default}
)
_POWERS = frozenset({aten.pow.Tensor_Scalar, aten.pow.Scalar})
# Eager refuses numbers that do not fit the dtype of these; of all others it keeps the low bits.
_CHECKED: dict[Any, Any] = {
    aten.where.ScalarOther: aten.where.self,
    aten.where.ScalarSelf: aten.where.self,
    aten.where.Scalar: aten.where.self,
    aten.clamp.default: aten.clamp.Tensor,
    aten.clamp_min.default: aten.clamp_min.Tensor,
    aten.clamp_max.default: aten.clamp_max.Tensor,
    aten.fill.Scalar: aten.fill.Tensor,
    aten.full_like.default: aten.fill.Tensor,
}
_TARGETS: dict[Any, Any] = {
    **{target: target for target in (*COMPARISONS.values(), *ARITHMETIC.values())},
    **COMPARISONS,
    **ARITHMETIC,
    **dict.fromkeys(_POWERS, aten.pow.Tensor_Tensor),
    **_CHECKED,
}


def _is_number(value: Any) -> bool:
    if isinstance(value, fx.Node):
        return not has_tensor(value)
    return value is not None


def _dtype(node: fx.Node, operands: Sequence[Any]) -> torch.dtype:
    """The dtype in which eager reads the number."""
    dtype = val(node).dtype
    if _TARGETS[node.target] in COMPARISONS.values():
        dtype = torch.result_type(*(hint(x.meta["val"]) for x in operands))
    return torch.float32 if dtype in _NARROW and _TARGETS[node.target] in _WIDE else dtype


class _Numbers:
    """The tensors made so far; `rewritten` is the rule."""

    def __init__(self, graph: fx.Graph) -> None:
        self._run_time = run_time_numbers(graph)
        self._made: dict[Any, fx.Node] = {}

    def rewritten(self, node: fx.Node) -> fx.Node | None:
        """The call with tensors for its numbers, None where it has to stay."""
        if node.target not in _TARGETS or self._run_time.isdisjoint(node.all_input_nodes):
            return None
        operands = call_arguments(node)[: sum(not a.kwarg_only for a in schema_of(node).arguments)]
        dtype = _dtype(node, operands)
        if dtype is torch.bool or (node.target in _POWERS and not dtype.is_floating_point):
            return None  # no arithmetic; eager refuses negative exponents of integers
        args = [self._tensor(x, dtype, node) if _is_number(x) else x for x in operands]
        target = _TARGETS[node.target]
        taken = {a.name for a in target._schema.arguments if a.kwarg_only}
        kwargs = {name: value for name, value in node.kwargs.items() if name in taken}
        return call_if_same(node, target, tuple(args), kwargs)

    def _tensor(self, number: Any, dtype: torch.dtype, user: fx.Node) -> fx.Node:
        target: Any = aten.scalar_tensor.default if user.target in _CHECKED else number_tensor
        # A literal is keyed by its text: 0.0 and -0.0, or 1 and 1.0, are not one number.
        key = (number if isinstance(number, fx.Node) else repr(number), dtype, target)
        if key not in self._made:
            with without_guards(fake_mode(user.graph)):
                value = torch.empty((), dtype=dtype)
            made = insert_call(user, target, (number,), {"dtype": dtype}, value=value)
            self._made[key] = made
        return self._made[key]


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    numbers = _Numbers(gm.graph)
    for node in list(gm.graph.nodes):
        new = numbers.rewritten(node) if node.op == "call_function" else None
        if new is not None:
            replace(node, new)
    return gm


PASS_NUMBERS = Pass(
    "pass_numbers",
    _run,
    requires=("one_overload",),
    ensures=("run_time_numbers_are_tensors",),
)
