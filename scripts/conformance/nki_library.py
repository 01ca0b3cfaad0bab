"""nki-library's own suite in `--test-mode simulation`, with trnx as the simulator.

From a checkout of nki-library this makes a scratch copy, patches the snapshot's known defects there
(the table is in `nki_library_copy.py`), collects the cases for trn2, runs them in processes of
their own, each case within a limit of time and memory, and prints a table for each file of the
suite: passed, failed, failed for a reason that `nki_library_explained.py` states, inputs over 2 GB
(not run), no verdict (the suite's own inputs and golden values need more memory than a case may
have, or all of its time, outside of the simulation), and cases that are not for trn2. Cases that
the suite marks `trace_only` are traced.

Needs `trnx[test]`; of what else the suite imports, stand-ins are made where a package is not
installed.

    OMP_NUM_THREADS=1 python scripts/conformance/nki_library.py --checkout PATH --sample 200

`--sample N --seed S` takes N cases at random: at least one of each file where N allows it, the rest
by the number of cases. `--files REGEX` and `--cases REGEX` restrict the choice, `--jobs J` runs J
cases at once, `--seconds` (of the processor) and `--gigabytes` are the limits of a case (by default
the jobs share the memory that is free; what does not fit is run again alone), `--log FILE` keeps
the text of every failure, `--json` prints one object as the last line. Exit status 0 if and only if
at least 97 % of the cases with a verdict passed, every failure is explained, and no passing case
had a finding.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from nki_library_copy import make_copy
from nki_library_explained import explain
from nki_library_server import is_out_of_memory
from nki_library_workers import TOO_LARGE, Collected, Limits, SuiteError, start

from trnx.simulator.findings import ALWAYS_WARNINGS

BAR = 0.97
_COLUMNS = (
    "passed",
    "failed",
    "explained",
    "too large",
    "no verdict",
    "skipped",
    "not for trn2",
)
_PREFIX = "test/integration/nkilib/"


def sample(cases: dict[str, list[str]], count: int, seed: int) -> dict[str, list[str]]:
    """`count` cases, one of each file first, then by the number of cases."""
    generator = random.Random(seed)
    shuffled = {file: generator.sample(cases[file], len(cases[file])) for file in sorted(cases)}
    order = generator.sample(sorted(shuffled), len(shuffled))
    chosen = {file: shuffled[file][:1] for file in order[:count]}
    rest = [case for file in sorted(chosen) for case in shuffled[file][1:]]
    for case in generator.sample(rest, max(0, min(count - len(chosen), len(rest)))):
        chosen[case.partition("::")[0]].append(case)
    return dict(sorted(chosen.items()))


def status_of(result: dict[str, Any]) -> str:
    """The column of a result; "failed" for everything that is not known to be something else."""
    if result["status"] == "passed":
        return "passed"
    if result["status"] == "skipped":
        return "too large" if TOO_LARGE in result["message"] else "skipped"
    if is_out_of_memory(result) and not result.get("simulating", True):
        return "no verdict"
    if result["status"] == "timeout" and not result.get("began", True):
        return "no verdict"
    return "explained" if explain(result) else "failed"


def findings_of(result: dict[str, Any]) -> list[str]:
    """Findings of a passing case, but those on which the sources disagree."""
    if result["status"] != "passed":
        return []
    return [
        text
        for text in result.get("findings", ())
        if not any(f"[{check}]" in text for check in ALWAYS_WARNINGS)
    ]


def select(found: Collected, options: argparse.Namespace) -> dict[str, list[str]]:
    """The cases that the command line asks for."""
    cases = {
        file: [case for case in listed if re.search(options.cases, case)]
        for file, listed in found.cases.items()
    }
    cases = {file: listed for file, listed in cases.items() if listed}
    if options.per_file:
        generator = random.Random(options.seed)
        return {
            file: generator.sample(listed, min(options.per_file, len(listed)))
            for file, listed in cases.items()
        }
    return sample(cases, options.sample, options.seed) if options.sample else cases


def print_table(results: list[dict[str, Any]], found: Collected) -> Counter[str]:
    """A row for each file; the totals."""
    files = sorted({result["case"].partition("::")[0] for result in results})
    print(f"{'file':62}" + "".join(f"{column:>13}" for column in _COLUMNS))
    total: Counter[str] = Counter()
    for file in files:
        counts = Counter(status_of(r) for r in results if r["case"].startswith(f"{file}::"))
        counts["not for trn2"] = sum(found.others.get(file, {}).values())
        total += counts
        cells = "".join(f"{counts[column]:13}" for column in _COLUMNS)
        print(f"{file.removeprefix(_PREFIX):62}{cells}")
    print(f"{'total':62}" + "".join(f"{total[column]:13}" for column in _COLUMNS))
    return total


def print_failures(results: list[dict[str, Any]]) -> None:
    """What failed, with the explanation where there is one."""
    for result in sorted(results, key=lambda r: str(r["case"])):
        status = status_of(result)
        if status not in ("failed", "explained"):
            continue
        row = explain(result)
        why = f"{row.whose}: {row.reason}" if row else "not explained"
        message = " ".join(result["message"].split())[:300]
        print(f"{status:10} {result['case'].removeprefix(_PREFIX)}\n    {why}\n    {message}")


def summary(results: list[dict[str, Any]], total: Counter[str]) -> dict[str, Any]:
    """The numbers that the bar is judged by."""
    ran = total["passed"] + total["failed"] + total["explained"]
    findings = sum(bool(findings_of(result)) for result in results)
    rate = total["passed"] / ran if ran else 0.0
    least = total["passed"] / (ran + total["no verdict"]) if ran else 0.0
    return {
        **{column: total[column] for column in _COLUMNS},
        "rate": round(rate, 4),
        "rate if no verdict is a failure": round(least, 4),
        "passing cases with findings": findings,
        "ok": bool(ran) and rate >= BAR and not total["failed"] and not findings,
    }


def run(options: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], Collected]:
    """Copy, collect, choose, run: the results, and what was collected."""
    copy, patches = make_copy(options.checkout, folder)
    print(*patches, sep="\n")

    def report(result: dict[str, Any]) -> None:
        case = result["case"].removeprefix(_PREFIX)
        print(f"{status_of(result):10} {result.get('seconds', 0):8.2f} s  {case}", flush=True)
        if options.log is not None:
            with options.log.open("a") as file:
                file.write(json.dumps(result) + "\n")

    with start(copy, folder, options.files) as suite:
        found = suite.collected
        for file, error in found.errors.items():
            print(f"not imported: {file}: {error.splitlines()[-1] if error else ''}")
        cases = select(found, options)
        count = sum(map(len, cases.values()))
        print(f"{count} of {sum(map(len, found.cases.values()))} cases for trn2", flush=True)
        gigabytes = options.gigabytes or max(1, free_gigabytes() // options.jobs)
        limits = Limits(options.seconds, gigabytes)
        return suite.run(cases, limits, options.jobs, report), found


def free_gigabytes() -> int:
    """Memory that processes can have without swapping."""
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found.group(1)) >> 20 if found else 0


def main() -> int:
    """Parse the command line, run, print; the exit status."""
    options = _options()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nki_library_") as scratch:
        try:
            results, found = run(options, Path(scratch))
        except SuiteError as error:
            print(error)
            return 1
    total = print_table(results, found)
    print_failures(results)
    numbers = summary(results, total) | {"not imported": len(found.errors)}
    numbers["ok"] = numbers["ok"] and not found.errors
    least = numbers["rate if no verdict is a failure"]
    print(f"{least:.2%} passed, counting those without a verdict as failures")
    print(f"{numbers['rate']:.2%} passed in {time.perf_counter() - begin:.0f} s")
    if options.json:
        print(json.dumps(numbers))
    return 0 if numbers["ok"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of nki-library")
    parser.add_argument("--sample", type=int, default=0, help="cases to take; 0 for all")
    parser.add_argument("--per-file", type=int, default=0, help="as many cases of each file")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice")
    parser.add_argument("--files", default="", help="regular expression for files of the suite")
    parser.add_argument("--cases", default="", help="regular expression for cases")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--seconds", type=int, default=900, help="processor time of a case")
    parser.add_argument("--gigabytes", type=int, default=0, help="memory of a case (0: all)")
    parser.add_argument("--log", type=Path, help="append one JSON object for each case")
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    options = parser.parse_args()
    if not (options.checkout / "test" / "integration").is_dir():
        parser.error(f"{options.checkout} has no folder test/integration")
    return options


if __name__ == "__main__":
    sys.exit(main())
