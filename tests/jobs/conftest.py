"""A text to train on, and the launcher of distributed jobs."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from trnx.jobs.train import main

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "scripts" / "jobs" / "train.py"


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two text files, some hundred windows of 32 bytes."""
    folder = tmp_path_factory.mktemp("text")
    lines = [f"The {n}th tensor has {n * n % 97} rows and {n % 13} columns.\n" for n in range(200)]
    (folder / "a.txt").write_text("".join(lines[:120]))
    (folder / "b.txt").write_text("".join(lines[120:]))
    return folder


def environment() -> dict[str, str]:
    """That of a job: no network, one thread a process, no options of another test."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TRNX_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses to write more than so many bytes into a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.fixture
def file_limit() -> Callable[[int], AbstractContextManager[None]]:
    """`file_limit(size)`: a context in which no file grows beyond so many bytes."""
    return largest_file


class Job:
    """A command in a process group of its own, whose standard output is read line by line."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )

    def lines(self) -> Iterator[dict[str, Any]]:
        """The JSON lines of standard output, as they come."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the command and everything that it started."""
        os.killpg(self._process.pid, number)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """(exit status, standard error)."""
        _, errors = self._process.communicate(timeout=300)
        return self._process.returncode, errors

    def end(self) -> None:
        """Kill what is left of it."""
        if self._process.poll() is None:
            self.signal_group(signal.SIGKILL)
            self._process.communicate()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def launch() -> Iterator[Callable[..., Job]]:
    """`launch(*arguments, processes=0)`: train.py, under torchrun where there are processes."""
    jobs: list[Job] = []

    def start(*arguments: str, processes: int = 0) -> Job:
        launcher = [sys.executable]
        if processes:
            launcher += ["-m", "torch.distributed.run", "--standalone"]
            launcher += [f"--nproc-per-node={processes}"]
        jobs.append(Job([*launcher, str(TRAIN), *arguments]))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture
def train(
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, list[dict[str, Any]], str]]:
    """`train(*arguments)`: a run in this process; (status, JSON lines, standard error)."""

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        capsys.readouterr()
        status = main(arguments)
        out, errors = capsys.readouterr()
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return status, lines, errors

    return run
