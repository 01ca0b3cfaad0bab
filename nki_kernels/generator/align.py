"""Alignment: which dimensions of a region's tensors are one dimension of its iteration space.

Broadcasting aligns shapes at the right, a reduction without `keepdim` shifts them. Every dimension
of every node gets a label, and labels that must run together are united. A region input is
labelled anew for each use, because one vector may be a row here and a column there; uses by nodes
of its own rank are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.nki_kernels.generator.ir import Dims
from trnx.nki_kernels.generator.table import Reduction, entry_of

Use = tuple[fx.Node, fx.Node]  # (input, user)


@dataclass(frozen=True)
class Alignment:
    """Labels of the dimensions of every computed node and of every use of an input."""

    nodes: Mapping[fx.Node, Dims]
    uses: Mapping[Use, Dims]
    reductions: Mapping[fx.Node, Reduction]
    reduced: Mapping[fx.Node, Dims]  # labels that the node reduces


class _Labels:
    """Union-find over integers."""

    def __init__(self) -> None:
        self._parent: list[int] = []

    def fresh(self, count: int) -> Dims:
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return tuple(range(start, start + count))

    def find(self, label: int) -> int:
        while self._parent[label] != label:
            label = self._parent[label]
        return label

    def unite(self, a: Dims, b: Dims) -> None:
        """Unite from the right; the longer one's leading labels stay as they are."""
        for x, y in zip(reversed(a), reversed(b), strict=False):
            self._parent[self.find(x)] = self.find(y)

    def resolve(self, dims: Dims) -> Dims:
        return tuple(self.find(d) for d in dims)


def align(
    nodes: list[fx.Node], rank_of: Callable[[fx.Node], int], alike: list[fx.Node]
) -> Alignment:
    """The alignment of `nodes`, which are all in the table; those of `alike` get equal labels."""
    labels = _Labels()
    computed: dict[fx.Node, Dims] = {}
    uses: dict[Use, Dims] = {}
    reductions: dict[fx.Node, Reduction] = {}
    reduced: dict[fx.Node, Dims] = {}
    straight: dict[fx.Node, Dims] = {}
    for node in nodes:
        computed[node] = labels.fresh(rank_of(node))
        reduction = _reduction_of(node, rank_of)
        for argument in _tensors(node):
            if argument in computed:
                dims = computed[argument]
            else:
                dims = uses.setdefault((argument, node), labels.fresh(rank_of(argument)))
                if len(dims) == _rank_of_work(node, rank_of):
                    labels.unite(dims, straight.setdefault(argument, dims))
            if reduction is None or reduction.inner or argument is not node.args[0]:
                labels.unite(dims, computed[node])
                continue
            kept = dims
            if not reduction.keepdim:
                kept = tuple(d for i, d in enumerate(dims) if i not in reduction.dims)
            labels.unite(kept, computed[node])
        if reduction is not None:
            reductions[node] = reduction
            first: Any = node.args[0]
            source = computed[first] if first in computed else uses[first, node]
            reduced[node] = tuple(source[i] for i in reduction.dims)
    for node in alike[1:]:
        labels.unite(computed[node], computed[alike[0]])
    return Alignment(
        {n: labels.resolve(d) for n, d in computed.items()},
        {u: labels.resolve(d) for u, d in uses.items()},
        reductions,
        {n: labels.resolve(d) for n, d in reduced.items()},
    )


def _rank_of_work(node: fx.Node, rank_of: Callable[[fx.Node], int]) -> int:
    """The rank of what the node computes on: its result, or the argument that it reduces."""
    return max(rank_of(n) for n in (node, *_tensors(node)))


def _reduction_of(node: fx.Node, rank_of: Callable[[fx.Node], int]) -> Reduction | None:
    entry = entry_of(node.target)
    if entry is None or entry.reduction is None:
        return None
    first: Any = node.args[0]
    return entry.reduction(node, rank_of(first))


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
