"""The process of nki-library's suite, as the driver sees it: what was collected, what ran."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from fork_server import Record, receive, send

HERE = Path(__file__).resolve().parent
# Inputs of a case may have so many bytes; what the plugin writes for more.
MAX_INPUT_BYTES = 2 << 30
TOO_LARGE = "inputs too large"
NOT_FOR_TARGET = "not for the target"
# A fork keeps what the simulator knows about a file's kernels for as many cases.
CASES_PER_FORK = 8


class SuiteError(Exception):
    """The suite's process ended before its time; the message is the end of what it printed."""


@dataclass(frozen=True)
class Limits:
    """What one case may use."""

    seconds: int
    gigabytes: int


@dataclass
class Collected:
    """The suite's cases by file: those for the target, counts of others, errors of imports."""

    cases: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


class Suite:
    """The suite's process, which has collected the cases and waits for a plan."""

    def __init__(self, connection: Connection, output: Path) -> None:
        self._connection = connection
        self._output = output
        self.collected = _collected(self._receive())

    def run(
        self,
        cases: dict[str, list[str]],
        limits: Limits,
        jobs: int,
        begin: Callable[[str], None],
        report: Callable[[Record], None],
    ) -> list[Record]:
        """Run cases, given by file; `begin` and `report` hear of each as it begins and ends. Can be
        called once.
        """
        plan = {
            "chunks": _chunks(cases, jobs),
            "jobs": jobs,
            "seconds": limits.seconds,
            "gigabytes": limits.gigabytes,
        }
        send(self._connection, plan)
        results: list[Record] = []
        while "done" not in (record := self._receive()):
            if "begun" in record:
                begin(record["begun"])
                continue
            results.append(record)
            report(record)
        return results

    def _receive(self) -> Record:
        try:
            return receive(self._connection)
        except EOFError:
            raise SuiteError(self._output.read_text()[-6000:]) from None


@contextmanager
def start(
    copy: Path, folder: Path, files: str = "", target: str = "trn2", seed: int = 0
) -> Iterator[Suite]:
    """Collect the suite's files whose path has a match of the regular expression `files`; the
    inputs that cases draw at random come from `seed`.
    """
    paths = (str(path.relative_to(copy)) for path in copy.glob("test/integration/**/test_*.py"))
    chosen = sorted(path for path in paths if re.search(files, path))
    if not chosen:
        raise SuiteError(f"no file of the suite matches {files!r}")
    output = folder / "output.txt"
    ours, theirs = Pipe()
    with output.open("w") as printed:
        process = subprocess.Popen(
            _command(copy, folder, target, chosen),
            cwd=copy,
            env=_environment(copy, theirs, seed),
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
        )
    theirs.close()
    try:
        yield Suite(ours, output)
    finally:
        # The process ends when nobody listens.
        ours.close()
        process.wait()


def _collected(message: Record) -> Collected:
    found = Collected(errors=message["errors"])
    for case in message["cases"]:
        found.cases.setdefault(file_of(case), []).append(case)
    for case, why in message["others"]:
        counts = found.others.setdefault(file_of(case), {})
        counts[why] = counts.get(why, 0) + 1
    return found


def file_of(case: str) -> str:
    """The file of a case."""
    return case.partition("::")[0]


def _chunks(cases: dict[str, list[str]], jobs: int) -> list[list[str]]:
    """Cases for one fork each. Where several run at once, the largest come first."""
    chunks = []
    for listed in cases.values():
        ordered = sorted(listed, key=_size, reverse=True) if jobs > 1 else listed
        chunks += [ordered[i : i + CASES_PER_FORK] for i in range(0, len(ordered), CASES_PER_FORK)]
    return sorted(chunks, key=lambda c: _size(c[0]), reverse=True) if jobs > 1 else chunks


def _size(case: str) -> float:
    """A guess: shapes stand in the names of cases."""
    return sum(math.log(int(number)) for number in re.findall(r"[1-9]\d*", case.partition("[")[2]))


def _environment(copy: Path, connection: Connection, seed: int) -> dict[str, str]:
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(copy), str(copy / "src")]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NEURON_PYTHONHASHSEED": "0",
        "NKILIB_SIMULATION_RUN_ALL": "1",
        "NKI_LIBRARY_CONNECTION": str(connection.fileno()),
        "NKI_LIBRARY_SEED": str(seed),
    }
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        variables.setdefault(name, "1")
    return variables


def _command(copy: Path, folder: Path, target: str, files: Iterable[str]) -> list[str]:
    # Forks share what `--capture fd` writes to, but not what `sys` holds.
    return [
        sys.executable, "-m", "pytest", "-q", "-p", "worker", "-p", "no:cacheprovider",
        "-c", "test/pytest.ini", "--rootdir", str(copy), "--test-mode", "simulation",
        "--platform-target", target, "--output-directory", str(folder / "out"),
        "--force-local-cleanup", "--continue-on-collection-errors", "--tb", "short",
        "--capture", "sys", *files,
    ]  # fmt: skip
