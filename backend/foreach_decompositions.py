"""`_foreach_*` ops, which optimizers and gradient clipping call with lists of tensors, as one op a
tensor: what eager computes on the CPU, and what kernels are made of.

A list gives each tensor its own element; whatever is no list is the same for all. The rules are
derived from the schemas. Those that draw the numbers of `addcmul` and `addcdiv` from a tensor stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten

_PREFIX = "_foreach_"
# Ops whose call for one tensor is not the op of that name with the same arguments.
_SINGLE: Mapping[str, Callable[..., Any]] = {
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "maximum": lambda x, y: _bound(torch.maximum, torch.clamp_min, x, y),
    "minimum": lambda x, y: _bound(torch.minimum, torch.clamp_max, x, y),
    "clamp_min": lambda x, y: torch.clamp(x, min=y),
    "clamp_max": lambda x, y: torch.clamp(x, max=y),
    "copy": lambda x, source, non_blocking=False: aten.copy(x, source, non_blocking),
    "zero": torch.zeros_like,
}
_SAME = (
    "abs", "acos", "add", "asin", "atan", "ceil", "cos", "cosh", "div", "erf", "erfc", "exp",
    "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "mul", "neg",
    "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub",
    "tan", "tanh", "trunc",
)  # fmt: skip


def _bound(tensor: Any, number: Any, x: torch.Tensor, y: Any) -> Any:
    return tensor(x, y) if isinstance(y, torch.Tensor) else number(x, y)


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
    singles = {**{name: getattr(torch, name) for name in _SAME}, **_SINGLE}
    rules: dict[Any, Callable[..., Any]] = {}
    for name, single in singles.items():
        packet = getattr(aten, _PREFIX + name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            has_tensor_of_numbers = name in ("addcmul", "addcdiv") and overload == "Tensor"
            if not overload.endswith("out") and not has_tensor_of_numbers:
                rules[op] = partial(_each, op._schema, single)
    return rules


FOREACH_DECOMPOSITIONS = _rules()
