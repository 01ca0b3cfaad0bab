"""Which simulator the calling kernel belongs to, and where in the kernel it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from trnx.simulator.errors import Location, TrnxError

if TYPE_CHECKING:
    from trnx.simulator.program import Program
    from trnx.simulator.simulator import Simulator

CURRENT: ContextVar[Simulator | None] = ContextVar("trnx_simulator", default=None)
_float32: ContextVar[bool] = ContextVar("trnx_float32", default=False)
_runs: ContextVar[Callable[[Program, str], None] | None] = ContextVar("trnx_runs", default=None)
# Not resolved: code objects have the path by which the package was imported.
_HERE = str(Path(__file__).parent) + os.sep


# A line of a kernel, as cheap as can be; `location_of` says where that is.
Line = tuple[CodeType, int]


@contextmanager
def observing_runs(observer: Callable[[Program, str], None]) -> Iterator[None]:
    """`observer` is told the Program and the target of every kernel that is simulated in this
    block."""
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


@contextmanager
def storing_float32() -> Iterator[None]:
    """Simulators made in this block store floating point types below 32 bits as float32."""
    token = _float32.set(True)
    try:
        yield
    finally:
        _float32.reset(token)


def stores_float32() -> bool:
    """True within `storing_float32`."""
    return _float32.get()


class OutsideKernelError(TrnxError):
    """An NKI function was called outside of a kernel."""


def current(what: str) -> Simulator:
    """The simulator of the running kernel. Raises OutsideKernelError, which names `what` was
    called.
    """
    simulator = CURRENT.get()
    if simulator is None:
        raise OutsideKernelError(
            f"{what} was called outside of a kernel; call it in a function that "
            "trnx.simulator.simulate or trace runs"
        )
    return simulator


def current_or_none() -> Simulator | None:
    """The simulator of the running kernel, if any."""
    return CURRENT.get()


def enter(simulator: Simulator) -> object:
    """Make `simulator` the current one; give the result to `leave`."""
    return CURRENT.set(simulator)


def leave(token: object) -> None:
    """Undo `enter`."""
    CURRENT.reset(token)  # type: ignore[arg-type]


def kernel_line(frame: FrameType | None = None) -> Line | None:
    """Code and line of the innermost frame outside of the simulator, from `frame` (or the caller's)
    outwards.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def is_simulator_frame(frame: FrameType) -> bool:
    """True for code of the simulator."""
    return frame.f_code.co_filename.startswith(_HERE)


def kernel_location() -> Location | None:
    """The kernel's source line that is being executed."""
    found = kernel_line(sys._getframe(1))
    return None if found is None else location_of(found)


def location_of(line: Line) -> Location:
    """The same for messages."""
    code, number = line
    return Location(code.co_filename, number, code.co_name)
