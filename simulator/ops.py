"""Operator tokens: `nl.add`, `nl.exp`, ... as `op=` arguments of instructions, callable on tiles.

An `Op` compares by identity and has a `name`; instructions look the name up in their own tables.
"""

from __future__ import annotations

import inspect
from typing import Any


def _signature(operands: tuple[str, ...]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in operands]
    return inspect.Signature([*parameters, inspect.Parameter("dtype", kind, default=None)])


_SIGNATURES = {1: _signature(("x",)), 2: _signature(("x", "y"))}


class Op:
    """One operator of nki.language; calling it computes on tiles at once (see `tiles`)."""

    __slots__ = ("__name__", "__signature__", "arity", "name")

    def __init__(self, name: str, arity: int) -> None:
        self.name = name
        self.arity = arity
        self.__name__ = name
        self.__signature__ = _SIGNATURES[arity]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from trnx.simulator.tiles import apply

        given = self.__signature__.bind(*args, **kwargs).arguments
        dtype = given.pop("dtype", None)
        return apply(self, *given.values(), dtype=dtype)

    def __repr__(self) -> str:
        return f"nl.{self.name}"


_UNARY = [
    "abs",
    "square",
    "invert",
    "logical_not",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "relu",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "gelu_apprx_sigmoid_dx",
    "silu",
    "silu_dx",
    "softplus",
    "mish",
    "erf",
    "erf_dx",
    "reciprocal",
    "copy",
    "sin",
    "cos",
    "tan",
    "arctan",
    "ceil",
    "floor",
    "trunc",
    "negative",
    "sign",
    "prelu",
    "average",
]
_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "abs_max",
    "abs_min",
    "power",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
    "logical_and",
    "logical_or",
    "logical_xor",
    "fmod",
    "mod",
    "bypass",
]

# Every operator by name.
OPS: dict[str, Op] = {name: Op(name, 1) for name in _UNARY} | {
    name: Op(name, 2) for name in _BINARY
}
