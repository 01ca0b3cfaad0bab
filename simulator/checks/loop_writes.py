"""What only the bodies of register loops write: a loop may make no turn.

While a body is recorded, what it writes holds something: it is written in that turn. Behind the
loop, elements that nothing else has written count as unwritten under the condition that the loop
made no turn (`program.skipped_rows`); of a loop in others, no turn since the outermost began. Of
what is written at addresses that values decide nothing is known, and nothing is noted.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from trnx.simulator.errors import Location
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import Step, Storage
from trnx.simulator.memory.views import Shape
from trnx.simulator.program.interleaved_loops import Loop
from trnx.simulator.program.skipped_rows import NONE, SkippedRows

# Flags of a gather or loop, and the rows of them that matter.
Sources = list[tuple[torch.Tensor, torch.Tensor]]


class _Write(NamedTuple):
    """Elements of a storage that a body wrote, for as long as something refers to it. `missing`:
    those that held nothing, None for all; `before`: their conditions then, None where none had one.
    """

    storage: weakref.ref[Storage]
    view: tuple[DType, Shape, Shape, int]
    missing: torch.Tensor | None
    before: torch.Tensor | None


@dataclass
class _Body:
    """A body that is being recorded. Storages from `own` on are its own: nothing behind the loop
    uses them.
    """

    loop: Loop
    own: int
    is_sure: bool
    writes: list[_Write] = field(default_factory=list)


class LoopWrites:
    """The bodies that are being recorded, and what they wrote."""

    def __init__(self, written: Shadows, skips: SkippedRows) -> None:
        self._written = written
        self._skips = skips
        # By program, outermost first.
        self._bodies: dict[int, list[_Body]] = defaultdict(list)
        # By program: steps that set the flags before the outermost loop runs.
        self._resets: dict[int, list[Step]] = defaultdict(list)
        # By the identity of its flags: the loop that clears them.
        self._loops: dict[int, Loop] = {}

    def begin(self, core: int, loop: Loop, own: int, is_sure: bool) -> None:
        """A body begins; `is_sure` where the loop makes a turn in any case."""
        self._bodies[core].append(_Body(loop, own, is_sure))

    def note(self, core: int, tensor: NkiTensor) -> None:
        """An instruction of a program is about to write all of `tensor`."""
        bodies = self._bodies.get(core)
        if not bodies or tensor.indirection is not None or self._written.covers(tensor):
            return
        if any(tensor.storage.index >= body.own for body in bodies):
            return
        unsure = next((body for body in reversed(bodies) if not body.is_sure), None)
        if unsure is not None:
            shadow = self._written.of(tensor.storage)
            is_new = shadow.state(tensor) is Covered.NONE
            missing = None if is_new else shadow.mask(tensor) == 0
            view = (tensor.dtype, tensor.shape, tensor.strides, tensor.offset)
            before = self._skips.of(tensor)
            unsure.writes.append(_Write(weakref.ref(tensor.storage), view, missing, before))

    def end(
        self, core: int, where: Location | None, registers: Sequence[VirtualRegister]
    ) -> list[Step]:
        """The innermost body is complete; `registers` have their first value from it. Steps that
        are to run before its loop.
        """
        bodies = self._bodies[core]
        body = bodies.pop()
        loop = f"the body of the loop at {where}"
        if registers and not body.is_sure:
            flags, _ = self._condition(core, body.loop, NONE, "")
            reason = f"is a register that only {loop} sets, and the loop made no turn"
            for register in registers:
                register.lacks = (flags, reason)
        why = (
            f"has elements that only {loop} writes, and the loop made no turn; write them before "
            "the loop (nisa.memset)"
        )
        number_of = functools.cache(
            lambda earlier: self._condition(core, body.loop, earlier, why)[1]
        )
        for write in body.writes:
            self._take_back(write, number_of)
        if bodies:
            return []
        return self._resets.pop(core, [])

    def _take_back(self, write: _Write, number_of: Callable[[int], int]) -> None:
        """What a body wrote is unwritten under the condition that `number_of` has for the one that
        it was under before."""
        storage, missing = write.storage(), write.missing
        if storage is None:
            return
        tensor, shadow = NkiTensor(storage, *write.view), self._written.of(storage)
        if missing is None and write.before is None and shadow.covers(tensor):
            shadow.erase(tensor)
            self._skips.put_all(tensor, number_of(NONE))
            return
        left = shadow.mask(tensor) != 0
        if missing is not None:
            left &= missing
        earlier = torch.full(left.shape, NONE) if write.before is None else write.before
        for number in torch.unique(earlier[left]).tolist():
            places = left & (earlier == number)
            shadow.unmark(tensor, places)
            self._skips.put_one(tensor, places, number_of(number))

    def _condition(self, core: int, loop: Loop, earlier: int, why: str) -> tuple[torch.Tensor, int]:
        """The flag and the number of "the loop made no turn, and what `earlier` says"."""
        flags, (number,) = self._skips.add_gather(1, why)
        sources = [] if earlier == NONE else self._skips.sources(earlier)
        for one in (loop, *(self._loops.get(id(source)) for source, _ in sources)):
            if one is not None:
                one.idle.append(flags)
        self._loops[id(flags)] = loop
        self._resets[core].append(functools.partial(_reset, flags, sources))
        return flags, number


def _reset(flags: torch.Tensor, sources: Sources) -> None:
    """No turn was made yet: elements lack a value if they did before."""
    flags.fill_(not sources or any(bool(source[rows].any()) for source, rows in sources))
