"""The folder that a run over days keeps: one JSON file for each case, written whole or not at all.

A file's name is the digest of what decides the result: the suite's sources as they are run, the
target, the seed, the case, trnx's version and sources, and those of the process that runs cases.
A case that begins has a file before it runs: where the whole run ends meanwhile (the system takes
its memory, the machine stops), the next run finds it, begins the case once more, and after
`CHANCES` records it as killed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fork_server import KILLED, Record

from trnx.backend.cache.entries import text_digest
from trnx.backend.cache.identity import versions
from trnx.device.records import write_whole

CHANCES = 2
# What runs in the process of the cases; the other files of the folder choose, keep and report.
WORKER = Path(__file__).resolve().parent
WORKER_FILES = ("fork_server.py", "ranks.py", "stand_ins.py", "suite.py", "worker.py")


@dataclass(frozen=True)
class Conditions:
    """What decides the results of a run, besides the case."""

    commit: str  # of the checkout; "" where it is no repository
    suite: str  # digest of the scratch copy
    target: str
    seed: int
    trnx: str
    worker: str  # digest of what runs the cases and judges them

    def key(self, case: str) -> str:
        """The name of a case's file."""
        own = [self.suite, self.target, str(self.seed), self.trnx, self.worker, case]
        return text_digest("\n".join(own))


def conditions(checkout: Path, copy: Path, target: str, seed: int) -> Conditions:
    """Those of a run of the scratch copy `copy` of `checkout`, by the trnx that is installed."""
    command = ["git", "-C", str(checkout), "rev-parse", "--show-prefix", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    prefix, _, commit = done.stdout.rstrip("\n").partition("\n")
    # A folder within another repository has no commit of its own.
    own = commit if done.returncode == 0 and not prefix else ""
    suite = _digest(copy, (path for path in copy.rglob("*") if path.is_file()))
    worker = _digest(WORKER, (WORKER / name for name in WORKER_FILES))
    return Conditions(own, suite, target, seed, versions()["trnx"], worker)


def _digest(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()


class State:
    """What the folder has under the conditions of this run."""

    def __init__(self, folder: Path, held: Conditions) -> None:
        self._folder = folder
        self._held = held

    def begin(self, case: str) -> None:
        """Note that a case begins."""
        self._write(case, {"begun": self._begun(case) + 1})

    def keep(self, result: Record) -> None:
        """Keep the result of a case."""
        self._write(result["case"], {"result": result})

    def result(self, case: str) -> Record | None:
        """The kept result; None for a case that has to run."""
        return _outcome(self._read(case))

    def _begun(self, case: str) -> int:
        return int(self._read(case).get("begun", 0))

    def _read(self, case: str) -> Record:
        file = self._file(case)
        entry: Record = json.loads(file.read_text()) if file.exists() else {}
        return entry

    def _write(self, case: str, entry: Record) -> None:
        whole = {**vars(self._held), "case": case, "when": time.time(), **entry}
        write_whole(self._file(case), json.dumps(whole, indent=1).encode())

    def _file(self, case: str) -> Path:
        return self._folder / f"{self._held.key(case)}.json"


def newest(folder: Path) -> list[Record]:
    """The entries that have a result; of those that differ in trnx, its patches or the worker
    alone, the one made last.
    """
    entries = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    last: dict[tuple[Any, ...], Record] = {}
    for entry in sorted(entries, key=lambda one: float(one["when"])):
        result = _outcome(entry)
        if result is not None:
            suite = entry["commit"] or entry["suite"]
            same = suite, entry["target"], entry["seed"], entry["case"]
            last[same] = {**entry, "result": result}
    return list(last.values())


def _outcome(entry: Record) -> Record | None:
    if "result" in entry:
        return dict(entry["result"])
    if entry.get("begun", 0) < CHANCES:
        return None
    why = f"the whole run ended {CHANCES} times while this case ran"
    return {"case": entry["case"], "status": KILLED, "message": why, "text": ""}
