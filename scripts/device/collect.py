"""`trnx device collect`: all tasks into one archive.

A folder holds what is found; whoever calls again goes on where the last call ended, keeps what is
there, and tries again what failed. A worker runs the tasks of one part after the other; where one
takes longer than its limit the worker is ended, the task is noted, and a new worker goes on.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from trnx.backend.neuron.stack import TARGETS
from trnx.device.errors import CollectError
from trnx.device.records import TASKS, read_records, write_record, write_whole
from trnx.device.redaction import redacted
from trnx.device.tasks import LIMITS, LNC, LNC_VARIABLE, all_tasks, part_of

FORMAT = "trnx-device"
VERSION = 1
ABOUT = "about.json"
# The packages whose versions explain a difference.
_PACKAGES = ("trnx", "torch", "torch-neuronx", "nki", "neuronx-cc", "numpy")
# Seconds for the workers of a collection that was killed to end.
_PATIENCE = 30.0
# Of what a worker wrote to stderr: read, and told.
_READ_BYTES = 1 << 20
_TOLD_CHARACTERS = 2000


@dataclass(frozen=True)
class Collected:
    """The archive, and task -> status."""

    archive: Path
    statuses: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether every task ended with a result."""
        return set(self.statuses.values()) == {"ok"}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"ok": self.ok, "archive": str(self.archive), "tasks": dict(self.statuses)}

    def __str__(self) -> str:
        lines = [f"{task}: {status}" for task, status in self.statuses.items() if status != "ok"]
        done = sum(status == "ok" for status in self.statuses.values())
        return "\n".join(
            [*lines, f"{done} of {len(self.statuses)} tasks ended well; archive: {self.archive}"]
        )


def collect(
    folder: Path,
    target: str,
    *,
    tasks: Sequence[str] | None = None,
    limits: Mapping[str, float] = LIMITS,
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
) -> Collected:
    """Run what is not in `folder` yet, and write `folder`.tar.gz. Raises CollectError."""
    _check_target(target)
    wanted = tuple(all_tasks() if tasks is None else tasks)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder) as lock:
        _about(folder, target)
        known = read_records(folder)
        left = [task for task in wanted if known.get(task, {}).get("status") != "ok"]
        say(f"{len(wanted) - len(left)} of {len(wanted)} tasks are done already")
        for part, of_part in groupby(left, part_of):
            _Part(folder, target, limits[part], lock, say, LNC.get(part)).run(list(of_part))
        found = read_records(folder)
        archive = folder.with_name(folder.name + ".tar.gz")
        write_whole(archive, _packed(folder, wanted))
    return Collected(archive, {task: str(found[task]["status"]) for task in wanted})


def _check_target(target: str) -> None:
    if target not in TARGETS:
        raise CollectError(
            f"TorchNeuron runs on Trn2 and Trn3, and the target is {target}: name that of the "
            "instance with --target"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """One collection at a time: two would time each other. The lock's file is given to workers, so
    that it is held until the last of a killed collection has ended."""
    with (folder / "lock").open("w") as lock:
        last = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > last:
                    raise CollectError(
                        f"another process collects into {folder}; wait for it, or name another "
                        "folder"
                    ) from None
                time.sleep(0.1)
        yield lock.fileno()


def _about(folder: Path, target: str) -> None:
    """Versions of what is measured. Raises CollectError where the folder has results of others."""
    about = {"format": FORMAT, "version": VERSION, "target": target, "versions": _versions()}
    file = folder / ABOUT
    if file.exists() and json.loads(file.read_text()) != about:
        raise CollectError(
            f"{folder} has results of another target or of other versions ({file}): name another "
            "folder"
        )
    write_whole(file, json.dumps(about, indent=1).encode())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": platform.system()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found


def _record(folder: Path, task: str) -> bytes | None:
    file = folder / TASKS / f"{task}.json"
    return file.read_bytes() if file.exists() else None


@dataclass(frozen=True)
class _Part:
    """Tasks that share workers, a time limit (seconds, for each), and logical cores."""

    folder: Path
    target: str
    limit: float
    lock: int
    say: Callable[[str], None]
    lnc: str | None = None

    def run(self, tasks: list[str]) -> None:
        """Run tasks in workers, until each has a new record."""
        while tasks:
            before = {task: _record(self.folder, task) for task in tasks}
            ended = self._run_worker(tasks)
            left = [task for task in tasks if _record(self.folder, task) == before[task]]
            if ended is None or not left:
                return
            # The first one without a record is the one that ended the worker.
            write_record(self.folder, left[0], {**ended, "seconds": self.limit})
            self.say(f"{left[0]}: {ended['status']}")
            tasks = left[1:]

    def _run_worker(self, tasks: Sequence[str]) -> dict[str, Any] | None:
        """What ended the worker before its tasks did, None where it did all."""
        with tempfile.TemporaryFile() as errors:
            worker = subprocess.Popen(
                [sys.executable, "-m", "trnx.device.worker", str(self.folder), self.target, *tasks],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                pass_fds=(self.lock,),
                env={**os.environ, LNC_VARIABLE: self.lnc} if self.lnc else None,
            )
            started: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=_read, args=(worker, started), daemon=True).start()
            try:
                # Until a task begins, the time is that of imports, which a limit covers as well.
                while (line := started.get(timeout=self.limit)) is not None:
                    self.say(line)
                worker.wait(timeout=self.limit)
            except (queue.Empty, subprocess.TimeoutExpired):
                return {"status": "timeout", "error": f"it took longer than {self.limit:g} s"}
            finally:
                _end(worker)
            if worker.returncode == 0:
                return None
            return {"status": "failed", "error": f"ended with {worker.returncode}: {_tail(errors)}"}


def _tail(errors: IO[bytes]) -> str:
    """The end of what a worker wrote. It is cleaned before it is cut: half a secret is not known
    for one."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _READ_BYTES))
    cleaned: str = redacted(errors.read().decode(errors="replace"))
    return cleaned[-_TOLD_CHARACTERS:]


def _read(worker: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        lines.put(line.strip())
    lines.put(None)


def _end(worker: subprocess.Popen[str]) -> None:
    """The worker and what it started, which would hold the device."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            pipe.close()


def _packed(folder: Path, tasks: Sequence[str]) -> bytes:
    """The archive: versions and records, and nothing else of the folder or the machine."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as packed:
        for name in (ABOUT, *(f"{TASKS}/{task}.json" for task in tasks)):
            text = json.dumps(redacted(json.loads((folder / name).read_text())), indent=1).encode()
            member = tarfile.TarInfo(f"{FORMAT}/{name}")
            member.size, member.mtime = len(text), int(time.time())
            packed.addfile(member, io.BytesIO(text))
    return data.getvalue()
