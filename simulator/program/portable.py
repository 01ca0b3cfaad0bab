"""Programs as data, so that another process need not run a kernel's Python again: `to_data`,
`from_data`.

A step is a function of torch, of numpy or of this package on views of the Program's own memory and
of its slots, and on constants. Functions are written by their names, views by where they lie. Own
memory that every run writes before it reads has no content; what else steps read (identity
matrices, tables of indices) is written with its bytes. `to_data` gives None for a Program with
anything else, with register loops, or of one rank among several.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from trnx.simulator.errors import Location
from trnx.simulator.memory.storage import Slot
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.memory.views import last_element
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.program import Output, Program, Totals

# Bytes of constants that are written, at the most.
_MOST_CONTENT = 1 << 20
# Where functions of torch and numpy are found by their names.
_NAMESPACES: Mapping[str, Any] = {
    "torch": torch,
    "torch.special": torch.special,
    "torch.nn.functional": torch.nn.functional,
    "numpy": np,
}
_OWN = "trnx.simulator."
_CONSTANTS = (int, bool, str, type(None))

Data = dict[str, Any]


class _NotPortableError(Exception):
    """Something has no form as data."""


def to_data(program: Program) -> Data | None:
    """The Program as JSON, None where it has no such form."""
    if program.is_part or program.rows.loops:
        return None
    try:
        return _Writer(program).run()
    except _NotPortableError:
        return None


def from_data(data: Data, rows: Callable[[], InstructionTable]) -> Program:
    """The Program; `rows` gives its instructions when somebody asks for them. Raises KeyError,
    TypeError, ValueError, AttributeError or IndexError for what `to_data` did not write.
    """
    try:
        return _Reader(data).run(rows)
    except (RuntimeError, ImportError, OverflowError) as error:
        raise ValueError(f"it is no Program: {error}") from error


class _Writer:
    """Objects by number, each after those that it refers to."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._slots = {id(slot): number for number, slot in enumerate(program.slots)}
        self._slot_views = {
            id(view): [self._slots[id(slot)], _name(dtype), [*shape], [*strides], offset]
            for slot in program.slots
            for (dtype, shape, strides, offset), view in slot.views()
        }
        self._blank = sorted(program.blank)
        self._memories: dict[int, int] = {}
        self._sizes: list[int] = []
        self._contents: dict[str, str] = {}
        self._content_bytes = 0
        self._objects: list[list[Any]] = []
        self._numbers: dict[int, int] = {}

    def run(self) -> Data:
        program = self._program
        steps = [self._number(step) for step in program.steps]
        return {
            "name": program.name,
            "inputs": [_spec(spec) for spec in program.inputs],
            "slots": [[slot.nbytes, slot.is_written] for slot in program.slots],
            "results": [
                [self._slots[id(r.slot)], _spec(r.spec), r.offset, r.argument, _spec(r.whole)]
                for r in program.results
            ],
            "totals": [*dataclasses.astuple(program.totals)],
            "memories": self._sizes,
            "contents": self._contents,
            "objects": self._objects,
            "steps": steps,
            "proven": program.proven,
        }

    def _number(self, value: Any) -> int:
        found = self._numbers.get(id(value))
        if found is None:
            described = self._described(value)
            found = self._numbers[id(value)] = len(self._objects)
            self._objects.append(described)
        return found

    def _described(self, value: Any) -> list[Any]:
        kind = type(value)
        if kind is functools.partial:
            named = {name: self._number(one) for name, one in value.keywords.items()}
            return ["step", self._number(value.func), [*map(self._number, value.args)], named]
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind in _CONSTANTS:
            return ["constant", value]
        if kind is float:
            return ["float", value.hex()]
        if kind is BuiltinFunctionType and isinstance(value.__self__, torch.Tensor):
            return ["method", self._number(value.__self__), value.__name__]
        if kind is np.ndarray:
            return self._array(value)
        if kind in (tuple, list):
            return [kind.__name__, [*map(self._number, value)]]
        if kind is torch.dtype:
            return ["dtype", _name(value)]
        if kind is torch._ops.OpOverload:
            return ["operator", *str(value).split(".")]
        if kind is Location:
            return ["location", value.file, value.line, value.function]
        return _function(value)

    def _tensor(self, value: torch.Tensor) -> list[Any]:
        found = self._slot_views.get(id(value))
        if found is not None:
            return ["slot", *found]
        is_plain = value.layout is torch.strided and not (value.is_neg() or value.is_conj())
        if not is_plain or value.requires_grad or value.device.type != "cpu":
            raise _NotPortableError
        storage = value.untyped_storage()
        memory = self._memory(storage.data_ptr(), storage.nbytes(), value)
        shape, strides = [*value.shape], [*value.stride()]
        return ["view", memory, _name(value.dtype), shape, strides, value.storage_offset()]

    def _memory(self, address: int, nbytes: int, value: torch.Tensor | None) -> int:
        found = self._memories.get(address)
        if found is None:
            if not nbytes:  # the memory of a caller, seen otherwise than through its slot
                raise _NotPortableError
            found = self._memories[address] = len(self._sizes)
            self._sizes.append(nbytes)
            if address not in self._program.blank:
                self._contents[str(found)] = self._content(nbytes, value)
        return found

    def _content(self, nbytes: int, value: torch.Tensor | None) -> str:
        self._content_bytes += nbytes
        if value is None or self._content_bytes > _MOST_CONTENT:
            raise _NotPortableError
        whole = torch.empty(0, dtype=torch.uint8, device="cpu")
        whole.set_(value.untyped_storage(), 0, (nbytes,), (1,))
        return base64.b64encode(whole.numpy().tobytes()).decode()

    def _array(self, value: np.ndarray[Any, Any]) -> list[Any]:
        """An array of numpy over memory without content."""
        address = value.__array_interface__["data"][0]
        place = bisect_right(self._blank, address) - 1
        start = self._blank[place] if place >= 0 else 0
        nbytes = self._program.blank.get(start, 0)
        if not value.size or address >= start + nbytes or min(value.strides, default=0) < 0:
            raise _NotPortableError
        memory = self._memory(start, nbytes, None)
        layout = [[*value.shape], [*value.strides], address - start]
        return ["array", memory, value.dtype.str, *layout]


def _function(value: Any) -> list[Any]:
    """A function that is found by its name."""
    name = getattr(value, "__name__", "")
    for namespace, module in _NAMESPACES.items():
        if name and getattr(module, name, None) is value:
            return ["function", namespace, name]
    home = value.__module__ if type(value) is FunctionType else ""
    if home.startswith(_OWN) and getattr(importlib.import_module(home), name, None) is value:
        return ["function", home, name]
    raise _NotPortableError


class _Reader:
    def __init__(self, data: Data) -> None:
        self._data = data
        self._slots = [Slot.unbound(int(size), bool(is_w)) for size, is_w in data["slots"]]
        self._memories = [
            torch.empty(int(nbytes), dtype=torch.uint8, device="cpu") for nbytes in data["memories"]
        ]
        for number, content in data["contents"].items():
            held = np.frombuffer(base64.b64decode(content, validate=True), np.uint8)
            self._memories[int(number)].numpy()[:] = held
        self._objects: list[Any] = []

    def run(self, rows: Callable[[], InstructionTable]) -> Program:
        data, made = self._data, self._objects
        for kind, *given in data["objects"]:
            made.append(_READ[kind](self, *given))
        inputs = tuple(_spec_of(spec) for spec in data["inputs"])
        results = tuple(
            Output(self._slots[slot], _spec_of(spec), offset, argument, _spec_of(whole))
            for slot, spec, offset, argument, whole in data["results"]
        )
        slots = tuple(self._slots[: len(inputs)])
        steps = [made[number] for number in data["steps"]]
        totals = Totals(*map(int, data["totals"]))
        blank = {
            memory.data_ptr(): memory.numel()
            for number, memory in enumerate(self._memories)
            if memory.numel() and str(number) not in data["contents"]
        }
        return Program(
            str(data["name"]), inputs, slots, results, steps, rows, totals, blank=blank,
            proven=str(data["proven"]),
        )  # fmt: skip

    def step(self, function: int, args: Sequence[int], named: Mapping[str, int]) -> Any:
        made = self._objects
        keywords = {name: made[number] for name, number in named.items()}
        return functools.partial(made[function], *[made[number] for number in args], **keywords)

    def slot(self, number: int, dtype: str, shape: Any, strides: Any, offset: int) -> torch.Tensor:
        return self._slots[number].view(_dtype(dtype), tuple(shape), tuple(strides), offset)

    def view(self, number: int, dtype: str, shape: Any, strides: Any, offset: int) -> torch.Tensor:
        memory, kind = self._memories[number], _dtype(dtype)
        if math.prod(shape):
            end = (offset + last_element(tuple(shape), tuple(strides)) + 1) * kind.itemsize
            if not 0 <= offset * kind.itemsize < end <= memory.numel():
                raise ValueError("a view reaches beyond its memory")
        made = torch.empty(0, dtype=kind, device="cpu")
        return made.set_(memory.untyped_storage(), offset, shape, strides)

    def array(self, number: int, dtype: str, shape: Any, strides: Any, offset: int) -> Any:
        memory = self._memories[number].numpy()
        return np.ndarray(shape, np.dtype(dtype), memory, offset, strides)

    def method(self, number: int, name: str) -> Any:
        owner = self._objects[number]
        if type(owner) is not torch.Tensor:
            raise ValueError(f"{name!r} of what is no tensor")
        return getattr(owner, name)

    def numbered(self, numbers: Sequence[int]) -> tuple[Any, ...]:
        return tuple(self._objects[number] for number in numbers)


def _function_of(_: _Reader, namespace: str, name: str) -> Any:
    found: Any = _NAMESPACES.get(namespace)
    if found is None and namespace.startswith(_OWN):
        found = importlib.import_module(namespace)
    return getattr(found, name)


def _operator_of(_: _Reader, namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


@functools.cache
def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


_READ: Mapping[str, Callable[..., Any]] = {
    "step": _Reader.step,
    "slot": _Reader.slot,
    "view": _Reader.view,
    "array": _Reader.array,
    "method": _Reader.method,
    "tuple": _Reader.numbered,
    "list": lambda reader, numbers: list(reader.numbered(numbers)),
    "constant": lambda _, value: value,
    "float": lambda _, value: float.fromhex(value),
    "dtype": lambda _, name: _dtype(name),
    "location": lambda _, *parts: Location(*parts),
    "function": _function_of,
    "operator": _operator_of,
}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _spec(spec: TensorSpec) -> list[Any]:
    return [[*spec.shape], _name(spec.dtype), [*spec.strides]]


def _spec_of(given: Sequence[Any]) -> TensorSpec:
    shape, dtype, strides = given
    return TensorSpec(tuple(shape), _dtype(dtype), tuple(strides))
