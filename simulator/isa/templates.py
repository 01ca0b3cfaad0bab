"""Instructions that repeat: the steps and facts of one serve the next one that is equal.

A kernel's loop makes most of its instructions turn by turn at one line, on other tensors of the
same form. What the function of an instruction does follows from its arguments and from what it asks
`emit`; of where its operands lie it sees no more than memory, partitions, banks of PSUM and
overlap. So where it asks for nothing that changes while a kernel is recorded, a template stands for
it from the second time on. What depends on the moment is looked at again: whether reads hold
something, where products lie, which temporaries are free; and the steps are made for the memory
that the operands have now. Only the instructions of this package have templates: others may look
at addresses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from trnx.simulator.errors import Location
from trnx.simulator.kernel_lines import Line
from trnx.simulator.language.operators.table import Operator, Token
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.pool import Buffer
from trnx.simulator.memory.storage import Step
from trnx.simulator.memory.tensor_spec import contiguous_strides
from trnx.simulator.memory.views import Shape
from trnx.simulator.program.observer import Recorded
from trnx.simulator.program.specification import InstructionSpec

if TYPE_CHECKING:
    from trnx.simulator.isa.recorder import Recorder
    from trnx.simulator.isa.recording import Recording

# Places of operands for which a template keeps the steps.
_PLACES = 64
# Types whose values never change.
_PLAIN = (int, float, bool, str, type(None), np.ufunc, Enum, Token)


@functools.cache
def is_plain(kind: type) -> bool:
    """True for a type whose values never change."""
    return issubclass(kind, _PLAIN)


# What an instruction asked for: a view of an operand, with its shape and strides; a float32 copy of
# one in a shape, and whether it was there; what it derived from one of both by a function.
OperandView = tuple[torch.Tensor, NkiTensor, Shape, Shape]
KeptCopy = tuple[torch.Tensor, NkiTensor, Shape, bool]
Derivation = tuple[Callable[[torch.Tensor], Any], torch.Tensor, Any]


def copy_region(tensor: NkiTensor, sizes: Shape) -> tuple[tuple[Any, ...], int]:
    """What tells the float32 copy of a view in a shape from others, and its bytes."""
    return (*tensor.region_key(), tensor.dtype, sizes), math.prod(sizes) * 4


class _MovedStep(NamedTuple):
    """Step `at` of an instruction, on views of operands. `parts` are the function, or the tensor
    whose `method` it is, and the arguments, the last of them by `names`; `places` are (part,
    number of a view).
    """

    at: int
    method: str
    parts: tuple[Any, ...]
    names: tuple[str, ...]
    places: tuple[tuple[int, int], ...]

    def on(self, views: Sequence[Any]) -> Step:
        """The step on other views."""
        _, method, given, names, places = self
        parts: list[Any] = list(given)
        for part, view in places:
            parts[part] = views[view]
        if method:
            parts[0] = getattr(parts[0], method)
        if not names:
            return functools.partial(parts[0], *parts[1:])
        first = len(parts) - len(names)
        named = dict(zip(names, parts[first:], strict=True))
        return functools.partial(parts[0], *parts[1:first], **named)


class Template:
    """What an instruction became; tensors by their positions in the call."""

    __slots__ = (
        "_are_writes",
        "_copies",
        "_derived",
        "_facts",
        "_lane_changes",
        "_lane_needs",
        "_moved",
        "_numbers",
        "_operands",
        "_products",
        "_required",
        "_scratch",
        "_states",
        "_steps",
        "_steps_at",
        "_views",
        "_writes",
    )

    def __init__(
        self, made: Recording, positions: Mapping[int, int], moved: list[_MovedStep]
    ) -> None:
        def at(tensors: Sequence[NkiTensor]) -> tuple[int, ...]:
            return tuple([positions[id(tensor)] for tensor in tensors])

        self._facts = (made.name, made.engine, made.attributes)
        self._numbers = (made.flops, made.hbm_bytes, made.keeps)
        self._required = at(made.required)
        self._operands = at([tensor for tensor, _ in made.operands])
        self._are_writes = tuple([is_write for _, is_write in made.operands])
        self._writes = at(made.writes)
        self._products = at(made.products)
        self._states = tuple([(positions[id(t)], state) for t, state in made.product_states])
        self._scratch = _by_size(made.scratch_buffers)
        self._lane_changes = tuple(made.lane_changes)
        self._lane_needs = tuple(made.lane_needs)
        self._views = tuple(
            [(positions[id(t)], shape, strides) for _, t, shape, strides in made.views]
        )
        self._copies = tuple([(positions[id(one[1])], *one[2:]) for one in made.copies])
        numbers = _numbers(made)
        self._derived = tuple(
            [(f, numbers[id(s)]) for f, s, _ in made.derivations if id(s) in numbers]
        )
        self._steps = made.steps
        self._moved = moved
        self._steps_at: dict[tuple[Any, ...], list[Step]] = {}

    def fits(self, recorder: Recorder, tensors: Sequence[NkiTensor]) -> bool:
        """True where what the instruction asked for is as it was, and nothing is to be found."""
        covers = recorder.initialised.written.covers
        for position in self._required:
            if not covers(tensors[position]):
                return False
        for position in self._writes:
            if tensors[position].storage.constant:
                return False
        for position, state in self._states:
            groups, tensor = recorder.psum_groups, tensors[position]
            if groups.state(tensor) is not state or groups.is_modified(tensor):
                return False
        for position, sizes, is_there in self._copies:
            tensor = tensors[position]
            # There may be room for one of two.
            region, nbytes = copy_region(tensor, sizes)
            has_copy = tensor.storage.has_copy(region, nbytes * len(self._copies))
            if has_copy is not is_there or not recorder.keeps_copies:
                return False
        for key, mask in self._lane_needs:
            if not recorder.core.lanes.are_set(key, mask):
                return False
        if not self._scratch:
            return True
        free = recorder.pool.has_free_scratch
        return all(free(taken) for taken, _ in self._scratch)

    def record(
        self, recorder: Recorder, spec: InstructionSpec, line: Line, tensors: Sequence[NkiTensor]
    ) -> int:
        """Record the instruction for these tensors; its index."""
        for _, given in self._scratch:
            recorder.pool.reorder_scratch(given)
        for key, mask, is_set in self._lane_changes:
            recorder.core.lanes.change(key, mask, is_set)
        made = Recorded()
        made.spec = spec
        made.line = line
        made.name, made.engine, made.attributes = self._facts
        made.flops, made.hbm_bytes, made.keeps = self._numbers
        tensor_at = tensors.__getitem__
        made.operands = list(zip(map(tensor_at, self._operands), self._are_writes, strict=True))
        made.writes = list(map(tensor_at, self._writes))
        made.products = list(map(tensor_at, self._products))
        made.missing = []
        made.skipped = []
        made.propagation = spec.undefined
        where: list[Any] = []
        for tensor in tensors:
            where += (tensor.storage.memory or tensor.storage.slot, tensor.offset)
        copies = []
        for position, sizes, _ in self._copies:
            tensor = tensors[position]
            found = tensor.storage.kept_copy(*copy_region(tensor, sizes))
            assert found is not None, "there is room"
            copies.append(found[0])
        place = (*where, *copies)
        steps = self._steps_at.get(place)
        if steps is None:
            steps = self._steps_for(recorder, tensors, copies)
            if len(self._steps_at) >= _PLACES:
                self._steps_at.clear()
            self._steps_at[place] = steps
        return recorder.record(made, steps)

    def _steps_for(
        self, recorder: Recorder, tensors: Sequence[NkiTensor], copies: Sequence[Buffer]
    ) -> list[Step]:
        """The steps on the memory of these tensors, and of copies."""
        views: list[Any] = []
        for position, shape, strides in self._views:
            tensor = tensors[position]
            views.append(tensor.storage.view(tensor.dtype, shape, strides, tensor.offset))
        for memory, (_, sizes, _) in zip(copies, self._copies, strict=True):
            views.append(memory.view(torch.float32, sizes, contiguous_strides(sizes), 0))
        for function, source in self._derived:
            views.append(recorder.derived(function, views[source]))
        steps = self._steps.copy()
        made = recorder.shared([moved.on(views) for moved in self._moved])
        for moved, step in zip(self._moved, made, strict=True):
            steps[moved.at] = step
        return steps


def _by_size(buffers: Sequence[Buffer]) -> tuple[tuple[list[Buffer], list[Buffer]], ...]:
    """Temporaries of each size, as they lie in the pool before, and after they were given back."""
    sizes = dict.fromkeys(buffer.nbytes for buffer in buffers)
    given = [[buffer for buffer in buffers if buffer.nbytes == size] for size in sizes]
    return tuple([(same[::-1], same) for same in given])


def _numbers(made: Recording) -> dict[int, int]:
    """The numbers of an instruction's views, then of copies, then of what was derived from them."""
    numbers: dict[int, int] = {}
    count = 0
    for one in (*made.views, *made.copies):
        numbers.setdefault(id(one[0]), count)
        count += 1
    for _, source, derived in made.derivations:
        if id(source) in numbers:
            numbers.setdefault(id(derived), count)
            count += 1
    return numbers


def template_of(made: Recording, tensors: Sequence[NkiTensor]) -> Template | None:
    """The template of an instruction; None where it asked for what changes, used tensors that are
    no arguments of the call, or their memory in steps in a way that is not known.
    """
    if not made.is_repeatable:
        return None
    positions = {id(tensor): position for position, tensor in reversed(list(enumerate(tensors)))}
    used = [tensor for tensor, _ in (*made.operands, *made.product_states)]
    used += [*made.required, *made.products, *(one[1] for one in (*made.views, *made.copies))]
    if any(id(tensor) not in positions for tensor in used):
        return None
    numbers = _numbers(made)
    memory = {tensor.storage.address for tensor in tensors}
    memory.update(one[0].untyped_storage().data_ptr() for one in made.copies)
    moved = []
    for index, step in enumerate(made.steps):
        found = _moved(index, step, numbers, memory)
        if found is None:
            return None
        if found.places:
            moved.append(found)
    return Template(made, positions, moved)


def _moved(
    index: int, step: Step, numbers: Mapping[int, int], memory: set[int]
) -> _MovedStep | None:
    """A step with the places of views; None where it may hold memory of operands otherwise."""
    if type(step) is not functools.partial:
        return None
    function: Any = step.func
    method = ""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.Tensor):
        function, method = owner, function.__name__
    parts = (function, *step.args, *step.keywords.values())
    places = []
    for part, value in enumerate(parts):
        number = numbers.get(id(value))
        if number is not None:
            places.append((part, number))
        elif not _is_apart(value, memory):
            return None
    return _MovedStep(index, method, parts, tuple(step.keywords), tuple(places))


def _is_apart(value: Any, memory: set[int]) -> bool:
    """True for what certainly holds none of the memory that begins at these addresses."""
    while isinstance(value, np.ndarray):
        value = value.base
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().data_ptr() not in memory
    if isinstance(value, FunctionType):
        return all(_is_apart(cell.cell_contents, memory) for cell in value.__closure__ or ())
    if isinstance(value, BuiltinFunctionType):
        return not isinstance(value.__self__, torch.Tensor)
    if isinstance(value, tuple):
        return all(_is_apart(item, memory) for item in value)
    known = (torch.dtype, Location, Operator, torch._ops.OpOverload)
    kind: type = type(value)
    return is_plain(kind) or isinstance(value, known)
