"""The padding of a whole plan: which NKI regions run on padded sizes, and what they need for it.

A padded region gives padded results, and views of them stay padded, so that padding is added where
a padded region reads an exact value (an input of the graph, a result of a fallback) and removed
where something exact reads a padded one. Fallback regions and what the graph returns are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.aliasing import storage_root
from trnx.fx_passes.nodes import (
    aten,
    has_tensor,
    is_getitem,
    is_view,
    op_name,
    placeholders,
    val,
)
from trnx.fx_passes.padding.layouts import (
    Axis,
    Fill,
    Layout,
    PaddedSymbols,
    RefusedError,
    Size,
    padded_with_zeros,
    same_sizes,
    with_fill,
)
from trnx.fx_passes.padding.rules import apply_rule
from trnx.fx_passes.padding.ties import find_ties
from trnx.fx_passes.region import Plan, Region
from trnx.fx_passes.symbolic import depends_on_data, symbols_of
from trnx.nki_kernels.hints import hint_int


@dataclass(frozen=True)
class PaddedRegion:
    """What happens to the inputs of a padded region before it runs.

    `filled`: input -> dimensions, each with what is written to its padding where it lies: zeros
    for a sum, what changes no result for other reductions. `renewed` are those
    that are cut to their exact sizes and padded again to a layout, because others may read their
    memory, or because their padding has to be valid as an index, or to lie at other places.
    `placed` are indices whose exact values are checked against an exact size, along a dimension of
    what is looked up, and counted from its front.
    """

    filled: Mapping[fx.Node, tuple[tuple[int, Fill], ...]] = field(default_factory=dict)
    renewed: Mapping[fx.Node, Layout] = field(default_factory=dict)
    placed: Mapping[fx.Node, tuple[Size, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class PaddedPlan:
    """`regions` are the padded ones by name, `exact` says why of all other NKI regions.

    `layouts` has the values that are padded as they come, `symbols` what is padded in them; `kept`
    says why of the symbols that are padded nowhere. All of it holds for calls in which each symbol
    of `ties` is its expression.
    """

    regions: Mapping[str, PaddedRegion]
    exact: Mapping[str, str]
    layouts: Mapping[fx.Node, Layout]
    symbols: frozenset[Any]
    kept: Mapping[Any, str] = field(default_factory=dict)
    ties: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def padded(self) -> PaddedSymbols:
        """What is padded in a size."""
        return PaddedSymbols(self.symbols, self.ties)


# A symbol that more regions than one of so many refuse is not worth its buckets: the others would
# be padded, and the refusing ones made for every size all the same.
LEAST_PADDED = 8

_UNCHANGED = "padding does not change its sizes"


def analyse_padding(plan: Plan) -> PaddedPlan:
    """Decide for every region of the plan.

    A symbol is padded where there are LEAST_PADDED regions that allow it for one that does not: a
    model may sum over its length once, but over the width of its rows everything sums.
    """
    ties = find_ties(plan)
    alone = {
        symbol: _analysed(plan, PaddedSymbols(frozenset({symbol}), ties))
        for symbol in _symbols(plan)
        if symbol not in ties
    }
    kept = {symbol: _why_exact(one) for symbol, one in alone.items() if not _is_worth_it(one)}
    kept |= dict.fromkeys(_no_sizes(plan), "it was no size at capture")
    symbols = frozenset(alone.keys() - kept.keys())
    analysis = _analysed(plan, PaddedSymbols(symbols, ties))
    if shared := _shared_outputs(plan, analysis.layouts):
        names = [*analysis.regions, *analysis.exact]
        return PaddedPlan({}, dict.fromkeys(names, shared), {}, frozenset())
    return PaddedPlan(analysis.regions, analysis.exact, analysis.layouts, symbols, kept, ties)


def _is_worth_it(alone: _Analysis) -> bool:
    return len(alone.regions) >= LEAST_PADDED * len(_refusals(alone))


def _refusals(alone: _Analysis) -> dict[str, str]:
    return {name: why for name, why in alone.exact.items() if why != _UNCHANGED}


def _why_exact(alone: _Analysis) -> str:
    """Of a symbol that is padded nowhere."""
    reasons = [f"{why} in {name}" for name, why in _refusals(alone).items()]
    return reasons[0] if reasons else _UNCHANGED


def _analysed(plan: Plan, padded: PaddedSymbols) -> _Analysis:
    analysis = _Analysis(padded)
    for step in plan.steps:
        if isinstance(step, Region):
            analysis.add_region(step)
        else:
            analysis.add_glue(step)
    return analysis


def _symbols(plan: Plan) -> list[Any]:
    """The symbols in sizes of NKI regions, in a fixed order."""
    regions = [region for region in plan.regions if region.match is not None]
    values = [val(n) for r in regions for n in (*r.inputs, *r.outputs) if has_tensor(n)]
    sizes = [size for value in values for size in value.shape if not depends_on_data(size)]
    return sorted(frozenset[Any]().union(*map(symbols_of, sizes)), key=str)


def _no_sizes(plan: Plan) -> set[Any]:
    """Symbols of arguments that were 0 or less, such as how many logits to keep: no bucket would
    hold them, and all other sizes of a call would be exact."""
    numbers = [node.meta.get("val") for node in placeholders(plan.graph_module)]
    given = [one for one in numbers if isinstance(one, torch.SymInt) and hint_int(one) < 1]
    return {one.node.expr for one in given if one.node.expr.is_Symbol}


def _shared_outputs(plan: Plan, layouts: Mapping[fx.Node, Layout]) -> str:
    """Outputs are cut out of padded values as copies; some must share memory."""
    outputs = plan.graph_module.graph.output_node().all_input_nodes
    roots = [storage_root(node) for node in outputs if node in layouts]
    if len(set(roots)) < len(roots):
        return "two results of the graph share their memory"
    return ""


class _Analysis:
    """Goes through the steps of a plan in their order."""

    def __init__(self, padded: PaddedSymbols) -> None:
        self.padded = padded
        self.layouts: dict[fx.Node, Layout] = {}
        self.regions: dict[str, PaddedRegion] = {}
        self.exact: dict[str, str] = {}

    def add_glue(self, node: fx.Node) -> None:
        """A view of a padded value is padded, where its rule allows; all other glue is exact."""
        base = node.args[0] if node.args else None
        if base not in self.layouts or not (is_view(node) and has_tensor(node)):
            return
        try:
            found = apply_rule(node, _View(self.layouts, self.padded))
        except RefusedError:
            return
        self.layouts[node] = found  # type: ignore[assignment]  # a view has one result

    def add_region(self, region: Region) -> None:
        if region.match is None:
            return
        try:
            inside = _Inside(region, self.layouts, self.padded)
            results = inside.run()
        except RefusedError as refused:
            self.exact[region.name] = str(refused)
            return
        self.regions[region.name] = PaddedRegion(
            {node: tuple(sorted(fills.items())) for node, fills in inside.filled.items()},
            inside.renewed,
            inside.placed,
        )
        self.layouts.update(results)


@dataclass
class _View:
    """Operands of a view outside of regions: nothing can be asked of them."""

    layouts: Mapping[fx.Node, Layout]
    padded: PaddedSymbols

    def layout(self, node: Any) -> Layout:
        return self.layouts[node]

    def need_zeros(self, node: fx.Node, dim: int) -> None:
        raise RefusedError(f"{node.name} has padding along dimension {dim}")

    def need_valid(self, node: fx.Node) -> None:
        raise RefusedError(f"{node.name} is an index with padding")

    def need_places(self, node: fx.Node, size: Size, dim: int) -> None:
        del size, dim
        raise RefusedError(f"{node.name} is an index into a padded dimension")

    def need_fill(self, node: fx.Node, dim: int, fill: Fill) -> None:
        raise RefusedError(f"the padding of {node.name} along dimension {dim} may not be {fill}")

    def need_like(self, node: fx.Node, dim: int, axis: Axis) -> None:
        del axis
        raise RefusedError(f"{node.name} has its padding along dimension {dim} at another place")


class _Inside:
    """The ops of one region, and what they ask of its inputs."""

    def __init__(
        self, region: Region, layouts: Mapping[fx.Node, Layout], padded: PaddedSymbols
    ) -> None:
        self._region = region
        self.padded = padded
        self._native = layouts
        self._found: dict[fx.Node, Layout | tuple[Layout, ...]] = {}
        self.filled: dict[fx.Node, dict[int, Fill]] = {}
        self.renewed: dict[fx.Node, Layout] = {}
        self.placed: dict[fx.Node, tuple[Size, int]] = {}
        assert region.match is not None
        bound = [n for n in region.match.bindings.values() if has_tensor(n)]
        if not set(bound) <= set(region.inputs):
            raise RefusedError("the kernel reads a tensor that its ops do not")

    def run(self) -> dict[fx.Node, Layout]:
        """Layouts of the region's results. Raises RefusedError, also where there is no padding."""
        tensors = [node for node in self._region.inputs if has_tensor(node)]
        if not any(self.padded.enter_tensor(val(node)) for node in tensors):
            raise RefusedError(_UNCHANGED)
        for node in self._region.nodes:
            self._check(node)
            if is_getitem(node):
                results = self._found[node.args[0]]  # type: ignore[index]
                self._found[node] = results[node.args[1]]  # type: ignore[index,assignment]
            else:
                self._found[node] = apply_rule(node, self)
        outputs = {node: self.layout(node) for node in self._region.outputs}
        for node, layout in outputs.items():
            if any(axis.is_padded for axis in layout) and not _is_dense(val(node)):
                raise RefusedError("its result does not fill its memory")
        return outputs

    def _check(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, torch.Tensor) and depends_on_data(one):
                raise RefusedError("its sizes depend on data")

    def layout(self, node: Any) -> Layout:
        """See `Operands`."""
        if node in self._found:
            return self._found[node]  # type: ignore[return-value]
        if node in self.renewed:
            return self.renewed[node]
        found = self._native.get(node)
        if found is None:
            return padded_with_zeros(val(node), self.padded)
        filled = self.filled.get(node, {})
        return tuple(replace(a, fill=filled.get(d, a.fill)) for d, a in enumerate(found))

    def need_zeros(self, node: fx.Node, dim: int) -> None:
        """See `Operands`."""
        axis = self.layout(node)[dim]
        if axis.fill is not None and axis.fill == 0:
            return
        if node not in self._region.inputs:
            raise RefusedError("a sum goes over padding that the region itself has written")
        if self._can_be_filled(node, axis, dim, 0):
            self.filled.setdefault(node, {})[dim] = 0
            return
        self._renew(node, self.layout(node))
        if self.layout(node)[dim].fill != 0:
            raise RefusedError("a sum goes over padding that repeats other elements")

    def need_valid(self, node: fx.Node) -> None:
        """See `Operands`."""
        if node not in self._region.inputs:
            raise RefusedError(
                "an index is made in the region itself, where its padding may be invalid"
            )
        if node in self._native:
            self._renew(node, self.layout(node))

    def need_places(self, node: fx.Node, size: Size, dim: int) -> None:
        """See `Operands`."""
        if node not in self._region.inputs or self._is_read_twice(node):
            raise RefusedError("a padded dimension is taken at places that the region itself makes")
        if self.placed.setdefault(node, (size, dim)) != (size, dim):
            raise RefusedError("one index takes places of two padded dimensions")
        if node in self._native:
            self._renew(node, self.layout(node))

    def need_fill(self, node: fx.Node, dim: int, fill: Fill) -> None:
        """See `Operands`."""
        axis = self.layout(node)[dim]
        if axis.fill is not None and axis.fill == fill:
            return
        if node not in self._region.inputs or self._is_read_twice(node):
            raise RefusedError(f"nothing proves that the padding of {op_name(node)} is {fill}")
        if self._can_be_filled(node, axis, dim, fill):
            self.filled.setdefault(node, {})[dim] = fill
            return
        self._renew(node, self.layout(node), fill)
        if self.layout(node)[dim].fill != fill:
            raise RefusedError(f"padding that repeats other elements cannot be {fill}")

    def _is_read_twice(self, node: fx.Node) -> bool:
        return sum(node in reader.all_input_nodes for reader in self._region.nodes) > 1

    def need_like(self, node: fx.Node, dim: int, axis: Axis) -> None:
        """See `Operands`."""
        given = self.layout(node)
        if same_sizes(given[dim], axis):
            return
        if not _have_one_form(given[dim], axis) or node not in self._region.inputs:
            raise RefusedError("operands have their padding at different places")
        if self._is_read_twice(node):
            raise RefusedError("its padding is asked for at different places")
        fill = given[dim].fill  # as in a mask of -inf
        self._renew(node, (*given[:dim], axis, *given[dim + 1 :]), 0 if fill is None else fill)

    def _renew(self, node: fx.Node, layout: Layout, fill: Fill = 0) -> None:
        """Layouts that were asked for before must stay true."""
        if any(len(axis.sizes) > 1 and axis.is_padded for axis in layout):
            raise RefusedError("its padding lies between other elements and cannot be renewed")
        self.filled.pop(node, None)
        self.renewed[node] = with_fill(val(node), layout, fill)

    def _can_be_filled(self, node: fx.Node, axis: Axis, dim: int, fill: Fill) -> bool:
        """Whether `fill` may be written where the padding lies: it is a region's own memory, of
        whose padding nobody knows anything else, and no two places are one element."""
        root = storage_root(node)
        if node not in self._native or root not in self._native or not axis.is_one_size:
            return False
        known = {axis.fill for axis in self._native[root]} - {None, fill}
        if known or val(node).stride(dim) == 0:
            return False
        steps = [node]
        while steps[-1] is not root:
            steps.append(steps[-1].args[0])  # type: ignore[arg-type]
        return all(step.target is not aten.expand.default for step in steps)


def _have_one_form(a: Axis, b: Axis) -> bool:
    """True where both have one symbolic size, and it is the same but for where its padding lies."""
    forms = [[getattr(size, "form", None) for size in axis.sizes] for axis in (a, b)]
    return len(a.sizes) == 1 and forms[0] == forms[1] != [None]


def _is_dense(value: torch.Tensor) -> bool:
    return all(not isinstance(step, int) or step != 0 for step in value.stride())
