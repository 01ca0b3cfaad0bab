"""The programs of a grid: one thread each, which meet in `core_barrier` and `sendrecv`.

The recorded order is one serial order of the programs, which replay follows.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

from trnx.simulator.errors import Location
from trnx.simulator.memory.placed import ManualMemory
from trnx.simulator.memory.storage import Step
from trnx.simulator.multicore.baton import Baton
from trnx.simulator.multicore.ranks import Rank
from trnx.simulator.program.interleaved_loops import InterleavedLoops, Loop
from trnx.simulator.program.loops import LoopRecorder, Loops

_LOOP_END = "the end of a register loop with meetings"


class GridRecorder(LoopRecorder, Protocol):
    """What the programs of a grid ask of who records them; `core` is the one that is running."""

    core: Core
    rank: Rank
    steps: list[Step]


class Lanes:
    """Which lanes of files of registers hold a value, as bits by the file's key."""

    def __init__(self) -> None:
        self._set: dict[str, int] = {}

    def are_set(self, key: str, mask: int) -> bool:
        """True where all lanes of `mask` hold a value."""
        return self._set.get(key, 0) & mask == mask

    def change(self, key: str, mask: int, is_set: bool) -> None:
        """The lanes of `mask` get a value, or lose theirs."""
        held = self._set.get(key, 0)
        self._set[key] = held | mask if is_set else held & ~mask


class Core:
    """State of one program: its loops, its on-chip tensors, its place in shared HBM's order."""

    def __init__(self, recorder: GridRecorder, index: int) -> None:
        self.index = index
        self.loops = Loops(recorder)
        self.manual = ManualMemory()
        self.shared_next = 0
        self.lanes = Lanes()
        # Constants that the program has made, by line.
        self.constants: Counter[Location | None] = Counter()


class Cores:
    """Runs the programs of a grid for `recorder`."""

    def __init__(self, recorder: GridRecorder, count: int) -> None:
        self._recorder = recorder
        self._count = count
        self._baton = Baton(count, "program")
        self._results: dict[int, Any] = {}

    def run(self, body: Callable[[Core], Any]) -> Any:
        """Run `body` for every program; the first one's result. Raises what failed first."""
        if self._count == 1:
            core = self._recorder.core = Core(self._recorder, 0)
            return body(core)
        self._baton.run([functools.partial(self._program, body, i) for i in range(self._count)])
        return self._results[0]

    def _program(self, body: Callable[[Core], Any], index: int) -> None:
        core = self._recorder.core = Core(self._recorder, index)
        # Modes of torch belong to a thread.
        with torch.inference_mode(False), torch.no_grad():
            self._results[index] = body(core)

    def meet(self, key: Hashable, payload: Any) -> dict[int, Any] | None:
        """Wait until all programs are here. The last to arrive gets everyone's payload, the others
        None.
        """
        core = self._recorder.core
        arrived = self._baton.meet(core.index, key, frozenset(range(self._count)), payload)
        self._recorder.core = core
        return arrived

    def join(self, loop: Loop, with_ranks: bool) -> None:
        """Complete a loop in which programs meet, and ranks: the last to come records the loops of
        all as one step. This orders nothing on the device.
        """
        rank = self._recorder.rank
        loops: dict[int, Any] | None = {self._recorder.core.index: loop}
        if self._count > 1:
            loops = self.meet(_LOOP_END, loop)
        if loops is None:
            return
        everyone: dict[int, Any] | None = {rank.index: loops}
        if with_ranks:
            recorded = len(self._recorder.steps)
            everyone = rank.meet(_LOOP_END, range(rank.count), loops, recorded)
        if everyone is not None:
            self._recorder.append_steps(
                [
                    InterleavedLoops(
                        {
                            (rank, program): one
                            for rank, programs in everyone.items()
                            for program, one in programs.items()
                        }
                    )
                ]
            )
