"""Run-time numbers: symbolic numbers that say nothing about a shape, so that no program needs them.

A step counter or a scale that a user passes as a Python number becomes a symbol of the graph. Where
an op takes a tensor in its place, the number is passed as a 0-d tensor that is made at each call
(`canonicalise/pass_numbers.py`); the executable does not specialise on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.region import Region
from trnx.fx_passes.symbolic import (
    depends_on_data,
    has_symbolic_layout,
    is_symbolic,
    symbols_of,
)

Number = bool | int | float


def number_tensor(value: Number, dtype: torch.dtype) -> torch.Tensor:
    """`value` as a 0-d tensor of `dtype`, converted as PyTorch converts the number of a pointwise
    op: integers wrap, floats round once and overflow to infinity."""
    wide = torch.float64 if isinstance(value, float) else torch.int64
    return torch.scalar_tensor(value, dtype=wide).to(dtype)


def size_symbols(graph: fx.Graph) -> frozenset[Any]:
    """The symbols that sizes and strides of the graph's tensors are made of.

    Not those that depend on data: no program is made for their values.
    """
    return _union(map(_size_symbols, graph.nodes))


def region_symbols(region: Region) -> frozenset[Any]:
    """The symbols that a kernel of the region may be made for: those of the sizes, strides and
    numbers that it reads or gives."""
    nodes = (*region.inputs, *region.nodes)
    arguments = [(*node.args, *node.kwargs.values()) for node in region.nodes]
    bound = region.match.bindings.values() if region.match is not None else ()
    return _union(map(_size_symbols, nodes)) | symbols_read([*nodes, *arguments, *bound])


def run_time_numbers(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes of `graph` whose value is a number that no size determines."""
    sizes = size_symbols(graph)
    return frozenset(
        node
        for node in graph.nodes
        if is_symbolic(node.meta.get("val")) and not symbols_of(node.meta["val"]) <= sizes
    )


def symbols_read(values: Iterable[Any]) -> frozenset[Any]:
    """The symbols of the numbers among `values`: nodes, symbolic numbers, lists of them."""
    return _union(_symbols_in(value) for value in values)


def _symbols_in(value: Any) -> frozenset[Any]:
    if isinstance(value, (list, tuple)):
        return symbols_read(value)
    found = value.meta.get("val") if isinstance(value, fx.Node) else value
    return symbols_of(found) if is_symbolic(found) else frozenset()


def _size_symbols(node: fx.Node) -> frozenset[Any]:
    return _union(
        symbols_of(number)
        for tensor in _tensors(node.meta.get("val"))
        if has_symbolic_layout(tensor)
        for number in (*tensor.shape, *_strides(tensor))
        if not isinstance(number, int) and not depends_on_data(number)
    )


def _union(sets: Iterable[frozenset[Any]]) -> frozenset[Any]:
    return frozenset[Any]().union(*sets)


def _tensors(value: Any) -> list[torch.Tensor]:
    members = value if isinstance(value, (list, tuple)) else (value,)
    return [member for member in members if isinstance(member, torch.Tensor)]


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()
