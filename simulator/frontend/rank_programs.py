"""Kernels over ranks: run with all checks, or recorded once and replayed.

    outputs = simulate_ranks(kernel, 4)([(x0,), (x1,), (x2,), (x3,)])
    program = trace_ranks(kernel, [(spec,)] * 4)
    outputs = program.run([[x0], [x1], [x2], [x3]])

Ranks run one after the other and change places in collectives, so a run of all is one order of
steps, which a replay follows: a collective is the step in which the last rank to come moved the
data of all. That some ranks wait for others forever is found when they are recorded, and for
collectives in register loops, which may turn differently in every run, in each replay.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.frontend.options import Grid, TraceOptions
from trnx.simulator.frontend.tracing import record, simulate
from trnx.simulator.hardware import DEFAULT_TARGET
from trnx.simulator.memory.storage import Step
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.multicore.baton import Baton
from trnx.simulator.multicore.ranks import Rank, RankArgumentsError
from trnx.simulator.precision import FullPrecision
from trnx.simulator.program.program import BindingError, Program

RankArguments = Sequence[Any] | Mapping[str, Any]
RankTensors = Sequence[Sequence[torch.Tensor]]


class RankProgram:
    """What a kernel does on all ranks; `programs` are the ranks' own parts of it, which hold the
    instructions, and do not run alone.
    """

    def __init__(self, programs: Sequence[Program], order: Sequence[tuple[int, int]]) -> None:
        self.programs = tuple(programs)
        self._steps = _in_order(self.programs, order)
        self._needs_precision = any(program.matmul_flops for program in self.programs)
        self._lock = fork_lock(self, threading.Lock)

    @property
    def inputs(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """What each rank takes."""
        return tuple(program.inputs for program in self.programs)

    @property
    def outputs(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """What each rank returns."""
        return tuple(program.outputs for program in self.programs)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What a run executes, in order."""
        return tuple(self._steps)

    def run(
        self, inputs: RankTensors, outputs: RankTensors | None = None
    ) -> list[tuple[torch.Tensor, ...]]:
        """Replay on the inputs of every rank; as `Program.run`. Raises BindingError, and
        DeadlockError where collectives in register loops do not meet.
        """
        given = [None] * len(self.programs) if outputs is None else list(outputs)
        if len(inputs) != len(self.programs) or len(given) != len(self.programs):
            raise BindingError(
                f"{len(self.programs)} ranks need inputs and outputs of each, not of {len(inputs)} "
                f"and {len(given)}"
            )
        precision = FullPrecision() if self._needs_precision else contextlib.nullcontext()
        with self._lock, precision:
            bound = [
                program.bind(tensors, wanted)
                for program, tensors, wanted in zip(self.programs, inputs, given, strict=True)
            ]
            for step in self._steps:
                step()
            return [one.deliver(wanted) for one, wanted in zip(bound, given, strict=True)]

    def release(self) -> None:
        """Drop every reference to tensors of the last run."""
        with self._lock:
            for program in self.programs:
                program.release()


def _in_order(programs: Sequence[Program], order: Sequence[tuple[int, int]]) -> list[Step]:
    """The steps of all. `order`: whenever a rank waited or ended, its number and how many steps it
    had recorded, those that begin a run not counted.
    """
    recorded = dict(order)
    at = [len(program.steps) - recorded[rank] for rank, program in enumerate(programs)]
    first = list(at)
    steps = [
        step for program, count in zip(programs, at, strict=True) for step in program.steps[:count]
    ]
    for rank, count in order:
        end = first[rank] + count
        steps += programs[rank].steps[at[rank] : end]
        at[rank] = end
    return steps


def simulate_ranks(
    kernel: Any,
    ranks: int,
    target: str = DEFAULT_TARGET,
    *,
    grid: Grid = None,
    strict: bool = True,
    warn: Collection[str] = (),
    borrow: bool = False,
) -> Callable[[Sequence[RankArguments]], list[Any]]:
    """`simulate_ranks(kernel, n)(arguments)` runs the kernel on n ranks with values and all checks.

    `arguments` holds the arguments of every rank, positional or a mapping by name; the result is a
    list of what each rank's kernel returns. Every rank is a launch with `grid` (or of `kernel[2]`).
    `strict` and `warn` as in `trace`, `borrow` as in `simulate`: several ranks may borrow one
    tensor.
    """

    def call(arguments: Sequence[RankArguments]) -> list[Any]:
        def body(rank: Rank) -> Any:
            run = simulate(kernel, target, grid, strict=strict, warn=warn, rank=rank, borrow=borrow)
            args, kwargs = _given(arguments[rank.index])
            return run(*args, **kwargs)

        if len(arguments) != ranks or ranks < 1:
            raise RankArgumentsError(f"{ranks} ranks need as many arguments, not {len(arguments)}")
        return _on_all(ranks, body)[0]

    return call


def trace_ranks(
    kernel: Any,
    arguments: Sequence[RankArguments],
    *,
    target: str = DEFAULT_TARGET,
    grid: Grid = None,
    values: bool = False,
    strict: bool = True,
    warn: Collection[str] = (),
) -> RankProgram:
    """The Program of `kernel` on as many ranks as there are arguments, positional or mappings by
    name. Everything else as in `trace`.
    """

    def body(rank: Rank) -> Program:
        args, kwargs = _given(arguments[rank.index])
        options = TraceOptions(target, grid, values, strict, warn, rank)
        return record(kernel, args, kwargs, options).program

    if not arguments:
        raise RankArgumentsError("a kernel runs on one rank at least")
    program = RankProgram(*_on_all(len(arguments), body))
    program.release()
    return program


def _given(arguments: RankArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(arguments, Mapping):
        return (), dict(arguments)
    return tuple(arguments), {}


def _on_all(count: int, body: Callable[[Rank], Any]) -> tuple[list[Any], list[tuple[int, int]]]:
    """What `body` returns for every rank, and the order in which ranks took turns."""
    baton, order = Baton(count, "rank"), list[tuple[int, int]]()
    results: list[Any] = [None] * count

    def one(index: int) -> None:
        results[index] = body(Rank(index, count, baton, order))

    baton.run([functools.partial(one, index) for index in range(count)])
    return results, order
