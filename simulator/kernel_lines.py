"""Where in a kernel's source the simulator is called from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

from trnx.simulator.errors import Location

# Not resolved: code objects have the path by which the package was imported.
_HERE = str(Path(__file__).parent) + os.sep


# A line of a kernel, as cheap as can be; `location_of` says where that is.
Line = tuple[CodeType, int]


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
