"""The boundary of a graph: what runs behind it finds every tensor as it was when it was traced.

Dynamo guards what the user passes, but nobody guards what autograd makes: tangents may be zeros
without storage, and a hook may give back another tensor than was saved. And no guard sees that a
storage was freed. So every call compares its tensors with the metadata of the graph:

* what has another bit (negative, conjugate), no storage, or other strides, is copied;
* what has no memory to read, or another dtype or shape, is refused by name;
* a batch of torch.func's (gradients under `is_grads_batched`) is left to PyTorch's operators, and
  so is memory of another size (see `_is_memory`).

A call whose tensors are as those of the last one costs one comparison in C++, and a look at the
size of each storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.backend.errors import InputChangedError, UnreadableInputError
from trnx.backend.shapes import Symbols, UnknownSizeError, concrete_spec
from trnx.backend.torch_internals import is_transformed, metadata_check, without_subclass
from trnx.fallback.layout import layout_of, restride
from trnx.fx_passes.nodes import aten, placeholders, val
from trnx.fx_passes.source import source_line
from trnx.fx_passes.symbolic import has_symbolic_layout
from trnx.simulator.memory.host_memory import is_plain, plain, unreadable
from trnx.simulator.memory.tensor_spec import TensorSpec


class TransformedInput(Exception):  # noqa: N818  no error: another way to run the graph
    """A tensor that only PyTorch's own operators know how to compute with; its text says why, in
    words of the ledger."""


_BY_OFFSET = {aten.as_strided.default, aten.as_strided_scatter.default}
OF_FUNC = "torch.func or forward-mode differentiation transforms its inputs"
_OTHER_MEMORY = "arguments that overlap lie in memory of another size than at capture"


@dataclass(frozen=True)
class Expected:
    """What the graph knows of one input tensor; `spec` is None where sizes depend on data. What
    `is_memory` is read and written by offset, however much of it there is."""

    index: int
    name: str
    line: str
    spec: TensorSpec | None
    is_neg: bool
    is_conj: bool
    is_memory: bool

    def conform(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the graph knows it, itself where it is so already."""
        where = f"input {self.name} (read at {self.line or 'an unknown line'})"
        if is_transformed(tensor):
            raise TransformedInput(OF_FUNC)
        if reason := unreadable(tensor):
            raise UnreadableInputError(f"{where} cannot be read: {reason}")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            tensor = without_subclass(tensor)
        if not self._has_bits_of(tensor):
            tensor = self._with_bits(plain(tensor))
        if self.spec is None:
            return tensor
        if tensor.dtype is not self.spec.dtype or tensor.shape != self.spec.shape:
            if self.is_memory and tensor.dtype is self.spec.dtype and tensor.ndim == 1:
                raise TransformedInput(_OTHER_MEMORY)
            raise InputChangedError(
                f"{where} is {tensor.dtype} {tuple(tensor.shape)}, and the graph was compiled for "
                f"{self.spec.dtype} {self.spec.shape}: a hook on saved tensors or a custom "
                "gradient gives another tensor than it was given; keep dtype and shape"
            )
        if tensor.stride() == self.spec.strides:
            return tensor
        return restride(tensor, layout_of(_like(self.spec)))

    def _has_bits_of(self, tensor: torch.Tensor) -> bool:
        if self.is_neg or self.is_conj:
            bits = tensor.is_neg(), tensor.is_conj()
            return bits == (self.is_neg, self.is_conj) and not tensor._is_zerotensor()
        return is_plain(tensor)

    def _with_bits(self, value: torch.Tensor) -> torch.Tensor:
        """A plain value as views of the graph expect to find it."""
        if self.is_conj:
            value = value.conj_physical().conj()
        return value.neg()._neg_view() if self.is_neg else value


def _like(spec: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")


def _expected(index: int, node: fx.Node, symbols: Symbols) -> Expected:
    value = node.meta["val"]
    try:
        spec = concrete_spec(value, symbols)
    except UnknownSizeError:
        spec = None
    line = next((line for user in node.users if (line := source_line(user))), "")
    bits = value.is_neg(), value.is_conj()
    return Expected(index, node.name, line, spec, *bits, _is_memory(node))


def _is_memory(node: fx.Node) -> bool:
    """True for what AOTAutograd makes of arguments that overlap, are written to and are views of no
    tensor: all memory that they lie in, as one dimension. While it traces, that ends with the last
    of them; in a call, with the storage."""
    return val(node).ndim == 1 and {user.target for user in node.users} == _BY_OFFSET


class InputSpecs:
    """What a graph knows of its input tensors, for any sizes; that of static ones is made once."""

    def __init__(self, gm: fx.GraphModule) -> None:
        nodes = placeholders(gm)
        found = [(i, node) for i, node in enumerate(nodes) if _is_strided(node.meta.get("val"))]
        self.are_all = len(found) == len(nodes)
        self._parts: list[Expected | tuple[int, fx.Node]] = [
            (index, node) if has_symbolic_layout(node.meta["val"]) else _expected(index, node, {})
            for index, node in found
        ]

    def expected(self, symbols: Symbols) -> list[Expected]:
        """The tensors of calls with these sizes."""
        return [
            part if isinstance(part, Expected) else _expected(*part, symbols)
            for part in self._parts
        ]


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


# Bytes of a tensor's storage, and where in it the tensor starts.
Place = tuple[int, int | torch.SymInt]


class Inputs:
    """The tensors that one specialisation of a graph takes. Safe under threads."""

    def __init__(self, specs: InputSpecs, symbols: Symbols) -> None:
        self._expected = specs.expected(symbols)
        self._indices = [one.index for one in self._expected]
        self._are_all = specs.are_all
        # What the tensors of the last call with nothing to change were like, and where they lay.
        self._matches: Callable[..., bool] = _nothing
        self._places: list[Place] = []

    def admit(self, args: list[Any]) -> None:
        """Replace in `args` what is not as the graph knows it. Raises UnreadableInputError,
        InputChangedError, or TransformedInput, for which the executable runs the graph in eager.
        """
        tensors = args if self._are_all else [args[i] for i in self._indices]
        if not self._matches(*tensors):
            if self._conform(args, tensors):
                self._matches = metadata_check(tensors)
            return
        for tensor, place in zip(tensors, self._places, strict=True):
            if (tensor.untyped_storage().nbytes(), tensor.storage_offset()) != place:
                self._conform(args, tensors)
                return

    def _conform(self, args: list[Any], tensors: Sequence[Any]) -> bool:
        """True where there was nothing to replace."""
        is_same = bool(tensors)
        for expected, tensor in zip(self._expected, list(tensors), strict=True):
            if tensor is None:  # the token of an op with effects, a tensor for the tracer alone
                is_same = False
                continue
            args[expected.index] = conformed = expected.conform(tensor)
            is_same = is_same and conformed is tensor
        if is_same:
            self._places = _places(tensors)
        return is_same


def _places(tensors: Sequence[torch.Tensor]) -> list[Place]:
    return [(t.untyped_storage().nbytes(), t.storage_offset()) for t in tensors]


def _nothing(*tensors: torch.Tensor) -> bool:
    return not tensors
