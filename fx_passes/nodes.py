"""What kind of node this is. Every other file of the room asks here, by schema and never by name
parts.

* glue: views, getitems of glue, constant factories, symbolic numbers, assertions, writes to graph
  inputs. No region computes them: the executable evaluates them between regions.
* collectives between ranks, and waits for what they give: no engine computes them either. All ranks
  have to make them in the same order, so none is merged, dropped or computed ahead.
* compute: every other call. Only compute nodes are counted, and only they are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.numbers import number_tensor
from trnx.fx_passes.symbolic import is_symbolic

aten = torch.ops.aten

_FACTORIES = frozenset(
    {
        number_tensor,
        aten.full.default,
        aten.zeros.default,
        aten.ones.default,
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.scalar_tensor.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.eye.default,
        aten.eye.m,
        aten.tril_indices.default,
        aten.triu_indices.default,
    }
)
# What these return is not filled: no value to share or to compute ahead.
UNFILLED = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.empty_like.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)
_ASSERTIONS = frozenset(
    {
        aten._assert_async.msg,
        aten._assert_scalar.default,
        aten._assert_tensor_metadata.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
)
_COLLECTIVES = frozenset({"_c10d_functional", "_dtensor"})  # libraries whose ops are collectives


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The positional arguments, without the narrow type that fx gives them."""
    return tuple(node.args)


def is_call(node: fx.Node) -> bool:
    """True for a call, not for a placeholder, attribute or output."""
    return node.op in ("call_function", "call_method", "call_module")


def schema_of(node: fx.Node) -> Any:
    """The operator's schema, or None for calls of plain Python."""
    return getattr(node.target, "_schema", None) if node.op == "call_function" else None


def is_view(node: fx.Node) -> bool:
    """True where the result aliases an argument without a write."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return bool(node.target.is_view)  # read off the schema when the operator was made


def is_getitem(node: fx.Node) -> bool:
    """True where one result of a multi-output node is taken."""
    return node.op == "call_function" and node.target is operator.getitem


def is_mutation(node: fx.Node) -> bool:
    """True where the call writes to an argument."""
    schema = schema_of(node)
    return schema is not None and bool(schema.is_mutable)


def is_random(node: fx.Node) -> bool:
    """True where two equal calls give different values."""
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags


def is_factory(node: fx.Node) -> bool:
    """True for a constant that is made of numbers alone."""
    return node.op == "call_function" and node.target in _FACTORIES


def is_pointwise(node: fx.Node) -> bool:
    """True for an op that computes each element from the elements at its place."""
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.pointwise in tags


def is_number(node: fx.Node) -> bool:
    """True where the value is a number (symbolic or not) rather than a tensor."""
    value = node.meta.get("val")
    return is_symbolic(value) or isinstance(value, (int, float, bool))


def is_assertion(node: fx.Node) -> bool:
    """True for a check without a result."""
    return node.op == "call_function" and node.target in _ASSERTIONS


def _is_between_ranks(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "namespace", "") in _COLLECTIVES


def is_wait(node: fx.Node) -> bool:
    """True where the result of a collective is waited for; it is the argument's storage."""
    return _is_between_ranks(node) and node.target is torch.ops._c10d_functional.wait_tensor.default


def is_collective(node: fx.Node) -> bool:
    """True where a collective between ranks begins."""
    return _is_between_ranks(node) and not is_wait(node)


def is_glue(node: fx.Node) -> bool:
    """True for calls that belong to no region; see the module's docstring."""
    if not is_call(node) or _is_between_ranks(node):
        return False
    if is_getitem(node):
        source = node.args[0]
        return not isinstance(source, fx.Node) or not is_call(source) or is_glue(source)
    return (
        is_view(node)
        or is_factory(node)
        or is_number(node)
        or is_assertion(node)
        or is_input_write(node)
    )


def is_compute(node: fx.Node) -> bool:
    """True for calls that an engine has to run (their getitems are not counted)."""
    if is_getitem(node) or _is_between_ranks(node):
        return False
    return is_call(node) and not is_glue(node)


def is_input_write(node: fx.Node) -> bool:
    """True for `copy_` to a graph input: the epilogue in which AOTAutograd updates what was
    mutated.
    """
    if node.op != "call_function" or node.target is not aten.copy_.default:
        return False
    destination = node.args[0]
    return isinstance(destination, fx.Node) and destination.op == "placeholder"


def has_effect(node: fx.Node) -> bool:
    """True where the node must stay although nobody uses its value."""
    if node.op in ("placeholder", "output") or _is_between_ranks(node):
        return True
    return is_mutation(node) or is_assertion(node)


def op_name(node: fx.Node) -> str:
    """`aten.linear.default` for operators, the function's name otherwise."""
    target = node.target
    return str(target) if not callable(target) or schema_of(node) else target.__name__


def getitems(node: fx.Node) -> tuple[fx.Node, ...]:
    """The users of `node` that take one of its results."""
    return tuple(user for user in node.users if is_getitem(user))


def tensors(values: Iterable[Any]) -> tuple[torch.Tensor, ...]:
    """The tensors among `values`, one level of lists opened."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return tuple(found)


def val(node: fx.Node) -> torch.Tensor:
    """The fake value of a tensor node."""
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor), node
    return value


def has_tensor(node: Any) -> bool:
    """True for a node whose value is one tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    """The graph's inputs, in order."""
    return [node for node in gm.graph.nodes if node.op == "placeholder"]
