"""What only the bodies of register loops write: a loop may make no turn.

While a body is recorded, what it writes holds something: it is written in that turn. Behind the
loop, elements that nothing else has written count as unwritten under the condition that the loop
made no turn (`program.skipped_rows`); of a loop in others, no turn since the outermost began. Of
what is written at addresses that values decide nothing is known, and nothing is noted.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from trnx.simulator.errors import Location
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import Step
from trnx.simulator.program.interleaved_loops import Loop
from trnx.simulator.program.skipped_rows import NONE, SkippedRows

# Flags of a gather or loop, and the rows of them that matter.
Sources = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass
class _Body:
    """A body that is being recorded. Storages from `own` on are its own: nothing behind the loop
    uses them. `writes` are (tensor, elements that held nothing, their conditions before).
    """

    loop: Loop
    own: int
    is_sure: bool
    writes: list[tuple[NkiTensor, torch.Tensor, torch.Tensor | None]] = field(default_factory=list)


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
            missing = self._written.of(tensor.storage).mask(tensor) == 0
            unsure.writes.append((tensor, missing, self._skips.of(tensor)))

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
        numbers: dict[int, int] = {}
        for tensor, chosen, before in body.writes:
            shadow = self._written.of(tensor.storage)
            left = chosen & (shadow.mask(tensor) != 0)
            for number, places in _by_condition(left, before):
                if number not in numbers:
                    numbers[number] = self._condition(core, body.loop, number, why)[1]
                shadow.unmark(tensor, places)
                self._skips.put_one(tensor, places, numbers[number])
        if bodies:
            return []
        return self._resets.pop(core, [])

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


def _by_condition(
    left: torch.Tensor, before: torch.Tensor | None
) -> list[tuple[int, torch.Tensor]]:
    """Each condition of the elements where `left`, and where it is theirs."""
    if before is None:
        return [(NONE, left)] if bool(left.any()) else []
    found = torch.unique(before[left]).tolist()
    return [(number, left & (before == number)) for number in found]


def _reset(flags: torch.Tensor, sources: Sources) -> None:
    """No turn was made yet: elements lack a value if they did before."""
    flags.fill_(not sources or any(bool(source[rows].any()) for source, rows in sources))
