"""Dimensions are non-negative, and a reduction names those that it reduces."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.metadata import insert_call, replace
from trnx.fx_passes.nodes import aten, has_tensor, schema_of
from trnx.fx_passes.passes import Pass

_DIM_NAMES = frozenset({"dim", "dims", "dim0", "dim1"})
# These count the dimensions of the result, which has one more.
_NEW_DIMENSION = frozenset({aten.unsqueeze.default, aten.stack.default})
_WHOLE: dict[Any, Any] = {aten.sum.default: aten.sum.dim_IntList, aten.mean.default: aten.mean.dim}
# An empty or missing list means all dimensions here.
_ALL_IF_EMPTY = frozenset(
    {aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default}
)


def _rank(node: fx.Node) -> int | None:
    """Number of dimensions of the first tensor argument; the most of a list, because `cat` lets an
    empty one-dimensional tensor stand among others."""
    for argument in node.args:
        items: Any = argument if isinstance(argument, list | tuple) else [argument]
        ranks: list[int] = [item.meta["val"].ndim for item in items if has_tensor(item)]
        if ranks:
            return max(ranks)
    return None


def _wrapped(value: Any, rank: int) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value % rank if rank and -rank <= value < rank else value
    if isinstance(value, (list, tuple)):
        return [_wrapped(item, rank) for item in value]
    return value


def _normalise(node: fx.Node) -> None:
    schema, rank = schema_of(node), _rank(node)
    if schema is None or rank is None:
        return
    rank += node.target in _NEW_DIMENSION
    args, kwargs = list(node.args), dict(node.kwargs)
    for place, argument in enumerate(schema.arguments):
        if argument.name not in _DIM_NAMES:
            continue
        if place < len(args):
            args[place] = _wrapped(args[place], rank)
        elif argument.name in kwargs:
            kwargs[argument.name] = _wrapped(kwargs[argument.name], rank)
    if node.target in _ALL_IF_EMPTY and rank and (len(args) < 2 or not args[1]):
        args[1:2] = [list(range(rank))]
    node.args, node.kwargs = tuple(args), kwargs


def _name_dims(node: fx.Node) -> None:
    """`sum(x)` as `sum.dim_IntList(x, [0, 1, ...])`."""
    rank = _rank(node)
    new = insert_call(
        node,
        _WHOLE[node.target],
        (node.args[0], list(range(rank or 0))),
        node.kwargs,
        value=node.meta["val"],
    )
    replace(node, new)


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target in _WHOLE:
            _name_dims(node)
        else:
            _normalise(node)
    return gm


NORMALISE_DIMS = Pass("normalise_dims", _run, ensures=("dims_named",))
