"""Register loops, as steps; and loops of several programs or ranks that meet inside of them.

A loop alone calls the steps of its body. Where programs meet in their loops, none of them can run
to its end before the others: their loops are one step, `InterleavedLoops`, which runs the bodies
side by side in one thread. A body waits at a `WaitPoint`; when all who take part in its rendezvous
are there, the one that recorded what is done there goes on first, as it did when it was recorded.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from trnx.simulator.errors import DeadlockError, Location
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.memory.storage import Step

Bound = int | VirtualRegister
# Rank and program.
Party = tuple[int, int]


@dataclass(eq=False)
class Rendezvous:
    """Who waits for each other, and who goes on first."""

    name: str
    parties: tuple[Party, ...]
    first: Party


@dataclass(eq=False)
class WaitPoint:
    """The place in a body where its program waits; the rendezvous is known when all have come."""

    where: Location | None
    rendezvous: Rendezvous | None = None
    # What the first run does when all have come.
    met: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Nothing: whoever runs the body looks for it."""


@dataclass(eq=False)
class Loop(ABC):
    """A recorded loop; `meets` where its body has a wait point, in a loop within it or itself.

    `watched` are the steps with those that only the first run has, as long as there are any. The
    first turn clears the flags `idle`.
    """

    steps: list[Step] = field(default_factory=list)
    meets: bool = False
    watched: list[Step] | None = None
    idle: list[torch.Tensor] = field(default_factory=list)

    @abstractmethod
    def turns(self) -> Iterator[None]:
        """Once for every turn."""

    def _noted_turns(self) -> Iterator[None]:
        """The turns, of which the first clears the flags."""
        turns = self.turns()
        for _ in itertools.islice(turns, 1):
            for flags in self.idle:
                flags.zero_()
            yield
        yield from turns

    def __call__(self) -> None:
        """Run it alone."""
        steps = self.watched or self.steps
        for _ in self._noted_turns():
            for step in steps:
                step()

    def waits(self) -> Iterator[WaitPoint]:
        """Run it from rendezvous to rendezvous."""
        steps = self.watched or self.steps
        for _ in self._noted_turns():
            for step in steps:
                if type(step) is WaitPoint:
                    yield step
                elif isinstance(step, Loop) and step.meets:
                    yield from step.waits()
                else:
                    step()

    def forget(self) -> None:
        """The first run is over."""
        self.watched = None
        for step in self.steps:
            if isinstance(step, Loop):
                step.forget()
            elif type(step) is WaitPoint:
                step.met = None


@dataclass(eq=False, kw_only=True)
class ForLoop(Loop):
    """`for counter in range(lower, upper, stride)`; bounds are read before the first turn."""

    counter: VirtualRegister
    lower: Bound
    upper: Bound
    stride: int

    def turns(self) -> Iterator[None]:
        """The counter has its value in each."""
        for i in range(_value(self.lower), _value(self.upper), self.stride):
            self.counter.value.fill_(i)
            yield


@dataclass(eq=False, kw_only=True)
class WhileLoop(Loop):
    """`condition = init; while condition: ...; condition = following`."""

    init: VirtualRegister
    condition: VirtualRegister
    following: VirtualRegister

    def turns(self) -> Iterator[None]:
        """As long as the condition is not zero."""
        self.condition.value.copy_(self.init.value)
        while self.condition.value.item():
            yield
            self.condition.value.copy_(self.following.value)


def _value(bound: Bound) -> int:
    return bound if isinstance(bound, int) else int(bound.value.item())


@dataclass(eq=False)
class InterleavedLoops:
    """The loops of all who meet in them, as one step."""

    loops: dict[Party, Loop]

    def __call__(self) -> None:
        """Run all to their end. Raises DeadlockError where some wait and none can come."""
        running = {party: loop.waits() for party, loop in self.loops.items()}
        ready = deque(sorted(running))
        waiting: dict[Party, WaitPoint] = {}
        while ready:
            party = ready.popleft()
            wait_point = next(running[party], None)
            if wait_point is None:
                continue
            waiting[party] = wait_point
            rendezvous = wait_point.rendezvous
            assert rendezvous is not None
            if all(
                p in waiting and waiting[p].rendezvous is rendezvous for p in rendezvous.parties
            ):
                for one in rendezvous.parties:
                    came = waiting.pop(one)
                    if came.met is not None:
                        came.met()
                ready.appendleft(rendezvous.first)
                ready.extend(one for one in rendezvous.parties if one != rendezvous.first)
        if waiting:
            raise self._deadlock(waiting)

    def _deadlock(self, waiting: dict[Party, WaitPoint]) -> DeadlockError:
        lines = []
        for party, wait_point in waiting.items():
            rendezvous = wait_point.rendezvous
            assert rendezvous is not None
            missing = [self._name(p) for p in rendezvous.parties if waiting.get(p) is None]
            elsewhere = [
                self._name(p)
                for p in rendezvous.parties
                if p in waiting and waiting[p].rendezvous is not rendezvous
            ]
            absent = [f"{name}, which has left its loop" for name in missing]
            absent += [f"{name}, which waits elsewhere" for name in elsewhere]
            lines.append(
                f"{self._name(party)} waits in {rendezvous.name} at {wait_point.where} for "
                + " and ".join(absent)
            )
        location = next(iter(waiting.values())).where
        return DeadlockError("deadlock", "; ".join(lines), location)

    def _name(self, party: Party) -> str:
        rank, program = party
        if all(other == 0 for other, _ in self.loops):
            return f"program {program}"
        if all(other == 0 for _, other in self.loops):
            return f"rank {rank}"
        return f"program {program} of rank {rank}"


def complete_rendezvous(name: str, wait_points: dict[Party, WaitPoint], first: Party) -> None:
    """All have come to their wait points."""
    rendezvous = Rendezvous(name, tuple(sorted(wait_points)), first)
    for wait_point in wait_points.values():
        wait_point.rendezvous = rendezvous
