"""The graph of a pattern's function, and what its parameters may stand for.

Every process that compiles traces all patterns of all kernels. `fx.symbolic_trace` takes three
times as long, and replaces `nn.Module.__call__` for the whole process while it runs, which breaks
modules that other threads call; patterns call no modules.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature, unwrap
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.nodes import has_tensor, is_number


@dataclass(frozen=True)
class Parameter:
    """What a parameter of a pattern may stand for."""

    tensor: bool
    optional: bool

    def takes(self, value: Any) -> bool:
        """Whether it may stand for `value`, a node or a constant."""
        if value is None:
            return self.optional
        if self.tensor:
            return has_tensor(value)
        return is_number(value) if isinstance(value, fx.Node) else True


def trace_pattern(function: Callable[..., Any]) -> fx.Graph:
    """The calls that `function` makes, without those that nothing uses."""
    graph = fx.Graph()
    tracer = _Tracer(graph)
    proxies = [tracer.proxy(graph.placeholder(n)) for n in signature(function).parameters]
    graph.output(tracer.create_arg(function(*proxies)))
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    return graph


def parameters_of(function: Callable[..., Any], graph: fx.Graph) -> dict[str, Parameter]:
    """The parameters of the function that `graph` was traced from, by name."""
    written = getattr(function, "__annotations__", {})
    scope = getattr(unwrap(function), "__globals__", {})
    hints = {
        name: eval(_compiled(hint), scope) if isinstance(hint, str) else hint
        for name, hint in written.items()
    }
    names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    return {name: _parameter(hints.get(name, torch.Tensor)) for name in names}


class _Proxy(fx.Proxy):
    """A value of a pattern: calls of operators become nodes without a search of their arguments."""

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Proxy:
        if not isinstance(orig_method, torch._ops.OpOverload):
            return super().__torch_function__(orig_method, types, args, kwargs)
        given, named = fx.node.map_aggregate((args or (), kwargs or {}), _node)
        tracer = _first((args, kwargs)).tracer
        made: fx.Proxy = tracer.proxy(tracer.graph.call_function(orig_method, given, named))
        return made


class _Tracer(fx.proxy.GraphAppendingTracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _node(value: Any) -> Any:
    return value.node if isinstance(value, fx.Proxy) else value


def _first(value: Any) -> Any:
    """The first proxy in an argument, None where there is none."""
    if isinstance(value, fx.Proxy):
        return value
    items: Sequence[Any] = ()
    if isinstance(value, (list, tuple)):
        items = value
    elif isinstance(value, Mapping):
        items = tuple(value.values())
    return next((found for item in items if (found := _first(item)) is not None), None)


@functools.cache
def _compiled(annotation: str) -> types.CodeType:
    return compile(annotation, "<annotation>", "eval")


def _parameter(annotation: Any) -> Parameter:
    options: tuple[Any, ...] = (annotation,)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        options = typing.get_args(annotation)
    return Parameter(torch.Tensor in options, type(None) in options)
