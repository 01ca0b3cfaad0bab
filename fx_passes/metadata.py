"""New nodes with fake values: the only way the passes make a node.

Values are computed by running the operator under the graph's own fake mode, with guards suppressed:
a pass never adds a guard, because AOTAutograd has handed them out already. The layers of a model
are alike, so a run of passes asks an operator once for arguments with the same metadata.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from trnx.fx_passes.aliasing import same_layout
from trnx.fx_passes.symbolic import argument_key, depends_on_data, number_key

VAL = "val"  # key of fake values after AOTAutograd
EXAMPLE_VALUE = "example_value"  # key of fake values in Dynamo's graph
# What a node that replaces another does not inherit.
NOT_INHERITED = frozenset({VAL, EXAMPLE_VALUE, "tensor_meta", "unbacked_bindings"})


def fake_mode(graph: fx.Graph) -> Any:
    """The fake mode of the graph's values, or None where no value is fake."""
    for node in graph.nodes:
        for key in (VAL, EXAMPLE_VALUE):
            mode = getattr(node.meta.get(key), "fake_mode", None)
            if mode is not None:
                return mode
    return None


@contextmanager
def without_guards(mode: Any) -> Iterator[None]:
    """Run under `mode` without recording guards."""
    if mode is None:
        yield
        return
    if mode.shape_env is None:
        with mode:
            yield
        return
    with mode, mode.shape_env.suppress_guards():
        yield


@contextmanager
def real_values() -> Iterator[None]:
    """Compute with real tensors: AOTAutograd calls the compiler under its fake mode."""
    with unset_fake_temporarily(), torch.no_grad():
        yield


def fake_call(graph: fx.Graph, target: Any, args: Any, kwargs: Any, key: str) -> Any:
    """The fake result of `target` on the fake values of `args`."""

    def value_of(node: fx.Node) -> Any:
        return node.meta[key]

    fake_args = fx.node.map_arg(args, value_of)
    fake_kwargs = fx.node.map_arg(kwargs, value_of)
    mode, known = fake_mode(graph), _RESULTS.get()
    # In Dynamo's graph the storage of a value says whose alias it is.
    call = None if known is None or key != VAL else _call_key(target, fake_args, fake_kwargs)
    if known is not None and call is not None and (mode, call) in known:
        return known[mode, call]
    with without_guards(mode), torch.no_grad():
        result = target(*fake_args, **fake_kwargs)
    # A size that depends on data is another one in every call.
    if known is not None and call is not None and not depends_on_data(result):
        known[mode, call] = result
    return result


@contextmanager
def fake_results_known() -> Iterator[None]:
    """Fake results are remembered until the end of this context."""
    token = _RESULTS.set({})
    try:
        yield
    finally:
        _RESULTS.reset(token)


# Fake mode and key of a call -> its result.
_RESULTS: ContextVar[dict[tuple[Any, Hashable], Any] | None] = ContextVar(
    "fake_results", default=None
)


def _call_key(target: Any, args: Any, kwargs: Any) -> Hashable | None:
    """Equal for calls whose fake results are alike; None where that is not known."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    try:
        key = (target, _key(args), _key(tuple(kwargs.items())))
        hash(key)
    except TypeError:
        return None
    return key


def _key(value: Any) -> Hashable:
    """Raises TypeError for a tensor that more than its metadata tells from others."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, torch.Tensor):
        if type(value) is not FakeTensor or value.constant is not None:
            raise TypeError(type(value))
        if value.layout is not torch.strided:
            raise TypeError(value.layout)
        sizes = tuple(map(number_key, (*value.shape, *value.stride(), value.storage_offset())))
        return (value.dtype, value.device, value.is_neg(), value.is_conj(), sizes)
    return argument_key(value)


def insert_call(
    before: fx.Node,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    origin: fx.Node | None = None,
    value: Any = None,
    key: str = VAL,
) -> fx.Node:
    """Insert a call before `before`, with the user's line of `origin` (else of `before`).

    `value` is the fake result where it is known already, as when a call replaces an equal one.
    """
    keywords = dict(kwargs or {})
    graph = before.graph
    with graph.inserting_before(before):
        node = graph.call_function(target, args, keywords)
    node.meta = copied_meta(origin or before)
    if value is None:
        value = fake_call(graph, target, args, keywords, key)
    node.meta[key] = value
    return node


def copied_meta(origin: fx.Node) -> dict[str, Any]:
    """What a node inherits from the one that it replaces: everything but values."""
    return {k: v for k, v in origin.meta.items() if k not in NOT_INHERITED}


def replace(old: fx.Node, new: fx.Node) -> None:
    """Let all users of `old` use `new`, and erase `old`."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def erase_unused(node: fx.Node) -> None:
    """Erase `node`, which nothing uses, and what only it used."""
    sources = node.all_input_nodes
    node.graph.erase_node(node)
    for source in sources:
        if source.op == "call_function" and not source.users:
            erase_unused(source)


def call_if_same(
    node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any = None, *, key: str = VAL
) -> fx.Node | None:
    """A call in the place of `node`, where it gives a tensor of the same layout and dtype."""
    value = fake_value(node, target, args, kwargs or {}, key)
    known = node.meta.get(key)
    if value is None or not isinstance(known, torch.Tensor) or not same_layout(value, known):
        return None
    return insert_call(node, target, args, kwargs, value=known, key=key)


def fake_value(
    node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any, key: str = VAL
) -> torch.Tensor | None:
    """The fake result of a call, or None where the operator refuses the arguments."""
    try:
        value = fake_call(node.graph, target, args, kwargs, key)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    return value if isinstance(value, torch.Tensor) else None
