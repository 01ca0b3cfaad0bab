"""The programs of a grid: one thread each, which meet in `core_barrier` and `sendrecv`.

The recorded order is one serial order of the programs, which replay follows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch

from trnx.simulator.baton import Baton
from trnx.simulator.baton import DeadlockError as DeadlockError
from trnx.simulator.joint import Joint, Loop
from trnx.simulator.loops import Loops
from trnx.simulator.placed import ManualMemory

if TYPE_CHECKING:
    from trnx.simulator.simulator import Simulator

_LOOP_END = "the end of a register loop with meetings"


class Core:
    """State of one program: its loops, its on-chip tensors, its place in shared HBM's order."""

    def __init__(self, simulator: Simulator, index: int) -> None:
        self.index = index
        self.loops = Loops(simulator)
        self.manual = ManualMemory()
        self.shared_next = 0


class Cores:
    """Runs the programs of a grid for `simulator`."""

    def __init__(self, simulator: Simulator, count: int) -> None:
        self._simulator = simulator
        self._count = count
        self._baton = Baton(count, "program")
        self._results: dict[int, Any] = {}

    def run(self, body: Callable[[Core], Any]) -> Any:
        """Run `body` for every program; the first one's result. Raises what failed first."""
        if self._count == 1:
            core = self._simulator.core = Core(self._simulator, 0)
            return body(core)
        self._baton.run([functools.partial(self._program, body, i) for i in range(self._count)])
        return self._results[0]

    def _program(self, body: Callable[[Core], Any], index: int) -> None:
        core = self._simulator.core = Core(self._simulator, index)
        # Modes of torch belong to a thread.
        with torch.inference_mode(False), torch.no_grad():
            self._results[index] = body(core)

    def meet(self, key: Hashable, brought: Any) -> dict[int, Any] | None:
        """Wait until all programs are here. The last to arrive gets what each brought, the others
        None.
        """
        core = self._simulator.core
        arrived = self._baton.meet(core.index, key, frozenset(range(self._count)), brought)
        self._simulator.core = core
        return arrived

    def join(self, loop: Loop, with_ranks: bool) -> None:
        """Complete a loop in which programs meet, and ranks: the last to come records the loops of
        all as one step. This orders nothing on the device.
        """
        rank = self._simulator.rank
        loops: dict[int, Any] | None = {self._simulator.core.index: loop}
        if self._count > 1:
            loops = self.meet(_LOOP_END, loop)
        if loops is None:
            return
        everyone: dict[int, Any] | None = {rank.index: loops}
        if with_ranks:
            recorded = len(self._simulator.steps)
            everyone = rank.meet(_LOOP_END, range(rank.count), loops, recorded)
        if everyone is not None:
            self._simulator.append_steps(
                [
                    Joint(
                        {
                            (rank, program): one
                            for rank, programs in everyone.items()
                            for program, one in programs.items()
                        }
                    )
                ]
            )
