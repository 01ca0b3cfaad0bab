"""The scripts of AWS's documentation and samples, each run with `trnx sim`.

From a checkout of the documentation repository (its folder `nki`) or of nki-samples (all of it)
this takes every Python file that imports `nki`, itself or through a module beside it. Files that
reach `neuronxcc.nki`, which NKI 0.4 refuses (the migration guide of the documentation says so), and
files without NKI are counted, not run. Each script runs in a process of its own, in a scratch copy
of the checkout, within a limit of time, for the target that it tells the compiler. What became of
it:

* ran: it ended with status 0. Of these, some only define kernels;
* named: it ended with a named error of trnx, which says the cause and the change;
* failed: anything else.

    python scripts/conformance/scripts.py --checkout DOCUMENTATION --checkout NKI_SAMPLES --json

`--json` prints one object as the last line. Exit status 0 if and only if none failed and some ran.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\b|import\s+(.+))", re.MULTILINE)
_TARGET = re.compile(r"--target[ =](trn\d)\b")
_NAMED = re.compile(r"^trnx: (\w+): (.*)", re.MULTILINE | re.DOTALL)
_DEFINITIONS = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign,
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What became of one script."""

    script: str
    status: str  # "ran", "only defines kernels", "named" or "failed"
    detail: str


def imported(source: str) -> set[str]:
    """Top-level names of the modules that `source` imports; it need not be valid Python."""
    names: set[str] = set()
    for package, listed in _IMPORT.findall(source):
        modules = [package] if package else [one.split()[0] for one in listed.split(",") if one]
        names.update(module.partition(".")[0] for module in modules)
    return names


def reached(script: Path) -> set[str]:
    """What `script` imports, itself or through modules beside it."""
    names: set[str] = set()
    waiting, seen = [script], set()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        found = imported(file.read_text(errors="replace"))
        names |= found
        beside = (script.with_name(f"{name}.py") for name in found)
        waiting += [other for other in beside if other.is_file() and other not in seen]
    return names


def kind_of(script: Path) -> str:
    """ "script" for what is run, else why it is not."""
    if script.name == "__init__.py":
        return "part of a package"
    names = reached(script)
    if "neuronxcc" in names:
        return "for NKI before 0.4"
    return "script" if "nki" in names else "without NKI"


def only_defines(script: Path) -> bool:
    """True for a file whose statements are imports, definitions and constants."""
    body = ast.parse(script.read_text()).body
    return all(
        isinstance(statement, _DEFINITIONS)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


def run(script: Path, name: str, seconds: int) -> Result:
    """Run one script with `trnx sim`."""
    target = _TARGET.search(script.read_text(errors="replace"))
    options = ["--target", target[1]] if target else []
    command = [sys.executable, "-m", "trnx.cli", "sim", *options, script.name]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            command, cwd=script.parent, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Result(name, "failed", f"more than {seconds} s")
    if done.returncode == 0:
        return Result(name, "only defines kernels" if only_defines(script) else "ran", "")
    named = _NAMED.search(done.stderr)
    if named is not None:
        return Result(name, "named", f"{named[1]}: {' '.join(named[2].split())}")
    last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return Result(name, "failed", last)


def run_all(checkout: Path, seconds: int, others: Counter[str]) -> Iterator[Result]:
    """Results of the checkout's scripts; files that are no script are counted in `others`."""
    with tempfile.TemporaryDirectory(prefix="scripts_") as scratch:
        folder = checkout / "nki"
        root = folder if folder.is_dir() else checkout
        # Scripts write files beside themselves.
        copy = Path(scratch) / checkout.resolve().name / root.relative_to(checkout)
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        for script in sorted(copy.rglob("*.py")):
            kind = kind_of(script)
            if kind == "script":
                yield run(script, str(script.relative_to(scratch)), seconds)
            else:
                others[kind] += 1


def main() -> int:
    """Parse the command line, run, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkout", type=Path, action="append", required=True,
        help="the documentation's or the samples' checkout; may be given for both",
    )  # fmt: skip
    parser.add_argument("--seconds", type=int, default=600, help="time of a script")
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    options = parser.parse_args()
    for checkout in options.checkout:
        if not checkout.is_dir():
            parser.error(f"{checkout} is no folder")
    others: Counter[str] = Counter()
    results = []
    for checkout in options.checkout:
        for result in run_all(checkout, options.seconds, others):
            print(f"{result.status:20} {result.script:80} {result.detail}", flush=True)
            results.append(result)
    counts = dict.fromkeys(("ran", "only defines kernels", "named", "failed"), 0)
    for result in results:
        counts[result.status] += 1
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    print("not run: " + ", ".join(f"{count} {kind}" for kind, count in sorted(others.items())))
    if options.json:
        listed = [asdict(result) for result in results]
        print(json.dumps({**counts, "not run": dict(others), "results": listed}))
    return 0 if counts["ran"] and not counts["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
