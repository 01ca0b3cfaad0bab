"""A canonical graph as text, for keys: what planning can see of it, in two parts.

`structure` are the calls, their arguments and names; `shapes` what is known of each value: dtype,
sizes, strides, layout, device, and for symbolic sizes their hints, ranges and guards. Stack traces
and module paths are in neither: a plan does not depend on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from trnx.backend.cache.identity import is_told
from trnx.backend.torch_internals import symbol_facts, without_fake_mode
from trnx.fx_passes.metadata import VAL
from trnx.nki_kernels.hints import hint
from trnx.nki_kernels.keys import key_of

# A constant tensor with more bytes than this is not read for a key.
_LARGEST = 16 << 20


def structure_of(gm: fx.GraphModule) -> str | None:
    """The calls, None where an argument has no text of its own or a constant is too large."""
    lines = []
    for node in gm.graph.nodes:
        arguments = fx.map_arg((node.args, node.kwargs), _named)
        lines.append(f"{node.name} = {node.op} {node.target} {key_of(arguments)!r}")
        if node.op == "get_attr":
            constant = _constant(gm, str(node.target))
            if constant is None:
                return None
            lines.append(constant)
        elif node.op == "call_function" and not hasattr(node.target, "_schema"):
            # A function, or an operator of higher order, which is an object of a class of its own.
            kind = node.target if hasattr(node.target, "__qualname__") else type(node.target)
            lines.append(f"{kind.__module__} {kind.__qualname__}")
    text = "\n".join(lines)
    return text if is_told(text) else None


def shapes_of(gm: fx.GraphModule) -> str | None:
    """What is known of the values."""
    values = [node.meta.get(VAL) for node in gm.graph.nodes]
    lines = [_described(value) for value in values]
    numbers = [number for value in values for number in _numbers(value)]
    text = "\n".join([*lines, *symbol_facts(numbers)])
    return text if is_told(text) else None


def has_symbols(gm: fx.GraphModule) -> bool:
    """Whether a value is, or has a size that is, a symbol."""
    values = (node.meta.get(VAL) for node in gm.graph.nodes)
    return any(True for value in values for _ in _numbers(value))


class _Name:
    """A node in the text of arguments, which differs from a string of its name."""

    def __init__(self, node: fx.Node) -> None:
        self._name = node.name

    def __repr__(self) -> str:
        return f"%{self._name}"


def _named(node: fx.Node) -> Any:
    """In the place of the node; map_arg is typed for what a graph may hold, and takes anything."""
    return _Name(node)


def _constant(gm: fx.GraphModule, target: str) -> str | None:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if value.numel() * value.itemsize > _LARGEST or value.device.type != "cpu":
        return None
    with without_fake_mode():
        plain = value.detach().resolve_conj().resolve_neg().contiguous().flatten()
        data = plain.view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_described, value))}]"
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value} {hint(value)}"
    facts = [type(value).__name__, value.dtype, value.layout, value.device, tuple(value.shape)]
    if value.layout is torch.strided:
        facts += [tuple(value.stride()), value.storage_offset()]
    return " ".join(map(str, (*facts, value.is_neg(), value.is_conj(), hint(list(value.shape)))))


def _numbers(value: Any) -> Iterator[Any]:
    """The symbolic numbers in a value."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, torch.Tensor):
        strides: Iterable[Any] = value.stride() if value.layout is torch.strided else ()
        yield from (n for n in (*value.shape, *strides) if isinstance(n, torch.SymInt))
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield value
