"""`_foreach_*` ops, which optimizers and gradient clipping call with lists of tensors, as one op a
tensor: what eager computes on the CPU, and what kernels are made of.

`fx_passes/list_calls.py` says what an element is. The rules are derived from the schemas. Those
that draw the numbers of `addcmul` and `addcdiv` from a tensor stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trnx.fx_passes.list_calls import PREFIX, SINGLE
from trnx.fx_passes.symbolic import has_symbolic_layout

aten = torch.ops.aten


def _each(schema: Any, single: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """`single` of every element of the lists among the arguments."""
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    given.update(kwargs)
    lists = [name for name, value in given.items() if isinstance(value, (list, tuple))]
    positional = [a.name for a in schema.arguments if not a.kwarg_only and a.name in given]
    named = [a.name for a in schema.arguments if a.kwarg_only and a.name in given]
    count = len(given[lists[0]])

    def element(name: str, index: int) -> Any:
        return given[name][index] if name in lists else given[name]

    return [
        single(*(element(n, i) for n in positional), **{n: element(n, i) for n in named})
        for i in range(count)
    ]


def _rules() -> dict[Any, Callable[..., Any]]:
    rules: dict[Any, Callable[..., Any]] = {}
    for name, single in SINGLE.items():
        packet = getattr(aten, PREFIX + name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            has_tensor_of_numbers = name in ("addcmul", "addcdiv") and overload == "Tensor"
            if not overload.endswith("out") and not has_tensor_of_numbers:
                rules[op] = partial(_each, op._schema, single)
    return rules


def unless_static(rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` where a size is a symbol, else the op stays as it is."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        return rule(*args, **kwargs) if any(map(has_symbolic_layout, tensors)) else NotImplemented

    return decompose


FOREACH_DECOMPOSITIONS = _rules()
