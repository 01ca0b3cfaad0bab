"""The first instructions of a kernel that would take long to record."""

from __future__ import annotations

import contextlib
import contextvars
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trnx.simulator.findings import Findings
from trnx.simulator.frontend.arguments import Arguments
from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.language.recorder import CURRENT
from trnx.simulator.multicore.cores import Core
from trnx.simulator.precision import FullPrecision
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.observer import Observer, Recorded, observing


@dataclass(frozen=True)
class Beginning:
    """Recorded instructions; `is_whole` where the kernel has no more of them."""

    rows: InstructionTable
    is_whole: bool


class _EndOfBeginning(BaseException):
    """No Exception, for a kernel not to catch it."""


class _Limit(Observer):
    """Ends each program of a grid after `most` instructions, but for register loops, which are
    recorded to their end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[int] = Counter()
        self.simulator: Simulator | None = None
        self.has_ended = False

    def on_instruction(self, instruction: Recorded) -> None:
        self._counts[instruction.core] += 1
        is_open = self.simulator is not None and self.simulator.loops.is_open
        if self._counts[instruction.core] > self._most and not is_open:
            self.has_ended = True
            raise _EndOfBeginning


def record_beginning(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    grid: tuple[int, ...],
    options: TraceOptions,
    most: int,
) -> Beginning:
    """The first `most` instructions of each program of a launch, checked as they are recorded.
    Raises what recording raises; programs that wait for one that has ended raise, too."""

    def work() -> Beginning:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            FullPrecision(),
            observing(_Limit(most)) as limit,
        ):
            simulator = Simulator(options, grid, Findings(options.strict, options.warn))
            limit.simulator = simulator
            positional, keywords = Arguments(simulator).convert_all(function, tuple(arguments), {})

            def body(core: Core) -> None:
                CURRENT.set(simulator)
                with contextlib.suppress(_EndOfBeginning):
                    function(*positional, **keywords)
                simulator.keep_loops(core)

            simulator.cores.run(body)
            simulator.rows.seal()
            simulator.forget()
            return Beginning(simulator.rows, not limit.has_ended)

    return contextvars.copy_context().run(work)
