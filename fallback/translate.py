"""From a region's graph module to a JAX function: an interpreter over the ATen-to-JAX table.

The function takes the region's tensors as arrays, then its tensor attributes (so that they are
never baked in); integers (symbolic sizes) are constants of the trace. It returns the outputs,
laid out as `Trace` says, and one boolean: whether all checks hold that eager would raise for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import torch
from torch import fx

from trnx.fallback.aten_to_jax import TABLE
from trnx.fallback.aten_to_jax.dtypes import JAX_DTYPES, cast
from trnx.fallback.aten_to_jax.table import CHECKS
from trnx.fallback.errors import TranslationError
from trnx.fallback.layout import StrideOrder

# Arguments that say where and how a result is stored; in a region this is decided by the region.
_STORAGE = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})


def _plain(value: Any) -> Any:
    """An argument as entries take it: NumPy dtypes, lists of Python's own."""
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    return JAX_DTYPES[value] if isinstance(value, torch.dtype) else value


def call_entry(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply the table's function for `target`."""
    named = {k: _plain(v) for k, v in kwargs.items() if k not in _STORAGE}
    return TABLE[target].function(*map(_plain, args), **named)


def conform(value: Any, expected: Any, target: Any) -> Any:
    """`value` in the dtype of the metadata; raises TranslationError where shapes differ."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(expected):
            raise TranslationError(f"{target}: the table's entry returns a wrong number of results")
        return [conform(v, e, target) for v, e in zip(value, expected, strict=True)]
    if not isinstance(expected, torch.Tensor):
        return value
    if value is None:
        raise TranslationError(f"{target}: the table's entry lacks a result that the graph has")
    value = cast(value, JAX_DTYPES[expected.dtype])
    sizes = tuple(expected.shape)
    fits = len(sizes) == value.ndim and all(
        not isinstance(e, int) or e == v for e, v in zip(sizes, value.shape, strict=True)
    )
    if not fits:
        raise TranslationError(
            f"{target}: the table's entry returns shape {value.shape}, the graph expects {sizes}"
        )
    return value


class Interpreter(fx.Interpreter):
    """Runs a graph of ATen ops on JAX values."""

    def __init__(self, graph_module: fx.GraphModule, attributes: Mapping[str, Any]) -> None:
        super().__init__(graph_module)
        self._attributes = attributes

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr":
            return self._attributes[str(n.target)]
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.target not in TABLE:  # getitem, arithmetic on symbolic sizes
            assert callable(n.target)
            return n.target(*args, **kwargs)
        return conform(call_entry(n.target, args, kwargs), n.meta.get("val"), n.target)


@dataclass
class Trace:
    """What tracing learns: whether there are checks, and the shape of each output."""

    is_checked: bool = False
    shapes: list[tuple[int, ...]] = field(default_factory=list)


def lay_out(value: Any, layout: StrideOrder) -> Any:
    """The output as XLA should write it: slowest dimension first, expanded dimensions of size 1."""
    for dim in layout.expanded:
        value = value[(slice(None),) * dim + (slice(0, 1),)]
    return jnp.transpose(value, layout.order)


def jax_function(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    orders: Sequence[tuple[int, ...] | None],
    layouts: Sequence[StrideOrder | None],
    attributes: Sequence[str],
    trace: Trace,
) -> Any:
    """The function to jit. `inputs` gives the integers; where it has a tensor an array is taken."""

    def function(*arrays: Any) -> tuple[Any, ...]:
        token = CHECKS.set([])
        try:
            feed = iter(arrays)
            values = [
                _restore(next(feed), order) if isinstance(x, torch.Tensor) else x
                for x, order in zip(inputs, orders, strict=True)
            ]
            named = dict(zip(attributes, feed, strict=True))
            outputs = Interpreter(graph_module, named).run(*values)
            found = CHECKS.get()
        finally:
            CHECKS.reset(token)
        trace.is_checked = bool(found)
        trace.shapes = [tuple(getattr(o, "shape", ())) for o in outputs]
        results = [
            o if layout is None else lay_out(o, layout)
            for o, layout in zip(outputs, layouts, strict=True)
        ]
        if found:
            results.append(jnp.all(jnp.stack(found)))
        return tuple(results)

    return function


def _restore(array: Any, order: tuple[int, ...] | None) -> Any:
    """Undo the permutation in which the exchange hands a tensor over."""
    if order is None:
        return array
    inverse = [0] * len(order)
    for position, dim in enumerate(order):
        inverse[dim] = position
    return jnp.transpose(array, inverse)
