"""What only the values of a run leave unwritten: rows that a gather may skip (`oob_mode.skip`), and
what the body of a register loop writes, which may make no turn.

Such elements count as unwritten, with a condition: the rows of gathers of which one must have been
skipped; a loop counts as a gather of one row. Who reads them gets a step that looks; who hands a
lack of values on hands on the condition. Gathers in register loops are left out, where a row may
come from an earlier turn.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from trnx.simulator.errors import Location, UninitialisedReadError
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import Step, Storage
from trnx.simulator.program.propagation import Propagation

# Elements without a condition.
NONE = -1
# Why elements hold nothing, behind what reads them.
SKIPPED = (
    "has elements that a gather skipped (oob_mode.skip) and nothing else has written; write them "
    "first (nisa.memset)"
)
# A read: what it reads, and its line.
Read = tuple[str, Location | None]


@dataclass(frozen=True)
class Condition:
    """Elements lack a value where one of `rows` (gather, row) was skipped, and `why`; `read` is the
    first that handed it on.
    """

    rows: frozenset[tuple[int, int]]
    why: str
    read: Read | None = None


class SkippedRows:
    """Conditions of elements, by storage; they matter where an element counts as unwritten. Tensors
    of conditions have their numbers, and NONE.
    """

    def __init__(self) -> None:
        # int32 by byte of a storage, or one number for all of them.
        self._held: dict[int, torch.Tensor] = {}
        self._uniform: dict[int, int] = {}
        self._conditions: list[Condition] = []
        self._numbers: dict[Condition, int] = {}
        # By gather: the rows that lack a value after it, in this run.
        self._flags: list[torch.Tensor] = []

    def add_gather(self, rows: int, why: str = SKIPPED) -> tuple[torch.Tensor, list[int]]:
        """Flags for the rows of a new gather, and a condition for each row."""
        gather = len(self._flags)
        self._flags.append(torch.zeros(rows, dtype=torch.bool, device="cpu"))
        numbers = [self._number(Condition(frozenset({(gather, row)}), why)) for row in range(rows)]
        return self._flags[gather], numbers

    def of(self, tensor: NkiTensor) -> torch.Tensor | None:
        """The conditions of the view's elements; None where its storage has none."""
        index = tensor.storage.index
        if index in self._uniform:
            return torch.full(tensor.shape, self._uniform[index], dtype=torch.int32, device="cpu")
        held = self._held.get(index)
        return None if held is None else _view(held, tensor).amax(-1)

    def put(self, tensor: NkiTensor, chosen: torch.Tensor, numbers: torch.Tensor) -> None:
        """Elements of the view where `chosen` have the conditions `numbers` from now on."""
        view = _view(self._conditions_of(tensor.storage), tensor)
        view.copy_(torch.where(chosen.unsqueeze(-1), numbers.unsqueeze(-1), view))

    def _conditions_of(self, storage: Storage) -> torch.Tensor:
        """The condition of each byte."""
        held = self._held.get(storage.index)
        if held is None:
            number = self._uniform.pop(storage.index, NONE)
            held = torch.full((storage.nbytes,), number, dtype=torch.int32, device="cpu")
            self._held[storage.index] = held
        return held

    def put_all(self, tensor: NkiTensor, number: int) -> None:
        """All elements of the view have one condition from now on."""
        storage = tensor.storage
        if tensor.size * tensor.dtype.itemsize == storage.nbytes:
            self._held.pop(storage.index, None)
            self._uniform[storage.index] = number
        else:
            _view(self._conditions_of(storage), tensor).fill_(number)

    def put_one(self, tensor: NkiTensor, chosen: torch.Tensor, number: int) -> None:
        """Elements of the view where `chosen` have one condition from now on."""
        if bool(chosen.all()):
            self.put_all(tensor, number)
        else:
            self.put(tensor, chosen, torch.full(chosen.shape, number, dtype=torch.int32))

    def clear(self, tensor: NkiTensor, chosen: torch.Tensor) -> None:
        """Elements of the view where `chosen` lack a value in any case."""
        if tensor.storage.index in self._held or tensor.storage.index in self._uniform:
            self.put(tensor, chosen, torch.full(chosen.shape, NONE, dtype=torch.int32))

    def read_as(self, numbers: torch.Tensor, read: Read) -> torch.Tensor:
        """The conditions as a read hands them on: what says that elements lack a value."""
        named = torch.full_like(numbers, NONE)
        for number in _distinct(numbers):
            known = self._conditions[number]
            first = known if known.read else replace(known, read=read)
            named[numbers == number] = self._number(first)
        return named

    def placed(
        self, propagation: Propagation, operand: str, numbers: torch.Tensor, target: NkiTensor
    ) -> torch.Tensor | None:
        """The conditions of `target` from those of an operand; None where that cannot be said."""
        found = none_of(target)
        for number in _distinct(numbers):
            mask = propagation.place(operand, numbers == number, target)
            if mask is None or target.indirection is not None:
                return None
            found = self.either(found, torch.where(mask, number, NONE).to(torch.int32))
        return found

    def either(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """For each element the condition that holds where one of two does."""
        joined = torch.maximum(one, other)
        both = (one != NONE) & (other != NONE) & (one != other)
        if bool(both.any()):
            for first, second in torch.unique(torch.stack((one[both], other[both]), 1), dim=0):
                left, right = self._conditions[int(first)], self._conditions[int(second)]
                union = Condition(left.rows | right.rows, left.why, left.read or right.read)
                joined[both & (one == first) & (other == second)] = self._number(union)
        return joined

    def checks(self, numbers: torch.Tensor) -> list[Step]:
        """Steps that raise UninitialisedReadError where one of the conditions holds."""
        steps: list[Step] = []
        for number in _distinct(numbers):
            condition = self._conditions[number]
            what, where = condition.read or ("", None)
            for flags, rows in self.sources(number):
                message = f"{what} {condition.why}"
                steps.append(functools.partial(_require_held, flags, rows, message, where))
        return steps

    def why(self, number: int) -> str:
        """Why elements of a condition lack a value."""
        return self._conditions[number].why

    def sources(self, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What decides about a condition: flags of gathers, and rows of them."""
        rows = self._conditions[number].rows
        return [
            (self._flags[gather], torch.tensor(sorted(row for one, row in rows if one == gather)))
            for gather in sorted({gather for gather, _ in rows})
        ]

    def forget(self, indices: Iterable[int]) -> None:
        """These storages are gone."""
        for held in (self._held, self._uniform):
            for index in held.keys() & set(indices):
                del held[index]

    def _number(self, condition: Condition) -> int:
        found = self._numbers.get(condition)
        if found is None:
            found = self._numbers[condition] = len(self._conditions)
            self._conditions.append(condition)
        return found


def require_turn(flags: torch.Tensor, what: str, where: Location | None) -> None:
    """A step: raises UninitialisedReadError while a loop has made no turn."""
    if bool(flags.any()):
        raise UninitialisedReadError("uninitialised-read", what, where)


def none_of(tensor: NkiTensor) -> torch.Tensor:
    """No condition for any element of the view."""
    return torch.full(tensor.shape, NONE, dtype=torch.int32, device="cpu")


def _view(held: torch.Tensor, tensor: NkiTensor) -> torch.Tensor:
    """The bytes of the view's elements, in the last dimension."""
    size = tensor.dtype.itemsize
    strides = [stride * size for stride in tensor.strides]
    return held.as_strided((*tensor.shape, size), (*strides, 1), tensor.offset * size)


def _distinct(numbers: torch.Tensor) -> list[int]:
    return [int(number) for number in torch.unique(numbers).tolist() if number != NONE]


def _require_held(
    flags: torch.Tensor, rows: torch.Tensor, what: str, where: Location | None
) -> None:
    if bool(flags[rows].any()):
        raise UninitialisedReadError("uninitialised-read", what, where)
