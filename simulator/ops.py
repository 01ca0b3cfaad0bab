"""Operator tokens: `nl.add`, `nl.exp`, ... as `op=` arguments of instructions, callable on tiles.

An `Op` compares by identity and has a `name`, by which it is found in the table of operators.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from trnx.simulator.operators.table import OPERATORS


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


def ops() -> dict[str, Op]:
    """The tokens of all operators, by name; one object for each operator."""
    return {name: _token(name, operator.arity) for name, operator in OPERATORS.items()}


_token = functools.cache(Op)
