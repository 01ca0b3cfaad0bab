"""`listing`: a canonical text of a Program, equal for equal Programs.

It names the inputs, the outputs, every instruction with its operands and source line, the loops,
and every step with the function that it calls and what it calls it with. Memory is named by order
of first appearance, so the texts of two traces can be compared: the same buffers are shared and
reused at the same places, or the texts differ. Values in memory are not part of it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from trnx.simulator.program.instruction_table import Instruction
from trnx.simulator.program.program import Program


def listing(program: Program) -> tuple[str, ...]:
    """The lines of the text; instructions first, then steps."""
    return (*_head(program), *map(_instruction, program.rows), *_Steps(program).lines())


def _head(program: Program) -> Iterator[str]:
    yield f"program {program.name}"
    yield f"totals {program.totals}"
    for i, spec in enumerate(program.inputs):
        yield f"input {i}: {spec}"
    slots = program.slots
    for i, result in enumerate(program.results):
        place = slots.index(result.slot)
        yield (
            f"output {i}: {result.spec} at {result.offset} of slot {place}, "
            f"argument {result.argument}, whole {result.whole}"
        )
    for first, last, trips, core in program.rows.loops:
        yield f"loop of instructions {first} to {last} of core {core}, {trips} times"
    for index in range(len(program.rows)):
        yield f"instruction {index} ends at step {program.rows.first_step[index + 1]}"


def _instruction(row: Instruction) -> str:
    shown = vars(row) | {"attributes": str(row.attributes)}
    return f"Instruction({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class _Steps:
    """Writes steps; one object for one Program, because it numbers memory."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._views: dict[int, str] = {}
        for place, slot in enumerate(program.slots):
            for (dtype, shape, strides, offset), view in slot.views():
                self._views[id(view)] = f"slot{place}[{dtype} {shape} {strides} +{offset}]"
        self._memory: dict[int, int] = {}
        self._objects: dict[int, int] = {}
        # Keeps what is numbered alive, so that no two of them have one address.
        self._kept: list[Any] = []

    def lines(self) -> Iterator[str]:
        for index, step in enumerate(self._program.steps):
            yield f"step {index}: {self._text(step)}"

    def _text(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if value is None or isinstance(
            value, bool | int | float | complex | str | bytes | enum.Enum
        ):
            return repr(value)
        if isinstance(value, torch.dtype | torch.device | torch.memory_format | type | np.dtype):
            return str(value)
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}({', '.join(map(self._text, value))})"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k}: {self._text(v)}" for k, v in value.items()) + "}"
        return self._called(value)

    def _called(self, value: Any) -> str:
        if isinstance(value, functools.partial):
            parts = [self._text(value.func), *map(self._text, value.args)]
            parts += [f"{name}={self._text(item)}" for name, item in value.keywords.items()]
            return f"call({', '.join(parts)})"
        if isinstance(value, MethodType | BuiltinFunctionType):
            owner = value.__self__
            if owner is None or isinstance(owner, ModuleType | type):
                return f"{value.__module__}.{value.__qualname__}"
            return f"{self._text(owner)}.{value.__name__}"
        if isinstance(value, FunctionType):
            return self._function(value)
        return self._object(value)

    def _function(self, function: FunctionType) -> str:
        name = f"{function.__module__}.{function.__qualname__}"
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        return f"{name}<{', '.join(map(self._text, held))}>" if held else name

    def _object(self, value: Any) -> str:
        """Anything else by its class, its number, and its fields where it appears first."""
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if callable(value) and not hasattr(value, "__dict__") and not _slots(value):
            return f"{name} {getattr(value, '__name__', '')}"
        known = self._objects.get(id(value))
        if known is not None:
            return f"{name}#{known}"
        self._objects[id(value)] = len(self._objects)
        self._kept.append(value)
        fields = ", ".join(f"{key}={self._text(item)}" for key, item in _fields(value))
        return f"{name}#{self._objects[id(value)]}({fields})"

    def _tensor(self, tensor: torch.Tensor) -> str:
        known = self._views.get(id(tensor))
        if known is not None:
            return known
        place = self._number(tensor.untyped_storage().data_ptr() if tensor.numel() else 0, tensor)
        return (
            f"m{place}[{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} "
            f"+{tensor.storage_offset()}]"
        )

    def _array(self, array: np.ndarray[Any, Any]) -> str:
        owner: Any = array
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if isinstance(owner, torch.Tensor):
            start = owner.untyped_storage().data_ptr()
        else:
            start = owner.ctypes.data if isinstance(owner, np.ndarray) else id(owner)
        offset = array.ctypes.data - start if array.size else 0
        place = self._number(start, array)
        return f"m{place}[numpy {array.dtype} {array.shape} {array.strides} +{offset} bytes]"

    def _number(self, address: int, holder: Any) -> int:
        if address not in self._memory:
            self._memory[address] = len(self._memory)
            self._kept.append(holder)
        return self._memory[address]


def _slots(value: Any) -> list[str]:
    names = []
    for kind in type(value).__mro__:
        declared = vars(kind).get("__slots__", ())
        names += [declared] if isinstance(declared, str) else list(declared)
    return [name for name in names if not name.startswith("__")]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        names = [item.name for item in dataclasses.fields(value)]
    else:
        names = [*_slots(value), *getattr(value, "__dict__", {})]
    for name in names:
        if hasattr(value, name):
            yield name, getattr(value, name)
