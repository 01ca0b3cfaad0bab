"""Processes that collect and run cases of the suite, one file of the suite at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# What the plugin writes for inputs over its limit.
TOO_LARGE = "inputs too large"
# Restarting a process frees what the suite's own caches hold.
CASES_PER_PROCESS = 40


@dataclass(frozen=True)
class Limits:
    """What one case may use."""

    seconds: int
    gigabytes: int


@dataclass
class Collected:
    """The suite's cases: file -> cases for trn2, counts of others, files that do not import."""

    cases: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def collect(copy: Path, folder: Path, files: str = "") -> Collected:
    """The cases of the suite's files whose path has a match of the regular expression `files`."""
    records = folder / "collected.jsonl"
    paths = (str(path.relative_to(copy)) for path in copy.glob("test/integration/**/test_*.py"))
    chosen = sorted(path for path in paths if re.search(files, path))
    found = Collected()
    if not chosen:
        return found
    _pytest(copy, folder, records, chosen, {}, ["--collect-only"])
    for record in _read(records):
        if "error" in record:
            found.errors[record["file"]] = record["error"]
            continue
        file = record["case"].partition("::")[0]
        if record["collected"] == "trn2":
            found.cases.setdefault(file, []).append(record["case"])
        else:
            counts = found.others.setdefault(file, {})
            counts[record["collected"]] = counts.get(record["collected"], 0) + 1
    return found


def run_cases(
    copy: Path,
    folder: Path,
    cases: dict[str, list[str]],
    limits: Limits,
    jobs: int,
    report: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Run cases, given by file; `report` hears of each as it ends."""
    chunks = [
        (file, listed[i : i + CASES_PER_PROCESS])
        for file, listed in cases.items()
        for i in range(0, len(listed), CASES_PER_PROCESS)
    ]
    results: list[dict[str, Any]] = []

    def run(chunk: tuple[str, list[str]]) -> None:
        for result in _run_chunk(copy, folder, *chunk, limits):
            results.append(result)
            report(result)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, chunks))
    return results


def _run_chunk(
    copy: Path, folder: Path, file: str, cases: list[str], limits: Limits
) -> Iterator[dict[str, Any]]:
    """Run cases of one file, in a new process after each that ended the process."""
    left = list(cases)
    while left:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            listed, records = Path(scratch, "cases.json"), Path(scratch, "records.jsonl")
            listed.write_text(json.dumps(left))
            environment = {
                "NKI_LIBRARY_CASES": str(listed),
                "NKI_LIBRARY_SECONDS": str(limits.seconds),
                "NKI_LIBRARY_GIGABYTES": str(limits.gigabytes),
            }
            output = _pytest(copy, Path(scratch), records, [file], environment, [])
            found = _results(_read(records))
        if not found:
            # Nothing began: the file does not import in this process.
            for case in left:
                yield {"case": case, "status": "failed", "message": "not run", "text": output}
            return
        yield from found.values()
        left = [case for case in left if case not in found]


def _results(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Case -> its last record; a case without an end was ended together with the process."""
    found: dict[str, dict[str, Any]] = {}
    findings: dict[str, list[str]] = {}
    for record in records:
        if "finding" in record:
            findings.setdefault(record["case"], []).append(record["finding"])
        elif "started" in record and "status" not in record:
            ended = {"status": "failed", "message": "the process ended (out of memory?)"}
            found[record["case"]] = {"case": record["case"], "text": "", **ended}
        elif "status" in record:
            found[record["case"]] = record
    for case, messages in findings.items():
        if case in found:
            found[case]["findings"] = messages
    return found


def _pytest(
    copy: Path,
    scratch: Path,
    records: Path,
    targets: list[str],
    environment: dict[str, str],
    options: list[str],
) -> str:
    """One pytest process of the suite; the end of what it printed."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(copy), str(copy / "src")]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NEURON_PYTHONHASHSEED": "0",
        "NKILIB_SIMULATION_RUN_ALL": "1",
        "NKI_LIBRARY_RECORDS": str(records),
        **environment,
    }
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        variables.setdefault(name, "1")
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "nki_library_plugin", "-p", "no:cacheprovider",
        "-c", "test/pytest.ini", "--rootdir", str(copy), "--test-mode", "simulation",
        "--platform-target", "trn2", "--output-directory", str(scratch / "out"),
        "--force-local-cleanup", "--continue-on-collection-errors", "--tb", "short",
        *options, *targets,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=copy, env=variables, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr)[-6000:]


def _read(records: Path) -> list[dict[str, Any]]:
    if not records.exists():
        return []
    return [json.loads(line) for line in records.read_text().splitlines()]
