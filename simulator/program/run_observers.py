"""Who is told of the kernels that are simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from trnx.simulator.program.program import Program

_runs: ContextVar[Callable[[Program, str], None] | None] = ContextVar("trnx_runs", default=None)


@contextlib.contextmanager
def observing_runs(observer: Callable[[Program, str], None]) -> Iterator[None]:
    """`observer` is told the Program and the target of every kernel that is simulated in this
    block.
    """
    token = _runs.set(observer)
    try:
        yield
    finally:
        _runs.reset(token)


def has_run(program: Program, target: str) -> None:
    """A kernel was simulated: tell who observes."""
    observer = _runs.get()
    if observer is not None:
        observer(program, target)
