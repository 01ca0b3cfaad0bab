"""`trnx sim` in forks of a process that has imported torch and the simulator already: a script that
runs for milliseconds need not wait seconds for imports, and what it leaves behind is nobody's.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import numpy  # noqa: F401  (what scripts import, once)
import pytest  # noqa: F401
import torch  # noqa: F401

from trnx import cli
from trnx.simulator.frontend import nki_runtime, run_script  # noqa: F401

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Limits:
    """What a run may take: seconds, and GiB of memory."""

    seconds: float
    gigabytes: float


@dataclass(frozen=True)
class Done:
    """How a run ended: its exit status, None where it took too long, and what it printed."""

    status: int | None
    output: str


def simulate_script(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], limits: Limits
) -> Done:
    """`trnx sim ARGUMENTS` in `folder`, with these variables and paths of PYTHONPATH besides."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            _run(arguments, folder, environment, limits, (out, errors))
        status = _wait(process, limits.seconds)
        return Done(status, _text(out) + _text(errors))


def _run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    limits: Limits,
    files: tuple[IO[bytes], IO[bytes]],
) -> NoReturn:
    """In the fork."""
    status = 1
    try:
        os.setsid()
        with open(os.devnull) as nothing:
            for number, file in enumerate((nothing, *files)):
                os.dup2(file.fileno(), number)
        size = int(limits.gigabytes * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = ["trnx", "sim", *arguments]
        cli.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as Python itself ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(process: int, seconds: float) -> int | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_SECONDS)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
