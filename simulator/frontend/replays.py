"""The second call of a kernel with the same signature replays its Program: no Python of it runs.

A signature is what the kernel's Python can see: shapes, dtypes and kinds of the tensors, the other
arguments, the options of the run, and the functions and constants that the kernel reaches through
its globals and defaults. Calls with anything else among them (objects with fields, for instance)
are recorded every time, and so are calls whose checks looked at values, or let a finding pass.

Few Programs are kept, those that were called last: see `_MOST_BYTES` and `_MOST_PROGRAMS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from trnx.simulator.errors import TrnxError
from trnx.simulator.frontend.arguments import Passed, pass_array, pass_tensor
from trnx.simulator.frontend.reached import is_kernel_code, is_ours, reads_of
from trnx.simulator.frontend.results import Results
from trnx.simulator.frontend.tile_operators import Op
from trnx.simulator.isa.mx import is_older_rule
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.program.observer import observers
from trnx.simulator.program.program import Program

# Memory that the Programs of all kernels may hold, tensors on chip for the most part: those of ten
# kernels that fill SBUF.
_MOST_BYTES = 256 << 20
# And how many there may be: each keeps the kernel's module alive.
_MOST_PROGRAMS = 64
# What a step takes besides: its objects, and the instruction's row.
_STEP_BYTES = 300
_PLAIN = (int, float, bool, str, bytes, type(None))
# What is compared as it is: data, and objects of which there is one.
_BY_VALUE = (*_PLAIN, torch.dtype, np.dtype, Enum, Op, BuiltinFunctionType, ModuleType, type)


class _OpenError(Exception):
    """A value that may be another one at the next call, and nobody could tell."""


@dataclass(frozen=True)
class Signature:
    """`key` is equal for calls that do the same; `passed` are the tensors of this one."""

    key: Hashable
    passed: tuple[Passed, ...]


@dataclass(frozen=True)
class Replay:
    """A Program with what is needed to call it like its kernel."""

    program: Program
    results: Results
    names: tuple[str, ...]

    def call(self, passed: Sequence[Passed]) -> Any:
        """Run on the tensors of a call; the results, as the kernel would return them."""
        with torch.inference_mode(False), torch.no_grad():
            values = self.program.run([one.tensor for one in passed])
            for one, slot, name in zip(passed, self.program.slots, self.names, strict=False):
                if slot.is_written:
                    one.give_back(name)
            return self.results.of(values, lambda index: passed[index].original)


class Replays:
    """Programs by signature, the least recently called first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: LruCache[Replay] = LruCache(_MOST_PROGRAMS, most_bytes, _sizes)

    def find(self, signature: Signature) -> Replay | None:
        """What was kept for such calls."""
        return self._kept.get(signature.key)

    def keep(self, signature: Signature, replay: Replay) -> None:
        """Keep it for the next call where there is room for it at all; others leave."""
        replay.program.release()
        if _sizes([replay]) <= self._most_bytes:
            self._kept.put(signature.key, replay)


def _sizes(replays: Collection[Replay]) -> int:
    programs = [replay.program for replay in replays]
    return sum(one.host_bytes + _STEP_BYTES * len(one.steps) for one in programs)


REPLAYS = Replays()


def key_of(args: tuple[Any, ...], kwargs: dict[str, Any], is_dense: bool) -> Hashable:
    """Equal for arguments that a kernel cannot tell apart; None where nobody could tell."""
    reader = _Reader(is_dense)
    try:
        return reader.key(args), reader.key(kwargs)
    except (_OpenError, TrnxError, TypeError, ValueError):
        return None


def signature_of(
    function: Callable[..., Any],
    options: Hashable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_dense: bool,
) -> Signature | None:
    """The signature of a call; None where it has none, or where somebody follows the Python."""
    if observers() or sys.gettrace() is not None:
        return None
    reader = _Reader(is_dense)
    try:
        given = (reader.key(args), reader.key(kwargs))
        reached = tuple(_reached(function))
        key = (options, is_older_rule(), given, reached)
        hash(key)
    except (_OpenError, TrnxError, TypeError, ValueError):
        # Arguments that cannot be passed are reported by who records the call.
        return None
    return Signature(key, tuple(reader.passed))


class _Reader:
    """Keys of values; tensors among them are collected."""

    def __init__(self, is_dense: bool) -> None:
        self._is_dense = is_dense
        self.passed: list[Passed] = []

    def key(self, value: Any) -> Hashable:
        """Equal for values that a kernel cannot tell apart."""
        if isinstance(value, np.ndarray):
            return self._tensor("numpy", pass_array(value, "", self._is_dense))
        if isinstance(value, torch.Tensor):
            return self._tensor("torch", pass_tensor(value, "", self._is_dense))
        if isinstance(value, list | tuple):
            return type(value), tuple(self.key(item) for item in value)
        if isinstance(value, slice):
            return slice, self.key((value.start, value.stop, value.step))
        if type(value) is dict:
            return dict, tuple((self.key(name), self.key(item)) for name, item in value.items())
        return _constant(value)

    def _tensor(self, library: str, passed: Passed) -> Hashable:
        self.passed.append(passed)
        tensor = passed.tensor
        return library, passed.kind, tensor.dtype, tuple(tensor.shape), tensor.stride()


def _constant(value: Any) -> Hashable:
    if isinstance(value, float | np.generic):
        # 0.0 and -0.0 are equal, and NaN is not equal to itself.
        return type(value), repr(value)
    if isinstance(value, _BY_VALUE) or (isinstance(value, FunctionType) and is_ours(value)):
        return type(value), value
    raise _OpenError


def _reached(function: Callable[..., Any]) -> Iterator[Hashable]:
    """The code and the constants that a kernel reaches by its globals, defaults and closures."""
    reader = _Reader(is_dense=False)
    yield function
    for _, name, value in reads_of(function):
        yield name, value if is_kernel_code(value) else reader.key(value)
    if reader.passed:
        raise _OpenError
