"""Whether the XLA engine takes a node: the table, dtypes, and a trace of the op alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import torch
from torch import fx

from trnx.fallback.aten_to_jax import TABLE
from trnx.fallback.aten_to_jax.dtypes import JAX_DTYPES
from trnx.fallback.aten_to_jax.table import CHECKS
from trnx.fallback.cost import leaves
from trnx.fallback.settings import own_settings
from trnx.fallback.translate import call_entry, conform
from trnx.fx_passes import advice
from trnx.fx_passes.metadata import real_values
from trnx.fx_passes.symbolic import depends_on_data
from trnx.nki_kernels.hints import hint_int
from trnx.nki_kernels.keys import key_of
from trnx.simulator.errors import Reject
from trnx.simulator.lru_cache import LruCache


def refusal(node: fx.Node) -> Reject | None:
    """None where XLA can run the node."""
    if node.op != "call_function":
        return Reject(f"XLA regions hold calls of ops only, not {node.op}", node)
    reason = _illegal_value(node)
    if reason is not None:
        return Reject(reason, node)
    if not isinstance(node.target, torch._ops.OpOverload):
        return _refuse_python(node)
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        reason = f"{node.target} draws random numbers; eager draws PyTorch's"
        return Reject(reason, node, advice=advice.RANDOM)
    entry = TABLE.get(node.target)
    if entry is None:
        return Reject(f"no JAX function for {node.target} in trnx's table", node)
    if entry.guard is not None:
        rejected = entry.guard(node)
        if rejected is not None:
            return rejected
    return _refuse_by_trace(node)


def _refuse_python(node: fx.Node) -> Reject | None:
    """getitem of several results and arithmetic on sizes are taken; other callables not."""
    if node.target is operator.getitem:
        return None
    if isinstance(node.meta.get("val"), (int, torch.SymInt)):
        return None
    return Reject(f"{node.target} is not an ATen op", node)


def _illegal_value(node: fx.Node) -> str | None:
    """Why an operand or result cannot be in an XLA program."""
    for n in (node, *node.all_input_nodes):
        for value in leaves(n.meta.get("val")):
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                return f"{n.name} is a number known only at run time"
            if depends_on_data(value):
                return f"{n.name} depends on data in its size, and XLA compiles each size anew"
            if not isinstance(value, torch.Tensor):
                continue
            if value.dtype not in JAX_DTYPES:
                return f"{n.name} has dtype {value.dtype}, which trnx's table does not hold"
            if value.layout != torch.strided:
                return f"{n.name} has layout {value.layout}; XLA takes dense tensors"
    return None


def _abstract(value: Any) -> Any:
    """A node's value for an abstract trace: shapes and dtypes of arrays, or a number."""
    if isinstance(value, (tuple, list)):
        return [_abstract(member) for member in value]
    if isinstance(value, torch.Tensor):
        shape = tuple(hint_int(s) for s in value.shape)
        return jax.ShapeDtypeStruct(shape, JAX_DTYPES[value.dtype])
    return hint_int(value)


# Equal calls are traced once in a process: a model repeats its layers.
_TRACED: LruCache[str | None] = LruCache(4096)


def _refuse_by_trace(node: fx.Node) -> Reject | None:
    reason = _TRACED.get_or_make(_call_key(node), lambda: _failure(node))
    return None if reason is None else Reject(reason, node)


def _described(value: Any) -> Any:
    """What a trace sees of a node's value."""
    if isinstance(value, (tuple, list)):
        return [_described(member) for member in value]
    if isinstance(value, torch.Tensor):
        sizes = tuple(s if isinstance(s, int) else None for s in value.shape)
        return (tuple(hint_int(s) for s in value.shape), sizes, value.dtype)
    return None if value is None else hint_int(value)


class _Argument(tuple[Any, ...]):
    """A node among the arguments: its place and what a trace sees of it."""

    __slots__ = ()


def _call_key(node: fx.Node) -> Hashable:
    inputs = node.all_input_nodes
    described = {
        n: _Argument((place, key_of(_described(n.meta["val"])))) for place, n in enumerate(inputs)
    }
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), described.__getitem__)
    return (node.target, key_of(args), key_of(kwargs), key_of(_described(node.meta.get("val"))))


_aten = torch.ops.aten
_UNTAGGED = (
    _aten.hardswish.default,
    _aten.log_sigmoid_forward.default,
    _aten._prelu_kernel.default,
)


def _eager_error(node: fx.Node) -> str | None:
    """The error of eager for the dtypes and numbers of a pointwise call, which a region would not
    raise. One element of each tensor shows it; ops that are not pointwise are not tried."""
    if torch.Tag.pointwise not in node.target.tags and node.target not in _UNTAGGED:  # type: ignore[union-attr]
        return None

    def element(n: fx.Node) -> Any:
        value = n.meta["val"]
        if isinstance(value, torch.Tensor):
            return torch.ones((1,) * value.dim(), dtype=value.dtype, device="cpu")
        return hint_int(value)

    try:
        # A fake tensor raises less than a real one.
        with real_values():
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), element)
            node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001 - whatever eager raises, it shall raise itself
        return str(error)
    return None


def _failure(node: fx.Node) -> str | None:
    """Why the call does not trace, None where it does."""
    values = {n: _abstract(n.meta["val"]) for n in node.all_input_nodes}
    numbers = {n: v for n, v in values.items() if isinstance(v, int)}
    arrays = [n for n in values if n not in numbers]

    def function(*members: Any) -> Any:
        known = numbers | dict(zip(arrays, members, strict=True))
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: known[n])
        return conform(call_entry(node.target, args, kwargs), node.meta.get("val"), node.target)

    refused = _eager_error(node)
    if refused is not None:
        return f"eager refuses {node.target} for these arguments: {refused}"
    abstract = [values[n] for n in arrays]
    # JAX keeps what it traces of every jitted function inside, for each shape, for the life of the
    # process; without jit there is nothing to keep. A loop of no turns traces with it alone.
    reason = _trace_error(function, abstract, disable_jit=True)
    if reason is not None:
        reason = _trace_error(function, abstract, disable_jit=False)
    return None if reason is None else f"{node.target} does not trace: {reason}"


def _trace_error(
    function: Callable[..., Any], abstract: Sequence[Any], *, disable_jit: bool
) -> str | None:
    token = CHECKS.set([])
    try:
        with own_settings(), jax.disable_jit(disable_jit):
            jax.eval_shape(function, *abstract)
    except Exception as error:  # noqa: BLE001 - the fallback boundary: whatever fails, eager runs
        return str(error)
    finally:
        CHECKS.reset(token)
    return None
