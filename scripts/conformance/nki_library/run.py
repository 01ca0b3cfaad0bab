"""nki-library's own suite in `--test-mode simulation`, with trnx as the simulator.

From a checkout of nki-library this makes a scratch copy, repairs there what `patches/` repairs,
collects the cases for trn2, runs them in processes of their own, each case within a limit of time
and memory, and prints a table for each file of the suite. The columns:

* passed; skipped (by the suite itself); not for trn2, or in need of the device's compiler;
* failed, or a known failure: one that a row of `known_failures.py` states, to the message;
* no verdict: memory (inputs over 2 GiB, or the suite's own inputs and golden values need more than
  a case may have) and no verdict: time (they take all of a case's time). A case whose simulation
  needs too much of either failed.

Cases that the suite marks `trace_only` are traced. Needs `trnx[test]`; of what else the suite
imports, stand-ins are made where a package is not installed.

    OMP_NUM_THREADS=1 python scripts/conformance/nki_library/run.py --checkout PATH --sample 200

`--sample N --seed S` takes N cases at random: at least one of each file where N allows it, the rest
by the number of cases. `--files REGEX` and `--cases REGEX` restrict the choice, `--jobs J` runs J
cases at once, `--seconds` (of the processor) and `--gigabytes` are the limits of a case (by default
the jobs share the memory that is free; what does not fit is run again alone), `--log FILE` keeps
the text of every failure, `--json` prints one object as the last line.

Exit status 0 if and only if at least 97 % of the cases with a verdict passed, every failure is a
known one, no passing case had a finding, every file of the suite was imported and every patch fits
the checkout.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import print_failures, print_table, short_name, status_of, summary
from sampling import select
from scratch_copy import make_copy
from suite import Collected, Limits, SuiteError, start


def run(options: argparse.Namespace, copy: Path) -> tuple[list[dict[str, Any]], Collected]:
    """Collect from the scratch copy, choose, run: the results, and what was collected."""

    def report(result: dict[str, Any]) -> None:
        case = short_name(result["case"])
        print(f"{status_of(result):18} {result.get('seconds', 0):8.2f} s  {case}", flush=True)
        if options.log is not None:
            with options.log.open("a") as file:
                file.write(json.dumps(result) + "\n")

    with start(copy, copy.parent, options.files) as suite:
        found = suite.collected
        for file, error in found.errors.items():
            print(f"not imported: {file}: {error.splitlines()[-1] if error else ''}")
        cases = select(found.cases, options.cases, options.sample, options.seed)
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
        copy, patches = make_copy(options.checkout, Path(scratch))
        for patch in patches:
            print(f"{patch.state:14} {patch.name}: {patch.defect}")
        try:
            results, found = run(options, copy)
        except SuiteError as error:
            print(error)
            return 1
    misfits = [patch.name for patch in patches if patch.state == "does not apply"]
    counts = print_table(results, found)
    print_failures(results)
    numbers = summary(results, counts, not_imported=len(found.errors), misfits=misfits)
    print(f"{numbers['rate with no verdict as failure']:.2%} passed of all that ran, ", end="")
    print(f"counting {numbers['no verdict']} without a verdict as failures")
    print(f"{numbers['rate']:.2%} passed of those with a verdict", end="")
    print(f" in {time.perf_counter() - begin:.0f} s")
    if options.json:
        print(json.dumps(numbers))
    return 0 if numbers["ok"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of nki-library")
    parser.add_argument("--sample", type=int, default=0, help="cases to take; 0 for all")
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
