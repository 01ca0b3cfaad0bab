"""Arguments of a kernel: every tensor becomes an NkiTensor in HBM, wherever it is in an argument.

Tensors are looked for in tuples, lists, dicts, and in objects of NKIObject classes and dataclasses.
Arrays of other libraries (JAX) come, and results go, as numpy's do. An array that torch cannot
share (read-only, negative strides) is copied, and so is a tensor that is not contiguous, where
arguments are passed as the device gets them: a kernel's access patterns count elements of dense
rows. What the kernel writes into a copy is copied back, and is an error where the caller's elements
cannot take it. Where arguments are borrowed, what the kernel writes goes into copies that are the
results' alone.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trnx.simulator.errors import TrnxError, UnknownDTypeError
from trnx.simulator.frontend.options import Passing
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.language.nki_object import NKIObject
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.arrays import from_numpy, kind_of, to_numpy
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.host_memory import plain, unreadable
from trnx.simulator.memory.tensor_spec import TensorSpec


class ArgumentError(TrnxError, TypeError):
    """An argument that the simulator cannot give to a kernel."""


@dataclass(frozen=True)
class Passed:
    """A tensor of a call: what the caller passed, and the memory that the kernel gets, which is the
    caller's or a copy. `kind` is its NKI type where torch has none.
    """

    original: Any
    tensor: torch.Tensor
    kind: DType | None = None

    def give_back(self, name: str) -> None:
        """Give the caller what the kernel wrote. Raises ArgumentError."""
        original, held = self.original, self.tensor
        if held is original:
            return
        if isinstance(original, torch.Tensor):
            if 0 in original.stride() and original.numel() > 1:
                raise ArgumentError(
                    f"argument {name} has elements that share memory (strides "
                    f"{original.stride()}), and the kernel writes into it; pass a copy"
                )
            if original._is_zerotensor():
                raise ArgumentError(
                    f"argument {name} is a tensor of zeros without storage, and the kernel writes "
                    "into it; pass `.clone()`"
                )
            original.detach().copy_(held)
        elif not original.flags.writeable:
            raise ArgumentError(
                f"argument {name} is a read-only array, and the kernel writes into it; pass a copy"
            )
        elif not np.shares_memory(original, _bytes(held)):
            original[...] = _bytes(held).view(original.dtype).reshape(original.shape)


def pass_array(array: np.ndarray[Any, Any], name: str, is_dense: bool) -> Passed:
    """A numpy array, contiguous for `is_dense`. Raises ArgumentError."""
    try:
        tensor = from_numpy(np.ascontiguousarray(array) if is_dense else array)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"argument {name} is a numpy array of {array.dtype}: {error}") from None
    return Passed(array, tensor, kind_of(array))


def pass_tensor(tensor: torch.Tensor, name: str, is_dense: bool) -> Passed:
    """A torch tensor, contiguous for `is_dense`. Raises ArgumentError."""
    if reason := unreadable(tensor):
        raise ArgumentError(f"argument {name} is a tensor that the simulator cannot read: {reason}")
    held = plain(tensor)
    return Passed(tensor, held.contiguous() if is_dense else held)


class Arguments:
    """Converts the arguments of one call, and keeps what they were."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        passing = simulator.options.passing
        self._are_dense = passing is not Passing.as_given
        self._are_borrowed = passing is Passing.borrowed
        self._name = ""
        self.specs: list[TensorSpec] = []
        self.tensors: list[NkiTensor] = []
        # What was passed for each, None where a TensorSpec was; and the arguments' names.
        self.passed: list[Passed | None] = []
        self.names: list[str] = []

    @property
    def is_first_numpy(self) -> bool:
        """True where the first tensor is a numpy array."""
        first = self.passed[0] if self.passed else None
        return first is not None and isinstance(first.original, np.ndarray)

    def convert_all(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the kernel gets them."""
        names = _parameter_names(function)
        positional = []
        for index, value in enumerate(args):
            self._name = names[index] if index < len(names) else f"number {index}"
            positional.append(self._convert(value))
        keywords = {}
        for name, value in kwargs.items():
            self._name = name
            keywords[name] = self._convert(value)
        return positional, keywords

    def result(self, index: int) -> Any:
        """The tensor `index` as a result: what the caller passed, or the kernel's copy of it."""
        tensor, passed = self.tensors[index], self.passed[index]
        assert passed is not None
        slot = tensor.storage.slot
        if self._are_borrowed and slot is not None and slot.holder is not None:
            held = slot.holder if slot.is_written else slot.holder.clone()
            return to_numpy(held, tensor.dtype) if isinstance(passed.original, np.ndarray) else held
        return passed.original

    def write_back(self) -> None:
        """Give the caller what the kernel wrote into copies. Raises ArgumentError."""
        if self._are_borrowed:
            return
        for tensor, passed, name in zip(self.tensors, self.passed, self.names, strict=True):
            slot = tensor.storage.slot
            if passed is not None and slot is not None and slot.is_written:
                passed.give_back(name)

    def _convert(self, value: Any) -> Any:
        if _is_foreign_array(value):
            value = np.asarray(value)
        if isinstance(value, np.ndarray):
            return self._add_passed(pass_array(value, self._name, self._are_dense))
        if isinstance(value, torch.Tensor):
            return self._add_passed(pass_tensor(value, self._name, self._are_dense))
        if isinstance(value, TensorSpec):
            return self._add(value, None)
        if isinstance(value, NkiTensor):
            raise ArgumentError(
                f"{self._name} is a tensor of another run of a kernel: within a kernel call "
                "another one plainly, `kernel(x)`; to run one, pass numpy or torch to "
                "`nki.simulate(kernel)`, once"
            )
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._convert(item) for item in value))
        if isinstance(value, list | tuple):
            return type(value)(self._convert(item) for item in value)
        if isinstance(value, dict):
            return {key: self._convert(item) for key, item in value.items()}
        if isinstance(value, NKIObject) or (
            dataclasses.is_dataclass(value) and not isinstance(value, type)
        ):
            return self._object(value)
        return value

    def _object(self, value: Any) -> Any:
        """The same object, or a copy where a tensor was found in it: the caller's stays."""
        held = dict(_attributes(value))
        converted = {name: self._convert(item) for name, item in held.items()}
        if all(converted[name] is item for name, item in held.items()):
            return value
        made = copy.copy(value)
        for name, item in converted.items():
            # Classes may be frozen.
            object.__setattr__(made, name, item)
        return made

    def _add_passed(self, passed: Passed) -> NkiTensor:
        return self._add(TensorSpec.of(passed.tensor), passed)

    def _add(self, spec: TensorSpec, passed: Passed | None) -> NkiTensor:
        if passed is None and self._simulator.values:
            raise ArgumentError(
                f"tracing with values needs tensors; argument {self._name} is a TensorSpec"
            )
        tensor, kind = (None, None) if passed is None else (passed.tensor, passed.kind)
        try:
            view = self._simulator.argument(spec, tensor, kind, self._are_borrowed)
        except UnknownDTypeError as error:
            raise ArgumentError(f"argument {self._name} {spec.shape}: {error}") from None
        self.specs.append(spec)
        self.tensors.append(view)
        self.passed.append(passed)
        self.names.append(self._name)
        return view


def _is_foreign_array(value: Any) -> bool:
    """An array of another library, such as JAX, which numpy reads; numpy's scalars are numbers."""
    is_array = all(hasattr(value, name) for name in ("__array__", "shape", "dtype"))
    return is_array and not isinstance(value, np.ndarray | np.generic | torch.Tensor | type)


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "__dict__"):
        yield from vars(value).items()
        return
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            yield field.name, getattr(value, field.name)


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor as numpy has it, whatever its dtype."""
    held = tensor.detach()
    return held.view(getattr(torch, f"uint{held.element_size() * 8}")).numpy()
