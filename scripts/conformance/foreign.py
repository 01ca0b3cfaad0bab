"""Kernels that others wrote, old and new: each as it is, else after `trnx migrate`.

    python scripts/conformance/foreign.py --checkouts FOLDER --json

`FOLDER` has checkouts of repositories with NKI kernels, one a sub-folder: aws-neuron-sdk,
nki-samples, older commits of both. Every Python file that imports NKI and does something is run in
a scratch copy with the simulator, on trn2 or, where it needs it, trn3; where that fails, in a copy
of which every file went through `trnx migrate`. triton-viz's examples call `stand_ins/` instead of
its own interpreter. With AccelOpt's `NKIBench` in `FOLDER`, its kernels and those of
kda-for-trainium run too (`nki_bench.py`). What became of a file:

* as it is, migrated: it ended with status 0. Where the file itself compares values (an assertion,
  `allclose`, a printed comparison), these were right; else it "has no reference";
* spills: the same, but what is live is more than SBUF or PSUM hold, which the simulator was told to
  warn of (`--warn capacity`): NKI's compiler moves the rest to HBM, or gives up;
* named: it ended with a named error of trnx, an import or a program that this machine lacks, or at
  a line above which `trnx migrate` wrote what to change;
* no test runs: a file of tests that all are left out by what its repository has as options;
* no memory, no time: it needs more than `--gigabytes` or `--seconds`;
* wrong values: its own comparison failed, or printed that values differ;
* failed: anything else.

`--results FILE` keeps what became of each file, one JSON object a line, so that a run that was
stopped goes on: what is in it does not run again.

`KNOWN` has what is not the simulator's fault, with the reason. Exit status 0 if and only if none
failed, all had time and memory enough, and at least 95 % of those that ran and have a reference
gave its values.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from forks import Limits, simulate_script
from nki_bench import write_cases

from trnx.migration.migrate import MARK, migrate
from trnx.simulator.errors import TrnxError

# nkigym is nki-autotune's generator of kernels, whose tests run what it generates.
_NKI = re.compile(r"^\s*(from|import)\s+(neuronxcc|nki|nkigym)\b|nki_jit", re.MULTILINE)
_RUNS = re.compile(r"^(if __name__|class \w+\(unittest|def test_|class Test|assert )", re.MULTILINE)
_TESTS = re.compile(r"^(def test_|class Test)", re.MULTILINE)
_REFERENCE = re.compile(r"\ballclose\b|\bassert\b|assert_|differ|array_equal")
_NAMED = re.compile(
    r"(?:trnx: |E\s+trnx\.[\w.]+\.|trnx\.[\w.]+\.)(\w+(?:Error|Finding)): (.*?)(?:\n\n|\Z)",
    re.DOTALL,
)
_DIFFERS = re.compile(
    r"\bdiffer\b|do not match|(?:matches|close)\?? ?:? *False|not equal to tolerance|Mismatched"
)
_FALSE = re.compile(r"^(?:E\s+)?(AssertionError|AssertionError: .*)$", re.MULTILINE)
_NEWER = re.compile(r"needs trn3 \(NeuronCore-v4\)")
_NO_TEST = re.compile(r"^(no tests ran|\d+ deselected|\d+ skipped in)\b", re.MULTILINE)
_NO_MEMORY = re.compile(r"\bMemoryError\b|can't allocate memory|Unable to allocate")
# A module, or a program, that this machine lacks.
_MISSING = re.compile(
    r"(ModuleNotFoundError|ImportError): (.*)|FileNotFoundError: .* directory: '\w+'"
)
_TRACEBACK = re.compile(r"^(?: *File \"(.+)\", line (\d+),|(\S+\.py):(\d+): in) ", re.MULTILINE)
# What nki-autotune's examples must be given: a folder for what they write.
_CACHE = "--cache"
# What files call besides NKI to run their kernels: triton-viz's interpreter.
_STAND_INS = Path(__file__).with_name("stand_ins")
_PYTEST = "import sys\nimport pytest\nsys.exit(pytest.main(sys.argv[1:]))\n"
# Kernels of files with TestCases may be called test_..., which pytest would take for tests.
_UNITTEST = """\
import os
import sys
import unittest
sys.path.insert(0, os.getcwd())
unittest.main(module=None, argv=["unittest", "-f", sys.argv[-1].removesuffix(".py")])
"""
# What nki-samples' tests are given where there is no device: those that measure are left out.
_SIMULATION = "--simulation-only"
_CASES = re.compile(r"^class \w+\((unittest\.)?TestCase\)", re.MULTILINE)
# End of a file's path -> why its result is no fault of the simulator or of `trnx migrate`.
KNOWN: dict[str, str] = {
    "test_nki_isa_activation.py": "a bfloat16 result is compared within 1e-5; bfloat16 has 8 bits",
    "test_nki_isa_dropout.py": "its probabilities go up to 100; NKI 0.1's simulator drops none",
    "test_double_row_matmul.py": "off an instance it fails by a name that it does not import",
    "test_neuron_profile.py": "files that the device's profiler writes are expected",
    "bmm_probe_bf16_calib.py": "measures the rate of bfloat16, and says that its values are wrong",
    "rmsnorm_matmul_probe_bf16_calib.py": "the same",
    "prof-kernel.py": "`return` stands within the loop, so that one turn runs",
}


@dataclass(frozen=True)
class Result:
    """What became of one file."""

    file: str
    status: str
    detail: str


def is_run(file: Path) -> bool:
    """True for a file that imports NKI and does something."""
    text = file.read_text(errors="replace")
    return bool(_NKI.search(text)) and bool(_RUNS.search(text)) and file.name != "conftest.py"


def has_reference(file: Path) -> bool:
    """True for a file that compares values."""
    return bool(_REFERENCE.search(file.read_text(errors="replace")))


def run(file: Path, root: Path, limits: Limits, *options: str) -> tuple[bool, str]:
    """Run one file with `trnx sim`: whether it ended with status 0, and what it printed."""
    is_done, output = _run_for("trn2", file, root, limits, *options)
    if not is_done and _NEWER.search(output):
        return _run_for("trn3", file, root, limits, *options)
    return is_done, output


def _run_for(
    target: str, file: Path, root: Path, limits: Limits, *settings: str
) -> tuple[bool, str]:
    text = file.read_text(errors="replace")
    has_cases, tests = _CASES.search(text), _TESTS.search(text)
    launcher = root / "run_tests.py"
    launcher.write_text(_UNITTEST if has_cases else _PYTEST)
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-W", "ignore", "--tb=short"]
    fixtures = file.with_name("conftest.py")
    if "mark.simulation" in text and _SIMULATION in (
        fixtures.read_text() if fixtures.exists() else ""
    ):
        options.append(_SIMULATION)
    script = [str(launcher), "--", *options, file.name] if has_cases or tests else [file.name]
    if _CACHE in text and not (has_cases or tests):
        script += ["--", _CACHE, str(root / "cache")]
    folders = [_STAND_INS, root, root / "src", *sorted(root.glob("*/src"))]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    done = simulate_script(
        ["--target", target, *settings, *script], file.parent, {"PYTHONPATH": path}, limits
    )
    if done.status is None:
        return False, f"TimeoutExpired: more than {limits.seconds} s"
    return done.status == 0, done.output


def judged(file: Path, how: str, is_done: bool, output: str) -> tuple[str, str]:
    """Status and detail of a run."""
    if is_done and not _DIFFERS.search(output):
        return (how if has_reference(file) else f"{how}, has no reference"), ""
    if output.startswith("TimeoutExpired"):
        return "no time", output
    if _NO_MEMORY.search(output):
        return "no memory", ""
    for pattern, status in ((_NAMED, "named"), (_DIFFERS, "wrong values"), (_MISSING, "named")):
        found = pattern.search(output)
        if found is not None:
            return status, " ".join(found[0].split())[:400]
    if _NO_TEST.search(output):
        return "no test runs", "its own options leave all tests out"
    if _FALSE.search(output):
        return "wrong values", "its own assertion failed"
    if (comment := _comment_at(output, file.parent)) is not None:
        return "named", comment
    return "failed", (output.strip().splitlines() or ["no output"])[-1][:400]


def _comment_at(output: str, folder: Path) -> str | None:
    """What `trnx migrate` wrote above a statement that the traceback goes through."""
    for found in _TRACEBACK.finditer(output):
        path, line = folder / (found[1] or found[3]), int(found[2] or found[4])
        lines = path.read_text().splitlines() if path.is_file() else []
        for text in reversed(lines[: line - 1]):
            if not text.lstrip().startswith("#"):
                break
            if MARK in text:
                return text.strip()[:400]
    return None


def migrated(source: Path, destination: Path) -> None:
    """A copy of a tree with all files rewritten."""
    shutil.copytree(source, destination, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    for file in destination.rglob("*.py"):
        try:
            file.write_text(migrate(file.read_text(errors="replace"), file.name).new)
        except (TrnxError, UnicodeEncodeError):
            continue  # no valid Python: running it says so


def run_all(
    checkouts: Path, limits: Limits, only: str, kept: Mapping[str, Result]
) -> Iterator[Result]:
    """Results of all files, in order; of those that `kept` has, these."""
    with tempfile.TemporaryDirectory(prefix="foreign_cases_") as cases:
        write_cases(checkouts, Path(cases) / "nki_bench")
        for folder in (checkouts, Path(cases)):
            for checkout in sorted(path for path in folder.iterdir() if path.is_dir()):
                names = _names(checkout, only)
                yield from (kept[name] for name in names if name in kept)
                if left := [name for name in names if name not in kept]:
                    yield from _run_checkout(checkout, left, limits)


def _names(checkout: Path, only: str) -> list[str]:
    """The files of a checkout that run, as CHECKOUT/PATH, in order."""
    files = (file for file in sorted(checkout.rglob("*.py")) if is_run(file))
    names = (f"{checkout.name}/{file.relative_to(checkout)}" for file in files)
    return [name for name in names if only in name]


def _run_checkout(checkout: Path, names: list[str], limits: Limits) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="foreign_") as scratch:
        old, new = Path(scratch) / "old", Path(scratch) / "new"
        ignored = shutil.ignore_patterns(".git", "__pycache__")
        shutil.copytree(checkout, old / checkout.name, ignore=ignored)
        migrated(checkout, new / checkout.name)
        roots = old / checkout.name, new / checkout.name
        yield from (_one(name, old / name, new / name, roots, limits) for name in names)


def _one(name: str, old: Path, new: Path, roots: tuple[Path, Path], limits: Limits) -> Result:
    status, detail = judged(old, "as it is", *run(old, roots[0], limits))
    if not status.startswith("as it is") and old.read_text() != new.read_text():
        status, detail = judged(new, "migrated", *run(new, roots[1], limits))
    elif not status.startswith("as it is"):
        # The file is today's; what it imports may not be.
        again = judged(new, "migrated", *run(new, roots[1], limits))
        status, detail = again if again[0].startswith("migrated") else (status, detail)
    if status == "named" and detail.startswith("trnx: CapacityError"):
        spilled = judged(new, "spills", *run(new, roots[1], limits, "--warn", "capacity"))
        status, detail = spilled if spilled[0] != "named" else (status, detail)
    reason = next((why for part, why in KNOWN.items() if part in name), "")
    if reason and status in ("failed", "wrong values"):
        return Result(name, "known", f"{reason} ({detail})")
    return Result(name, status, detail)


def _kept(path: Path | None) -> Mapping[str, Result]:
    """The results in a file of results, by file."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {result.file: result for result in (Result(**json.loads(line)) for line in lines)}


def main() -> int:
    """Parse the command line, run, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkouts", type=Path, required=True, help="a folder of checkouts")
    parser.add_argument("--seconds", type=int, default=300, help="time of a file")
    parser.add_argument("--gigabytes", type=float, default=16, help="memory of a file")
    parser.add_argument("--only", default="", help="a part of the names of files to run")
    parser.add_argument("--results", type=Path, help="a file that keeps what became of files")
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    options = parser.parse_args()
    if not options.checkouts.is_dir():
        parser.error(f"{options.checkouts} is no folder")
    limits = Limits(options.seconds, options.gigabytes)
    kept = _kept(options.results)
    results = []
    for result in run_all(options.checkouts, limits, options.only, kept):
        print(f"{result.status:28} {result.file:90} {result.detail}", flush=True)
        results.append(result)
        if options.results is not None and result.file not in kept:
            with options.results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    counts = Counter(result.status for result in results)
    right = counts["as it is"] + counts["migrated"] + counts["spills"]
    share = 100 * right / max(1, right + counts["wrong values"])
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    print(f"{right} of {right + counts['wrong values']} with a reference that ran gave its values")
    if options.json:
        listed = [asdict(result) for result in results]
        print(json.dumps({"counts": counts, "percent": share, "results": listed}))
    bad = counts["failed"] + counts["no memory"] + counts["no time"]
    return 0 if right and share >= 95 and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
