"""From symbolic sizes to numbers: what the graph's symbols are in one call.

A graph captured with `dynamic=True` has sizes that are expressions of symbols. The symbols are read
off the inputs of a call; every other size follows. Nothing here asks the shape environment, so
nothing guards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from trnx.backend.torch_internals import expression
from trnx.fx_passes.nodes import placeholders
from trnx.fx_passes.numbers import size_symbols, symbols_read
from trnx.fx_passes.region import Plan
from trnx.fx_passes.symbolic import has_symbolic_layout, is_symbolic
from trnx.simulator.memory.tensor_spec import TensorSpec

Number = int | float
Symbols = Mapping[Any, Number]


class UnknownSizeError(Exception):
    """A size depends on data, so that no number is known before the graph has run.

    The executable catches it, and runs the region in eager; users never see it.
    """


@dataclass(frozen=True)
class SymbolSource:
    """Where a symbol is read: input `index`, and there a size, a stride or the number itself."""

    symbol: Any
    index: int
    kind: Literal["number", "size", "stride"]
    dim: int = 0

    def read(self, inputs: Sequence[Any]) -> Number:
        """The number of this call."""
        value = inputs[self.index]
        if self.kind == "size":
            return int(value.shape[self.dim])
        if self.kind == "stride":
            return int(value.stride(self.dim))
        number: Number = value
        return number


def _sources_of(index: int, value: Any) -> list[SymbolSource]:
    if is_symbolic(value):
        return [SymbolSource(expression(value), index, "number")]
    if not isinstance(value, torch.Tensor):
        return []
    sizes = [SymbolSource(expression(s), index, "size", d) for d, s in enumerate(value.shape)]
    steps = [SymbolSource(expression(s), index, "stride", d) for d, s in enumerate(value.stride())]
    return sizes + steps


def specialised_symbols(plan: Plan) -> frozenset[Any]:
    """The symbols that something in `plan` is made for: sizes, and numbers that kernels bind."""
    graph = plan.graph_module.graph
    bound = [value for r in plan.regions if r.match for value in r.match.bindings.values()]
    written: list[Any] = []
    for node in graph.nodes:
        fx.node.map_aggregate((node.args, node.kwargs), written.append)
    literals = [value for value in written if is_symbolic(value)]
    return size_symbols(graph) | symbols_read([*bound, *literals])


def symbol_sources(gm: fx.GraphModule, needed: Set[Any]) -> tuple[SymbolSource, ...]:
    """One source for each symbol that the inputs of `gm` determine and `needed` holds."""
    found: dict[Any, SymbolSource] = {}
    for index, node in enumerate(placeholders(gm)):
        for source in _sources_of(index, node.meta.get("val")):
            if isinstance(source.symbol, sympy.Symbol) and source.symbol in needed:
                found.setdefault(source.symbol, source)
    return tuple(found.values())


def concrete(value: Any, symbols: Symbols) -> Number:
    """The number that a size, stride or symbolic number is under `symbols`.

    Raises UnknownSizeError where it depends on data.
    """
    form = expression(value)
    if isinstance(form, (int, float)):
        return form
    if form in symbols:
        return symbols[form]
    # Of all symbols, which a cache of keys and values has two a layer, an expression has few.
    known = {s: sympy.sympify(symbols[s]) for s in form.free_symbols if s in symbols}
    result = form.xreplace(known)
    if isinstance(result, sympy.logic.boolalg.BooleanAtom):
        return bool(result)
    if result.is_Integer:
        return int(result)
    if not result.is_number:
        raise UnknownSizeError(str(form))
    return float(result)


def concrete_spec(value: torch.Tensor, symbols: Symbols) -> TensorSpec:
    """The spec of a fake tensor under `symbols`. Raises UnknownSizeError."""
    if not has_symbolic_layout(value):
        return TensorSpec(tuple(value.shape), value.dtype, tuple(value.stride()))
    shape = tuple(int(concrete(size, symbols)) for size in value.shape)
    strides = tuple(int(concrete(step, symbols)) for step in value.stride())
    return TensorSpec(shape, value.dtype, strides)
