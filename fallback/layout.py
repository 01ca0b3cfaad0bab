"""Strides that the graph's metadata promises for a region's outputs, and how they are produced.

Two things are told apart: the order of the dimensions in memory, which holds for all sizes, and
gaps or dimensions of stride 0, which need concrete numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.nki_kernels.hints import hint_int


@dataclass(frozen=True)
class StrideOrder:
    """Strides of one output: exact where all are known at compile time, else by order alone.

    `order` lists the dimensions from the slowest to the fastest; `expanded` are those of stride 0.
    """

    order: tuple[int, ...]
    expanded: tuple[int, ...]
    exact: tuple[int, ...] | None

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Strides for a concrete shape."""
        if self.exact is not None:
            return self.exact
        strides = [0] * len(shape)
        step = 1
        for dim in reversed(self.order):
            if dim not in self.expanded:
                strides[dim] = step
                step *= max(shape[dim], 1)
        return tuple(strides)


def layout_of(value: torch.Tensor) -> StrideOrder:
    """The layout of a fake tensor (or of any tensor)."""
    raw = value.stride()
    strides = [hint_int(s) for s in raw]
    sizes = [hint_int(s) for s in value.shape]
    expanded = tuple(
        d
        for d, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        if stride == 0 and size > 1
    )
    order = tuple(sorted(range(len(strides)), key=lambda d: -strides[d]))
    exact = tuple(raw) if all(isinstance(s, int) for s in raw) else None
    return StrideOrder(order, expanded, exact)


def output_values(graph_module: fx.GraphModule) -> list[Any]:
    """Metadata of the region's outputs, None where an output is not a node."""
    outputs = graph_module.graph.output_node().args[0]
    assert isinstance(outputs, (tuple, list))
    return [o.meta.get("val") if isinstance(o, fx.Node) else None for o in outputs]


def output_layouts(graph_module: fx.GraphModule) -> list[StrideOrder | None]:
    """The layout of each output; None for what is not a tensor."""
    return [
        layout_of(v) if isinstance(v, torch.Tensor) else None for v in output_values(graph_module)
    ]


def same_layout(value: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether `value` has these strides; strides of dimensions of size 0 and 1 say nothing."""
    actual = value.stride()
    if actual == tuple(strides) or value.numel() == 0:
        return True
    return all(size == 1 or a == b for size, a, b in zip(value.shape, actual, strides, strict=True))


def restride(
    value: torch.Tensor,
    layout: StrideOrder,
    ready: Callable[[torch.Tensor], torch.Tensor] = lambda value: value,
) -> torch.Tensor:
    """`value` itself where its strides are right, else a copy that has them, of what `ready`
    returns."""
    strides = layout.strides(value.shape)
    if same_layout(value, strides):
        return value
    value = ready(value)
    result = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    dense = result
    for dim in layout.expanded:
        dense = dense.narrow(dim, 0, 1)
        value = value.narrow(dim, 0, 1)
    dense.copy_(value)
    return result
