"""One process computes an entry, others wait for it: a file that only one of them can create.

No lock of the file system is held, because not every shared one has them. A process that dies
leaves its file behind: on its own machine the others see that the process is gone, on any other
they see that the file is old. Who has waited for long enough computes the entry too, so that the
worst that can happen is that something is computed twice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

WAIT_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1


def take(lock: Path) -> bool:
    """Whether this process is the one that computes now, and has to `leave` when it is done. Raises
    OSError where no file can be created."""
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {socket.gethostname()}")
    return True


def leave(lock: Path) -> None:
    """The end of a turn."""
    with contextlib.suppress(OSError):
        lock.unlink()


def wait(lock: Path, is_there: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
    """Wait until the entry is there (True), or nobody computes it any more, or for so long."""
    end = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while time.monotonic() < end:
        if is_there():
            return True
        if not lock.exists() or _is_abandoned(lock, seconds):
            return is_there()
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return is_there()


def _is_abandoned(lock: Path, seconds: float) -> bool:
    """Whether its process is gone; then the file is removed, for the next one to take the turn."""
    try:
        text, age = lock.read_text(encoding="utf-8"), time.time() - lock.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return False
    number, _, host = text.partition(" ")
    if host == socket.gethostname() and number.isdecimal():
        is_gone = not _is_alive(int(number))
    else:  # of another machine, or killed before it wrote who it is
        is_gone = age > (seconds if host else 1.0)
    if is_gone:
        with contextlib.suppress(OSError):
            lock.unlink()
    return is_gone


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
