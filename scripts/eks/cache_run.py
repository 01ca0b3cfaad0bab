"""Run a command around its compile cache: fetched from S3 and stored there, and counted.

    python -m trnx.eks.cache_run --folder /data/neff-cache [--s3 s3://bucket/prefix] -- COMMAND...

Runs in the job's container and needs nothing but boto3, and that for `--s3` alone. Its last line
is an object, `{"trnx_cache": {...}}`: NEFFs before and after, hits and misses. A hit is a NEFF that
the command took from the cache into TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR, a miss one that it had to
compile; `hits` is null where there is no such folder. The exit status is the command's own; a cache
that cannot be fetched or stored is a warning, but with `--must-store` status 1. SIGTERM and SIGINT
are passed on, and the cache is stored after them too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trnx.eks import s3_cache
from trnx.eks.errors import EksError
from trnx.eks.redaction import redacted, redacted_output

LOCAL_FOLDER = "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR"
KEY = "trnx_cache"
# What shells answer for a command that they cannot find.
_NOT_FOUND = 127
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


@dataclass
class CacheReport:
    """What a command did to its cache."""

    folder: str
    neffs_before: int = 0
    neffs_after: int = 0
    hits: int | None = None
    misses: int = 0
    fetched: int = 0
    stored: int = 0
    seconds: float = 0.0
    exit_status: int = 0
    warnings: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The line that `trnx eks warm-cache` finds in the log."""
        return json.dumps({KEY: redacted(asdict(self))})


def parse_line(line: str) -> dict[str, Any] | None:
    """The report in a line of a log; None where it is another line."""
    if KEY not in line:
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    report = found.get(KEY) if isinstance(found, dict) else None
    return report if isinstance(report, dict) else None


def neffs(folder: Path) -> set[str]:
    """What tells the NEFFs below a folder apart.

    The name says what a NEFF holds, but for the cache of PyTorch/XLA, whose folder does.
    """
    found = folder.rglob("*.neff") if folder.is_dir() else ()
    return {
        path.parent.name if path.name == "model.neff" else path.name
        for path in found
        if path.is_file()
    }


def _run(command: Sequence[str]) -> int:
    """The command's status, as shells say it; signals that end this process end it first."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _: object) -> None:
        if not children:
            early.append(number)
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        child = subprocess.Popen(command)
        children.append(child)
        for number in early:
            child.send_signal(number)
        status = child.wait()
    except OSError as error:
        print(f"cache_run: {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _attempt(report: CacheReport, copy: Callable[[], int]) -> int:
    try:
        return copy()
    except EksError as error:
        report.warnings.append(str(error))
        print(f"cache_run: warning: {error}", file=sys.stderr)
        return 0


def _count(report: CacheReport, folder: Path, before: set[str]) -> None:
    after = neffs(folder)
    report.neffs_before, report.neffs_after = len(before), len(after)
    report.misses = len(after - before)
    local = os.environ.get(LOCAL_FOLDER)
    if local:
        used = neffs(Path(local))
        report.hits, report.misses = len(used & before), len(used - before)


def run(folder: Path, url: str | None, command: Sequence[str]) -> CacheReport:
    """Run the command around its cache."""
    report = CacheReport(str(folder))
    if url:
        report.fetched = _attempt(report, lambda: s3_cache.fetch(url, folder))
    before, start = neffs(folder), time.monotonic()
    report.exit_status = _run(command)
    report.seconds = round(time.monotonic() - start, 3)
    _count(report, folder, before)
    if url and folder.is_dir():
        report.stored = _attempt(report, lambda: s3_cache.store(folder, url))
    return report


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m trnx.eks.cache_run", description=__doc__)
    found.add_argument("--folder", type=Path, required=True, help="the compile cache")
    found.add_argument("--s3", metavar="URL", help="s3://bucket/prefix to fetch from and store to")
    found.add_argument(
        "--must-store", action="store_true", help="status 1 where S3 was not reached"
    )
    found.add_argument("command", nargs="+", help="what runs, behind --")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: the command's own status."""
    with redacted_output():
        return _main(parser().parse_args(arguments))


def _main(given: argparse.Namespace) -> int:
    report = run(given.folder, given.s3, given.command)
    print(report.line(), flush=True)
    if given.must_store and report.warnings and report.exit_status == 0:
        return 1
    return report.exit_status


if __name__ == "__main__":
    sys.exit(main())
