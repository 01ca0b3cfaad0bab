"""What a step reads and writes, as far as its function tells: for passes over the steps of a
Program.

Steps are functions on views, as `portable` has them: they touch the memory of their arguments
alone. torch's functions with `out=`, and those of operators, write there alone, torch's methods
that end in `_` to their tensor alone. Functions of this package that only move elements say so with
`moves`, those that only compute one tensor with `computes`, those that only look at their arguments
with `looks`. Whatever else a step is may touch everything.
"""

from __future__ import annotations

import enum
import functools
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

import numpy as np
import torch

from trnx.simulator.errors import Location
from trnx.simulator.language.operators import functions
from trnx.simulator.memory.dtype_conversion import store_wide
from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.memory.views import Shape
from trnx.simulator.program.regions import Region

_OWN = "trnx.simulator."
_F = TypeVar("_F", bound=Callable[..., Any])
# The dense tensor that is read, the tensor that is written, and how the elements of the target, in
# its shape, lie in the source: shape and strides.
Places = tuple[torch.Tensor, torch.Tensor, Shape, Shape]

# Types of constants, which hold no memory.
PLAIN: tuple[type, ...] = (
    int, float, str, bytes, type(None), enum.Enum, np.ufunc, torch.dtype, torch.memory_format,
    Location, torch._ops.OpOverload,
)  # fmt: skip
# Types of what holds memory, and of functions that are not of Python.
MEMORY = (torch.Tensor, np.ndarray)
_NATIVE = (BuiltinFunctionType, torch._ops.OpOverload)
# torch's matrix products with `out=`, and where their two factors are.
PRODUCTS: Mapping[Any, tuple[int, int]] = {torch.mm: (0, 1), torch.addmm: (1, 2)}

# Operators whose result is exact: torch computes some others in vectors otherwise than alone.
_EXACT = (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.neg)

# What it does besides is to advance a generator.
_RANDOM = (torch.bernoulli, torch.multinomial, torch.normal, torch.poisson, torch.rand,
           torch.randint, torch.randn, torch.randperm)  # fmt: skip

_looks: set[Callable[..., Any]] = set()
_computes: dict[Callable[..., Any], int] = {}
_moves: dict[Callable[..., Any], Callable[..., Places]] = {}


def moves(places: Callable[..., Places]) -> Callable[[_F], _F]:
    """Declares a step function that copies all elements of one dense tensor to another tensor, and
    does nothing else; `places` tells how, from the function's arguments.
    """

    def declare(function: _F) -> _F:
        _moves[function] = places
        return function

    return declare


def looks(function: _F) -> _F:
    """Declares a step function that reads its arguments and writes nothing."""
    _looks.add(function)
    return function


def computes(result: int) -> Callable[[_F], _F]:
    """Declares a step function that writes all of the argument with this number from its other
    arguments, and does nothing else.
    """

    def declare(function: _F) -> _F:
        _computes[function] = result
        return function

    return declare


# Its room does not know of steps.
computes(result=1)(store_wide)


@dataclass(frozen=True)
class Effects:
    """`reads` by argument, of which `factors` are those of a matrix product; `move` is (source,
    target) where a step does nothing but copy. `operands` are the positions of tensors that other
    views may replace; the values of an `is_exact` step do not depend on how they lie. An `is_pure`
    step writes all of `writes`, and does nothing else.
    """

    reads: Mapping[int, Region]
    writes: Sequence[Region]
    factors: tuple[int, ...] = ()
    move: tuple[Region, Region] | None = None
    operands: range = range(0)
    is_exact: bool = False
    is_pure: bool = False

    def is_indifferent(self, argument: int, place: Region) -> bool:
        """True where the step gives the same values, as fast, with an argument that lies there."""
        if argument not in self.operands:
            return False
        if self.reads[argument].lies_like(place):
            return True
        rows = [step for size, step in zip(place.shape, place.strides, strict=True) if size > 1]
        return self.is_exact and (not rows or rows[-1] <= 1)


class EffectReader:
    """Reads the effects of steps of one Program. Its slots have negative numbers, by their order:
    -1 is the first. Own memory is known by its address; `blank` has the bytes of most of it, as in
    `Program`, and of what was allocated since, which `made` has alone.
    """

    def __init__(self, slots: Sequence[Slot], blank: Mapping[int, int]) -> None:
        self._slots = slots
        self.blank = dict(blank)
        self.made: dict[int, int] = {}
        self._starts = sorted(blank)
        # Released views of slots have no memory to be known by.
        self._regions: dict[int, Region | None] = {
            id(view): Region(-1 - number, dtype, shape, strides, offset)
            for number, slot in enumerate(slots)
            for (dtype, shape, strides, offset), view in slot.views()
        }
        # By the step's id, which it keeps: the step, and its effects.
        self._known: dict[int, tuple[Step, Effects | None]] = {}
        self._holders: dict[int, torch.Tensor] = {}
        self._views: dict[tuple[object, ...], torch.Tensor] = {}

    def effects(self, step: Step) -> Effects | None:
        """None where it may touch everything."""
        known = self._known.get(id(step))
        if known is None:
            known = self._known[id(step)] = (step, self._read(step))
        return known[1]

    def view(self, region: Region) -> torch.Tensor:
        """A view of a region of a slot, or of own memory that some step uses: one object for equal
        regions.
        """
        place = (region.shape, region.strides, region.offset)
        if region.memory < 0:
            made = self._slots[-1 - region.memory].view(region.dtype, *place)
        else:
            key = (region.memory, region.dtype, *place)
            if key not in self._views:
                memory = self._holders[region.memory].untyped_storage()
                empty = torch.empty(0, dtype=region.dtype, device="cpu")
                self._views[key] = empty.set_(memory, region.offset, *place[:2])
            made = self._views[key]
        self._regions[id(made)] = region
        return made

    def allocate(self, nbytes: int) -> int:
        """New own memory, blank: its address."""
        memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        address = memory.untyped_storage().data_ptr()
        self._holders[address] = memory
        self.blank[address] = self.made[address] = nbytes
        insort(self._starts, address)
        return address

    def used(self, steps: Sequence[Step]) -> tuple[frozenset[int], frozenset[int]] | None:
        """The ids of the views that the steps hold, and the addresses of own memory; None where
        a step may hold others.
        """
        views: set[int] = set()
        for step in steps:
            if self.effects(step) is None:
                return None
            views.update(map(id, _memory_of(step)))
        memories = {region.memory for at in views if (region := self._regions[at]) is not None}
        return frozenset(views), frozenset(memories)

    def _region(self, view: Any) -> Region | None:
        if id(view) not in self._regions:
            if isinstance(view, np.ndarray):
                self._regions[id(view)] = self._region_of_array(view)
                return self._regions[id(view)]
            region = self._regions[id(view)] = _own_region(view)
            if region is not None:
                self._holders.setdefault(region.memory, view)
        return self._regions[id(view)]

    def _region_of_array(self, array: np.ndarray[Any, Any]) -> Region | None:
        """The bytes of an array of numpy over own memory."""
        address = array.__array_interface__["data"][0]
        place = bisect_right(self._starts, address) - 1
        start = self._starts[place] if place >= 0 else 0
        is_inside = address < start + self.blank.get(start, 0)
        if not is_inside or min(array.strides, default=0) < 0:
            return None
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        return Region(start, torch.uint8, shape, strides, address - start)

    def _read(self, step: Step) -> Effects | None:
        function, args, named = parts_of(step)
        regions: dict[int, Region] = {}
        for number, value in enumerate((*args, *named.values())):
            if isinstance(value, MEMORY):
                region = self._region(value)
                if region is None:
                    return None
                regions[number] = region
            elif not _is_plain(value):
                return None
        owner = getattr(function, "__self__", None)
        if isinstance(function, BuiltinFunctionType) and isinstance(owner, torch.Tensor):
            return self._of_method(function, owner, regions)
        if isinstance(function, _NATIVE) or (
            type(function) is FunctionType and function.__module__ == functions.__name__
        ):
            return self._of_function(function, regions, len(args), list(named))
        if function in _looks:
            return Effects(regions, ())
        if function in _computes:
            written = regions.pop(_computes[function])
            return Effects(regions, (written,), is_pure=True)
        if function in _moves:
            return self._of_move(args, _moves[function](*args))
        is_own = type(function) is FunctionType and function.__module__.startswith(_OWN)
        if not is_own or function.__closure__ or not regions:
            return None
        return Effects(regions, tuple(regions.values()))

    def _of_method(
        self, function: Any, owner: torch.Tensor, regions: dict[int, Region]
    ) -> Effects | None:
        """A method of a tensor, which it writes."""
        written, name = self._region(owner), function.__name__
        if written is None or not name.endswith("_"):
            return None
        if name not in ("copy_", "fill_", "zero_"):
            return Effects({**regions, -1: written}, (written,))
        move = None
        if name == "copy_" and 0 in regions:
            move = _same_elements(regions[0], written)
        return Effects(regions, (written,), move=move, is_pure=True)

    def _of_function(
        self, function: Any, regions: dict[int, Region], args: int, named: list[str]
    ) -> Effects:
        """A function with `out=` writes that; without, it may write whatever it is given."""
        at = args + named.index("out") if "out" in named else -1
        if at not in regions or any(number >= args for number in regions if number != at):
            return Effects(regions, tuple(regions.values()))
        out = regions.pop(at)
        factors = PRODUCTS.get(function, ())
        move = None
        if function is functions.copy and 0 in regions:
            move = _same_elements(regions[0], out)
        return Effects(
            regions,
            (out,),
            factors,
            move,
            operands=range(0 if factors else args),
            is_exact=named == ["out"] and function in _EXACT,
            is_pure=function not in _RANDOM,
        )

    def _of_move(self, args: tuple[Any, ...], places: Places) -> Effects | None:
        held, written, shape, strides = places
        source, target = self._region(held), self._region(written)
        number = next(at for at, one in enumerate(args) if one is held)
        if source is None or target is None or shape != target.shape:
            return None
        read = Region(source.memory, source.dtype, shape, strides, source.offset)
        is_move = source.dtype is target.dtype
        move = (read, target) if is_move else None
        return Effects({number: read}, (target,), move=move, is_pure=True)


def _same_elements(source: Region, target: Region) -> tuple[Region, Region] | None:
    """The move of a copy; None where it converts, or repeats what it reads."""
    is_move = source.dtype is target.dtype and source.shape == target.shape
    return (source, target) if is_move else None


def parts_of(step: Step) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Function, arguments, arguments by name."""
    if type(step) is functools.partial:
        return step.func, step.args, step.keywords
    return step, (), {}


def _memory_of(step: Step) -> Iterator[Any]:
    """The tensors and arrays that a step holds."""
    function, args, named = parts_of(step)
    for value in (getattr(function, "__self__", None), *args, *named.values()):
        if isinstance(value, MEMORY):
            yield value


def _own_region(view: torch.Tensor) -> Region | None:
    if view.layout is not torch.strided or view.device.type != "cpu" or view.is_neg():
        return None
    memory = view.untyped_storage().data_ptr()
    # What has no memory is a caller's, seen otherwise than through its slot.
    if not memory:
        return None
    offset = int(view.storage_offset())
    return Region(memory, view.dtype, tuple(view.shape), view.stride(), offset)


def _is_plain(value: Any) -> bool:
    """True for what certainly holds no memory."""
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    if type(value) is FunctionType:
        return not value.__closure__
    if type(value) is BuiltinFunctionType:
        return not isinstance(value.__self__, torch.Tensor)
    return isinstance(value, PLAIN)
