"""Kernels that depend on more than their arguments from call to call: what a kernel reads besides
them is what it was at its first call with such arguments.

The device keeps compiled kernels by shapes, dtypes and constants of the arguments, and "may return
a stale compiled artifact" where anything else has changed (SDK/nki/get-started/
nki-language-guide.rst, Kernel Caching). Of functions that were exchanged for others, what they read
is compared; of what is no plain data, nothing.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import CodeType
from typing import Any

from trnx.simulator.errors import KernelSubsetError, Location
from trnx.simulator.frontend.reached import Owner, reads_of
from trnx.simulator.frontend.subset import defined_at
from trnx.simulator.language.nki_object import NKIObject
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.memory.dtypes import DType

# Name of who reads, and of what: its data.
State = dict[tuple[str, str], Hashable]
_PLAIN = (int, float, complex, str, bytes, type(None))
# How deep data is compared; a list may hold itself.
_DEPTH = 8


@dataclass(frozen=True)
class Reads:
    """What a call reads, and what of it is not what it was at the first one."""

    stale: tuple[KernelSubsetError, ...] = ()
    keep: Callable[[], None] = lambda: None  # after a call that went through: it was compiled


class Purity:
    """What kernels read besides their arguments at their first calls."""

    def __init__(self) -> None:
        # By weak reference: a function keeps its module.
        self._first: LruCache[dict[Hashable, State]] = LruCache(1024)

    def reads(self, function: Callable[..., Any], call: Hashable) -> Reads:
        """What `function` reads, against its first call that was equal to `call`."""
        calls = self._first.get_or_make(weakref.ref(function), dict)
        now: State = {}
        owners: dict[tuple[str, str], Owner] = {}
        for owner, name, value in reads_of(function):
            place = (f"{owner.__module__}.{owner.__qualname__}", name)
            now[place] = _data(value, _DEPTH)
            owners[place] = owner
        first = calls.get(call, now)
        stale = [place for place, data in now.items() if first.get(place, data) != data]

        def keep() -> None:
            calls.setdefault(call, now)

        return Reads(tuple(_stale(owners[place], place[1]) for place in stale), keep)


PURITY = Purity()


def _stale(owner: Owner, name: str) -> KernelSubsetError:
    return KernelSubsetError(
        "kernel-purity",
        f"{owner.__name__} reads {name!r}, which has changed since the first call with such "
        "arguments; the device runs what was compiled for that one: pass it as an argument "
        "(SDK/nki/get-started/nki-language-guide.rst, Kernel Caching)",
        _read_at(owner, name),
    )


def _read_at(owner: Owner, name: str) -> Location | None:
    """The first line of a function that reads a name, else that of its `def`."""
    code = getattr(owner, "__code__", None)
    line = None if code is None else next(_lines(code, name), None)
    if code is None or line is None:
        return defined_at(owner)
    return Location(code.co_filename, line, code.co_name)


def _lines(code: CodeType, name: str) -> Iterator[int]:
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD") and instruction.argval == name:
            positions = instruction.positions
            if positions is not None and positions.lineno is not None:
                yield positions.lineno
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner, name)


def _data(value: Any, depth: int) -> Hashable:
    """Equal for equal data; None for what is none."""
    if isinstance(value, _PLAIN):
        # 0.0 and -0.0 are equal, and NaN is not equal to itself.
        return type(value), repr(value)
    if isinstance(value, Enum | DType):
        return value
    if depth == 0:
        return None
    if isinstance(value, list | tuple):
        return type(value), tuple(_data(item, depth - 1) for item in value)
    if isinstance(value, NKIObject):
        value = vars(value)
    if isinstance(value, Mapping):
        items = [(repr(name), _data(item, depth - 1)) for name, item in value.items()]
        return dict, tuple(sorted(items, key=lambda item: item[0]))
    return None
