"""nki-library's own suite in `--test-mode simulation`, with trnx as the simulator.

From a checkout of nki-library this makes a scratch copy, repairs there what `patches/` repairs,
collects the cases for `--target`, runs them in processes of their own, each case within a limit of
time and memory, and prints a table for each file of the suite. The columns:

* passed; passed, spills: SBUF or PSUM is full in program order, and the case ran once more with a
  warning of it, as the device's compiler moves the rest to HBM;
* skipped (by the suite itself); not for the target, or in need of the device's compiler;
* failed, or a known failure: one that a row of `known_failures.py` states, to the message;
* no verdict: memory (inputs over 2 GiB, or the suite's own inputs and golden values need more than
  a case may have), no verdict: time (they take all of a case's time) and no verdict: killed (by the
  system, or the whole run ended twice while the case ran). A case whose simulation needs too much
  time or memory failed.

Cases that the suite marks `trace_only` are traced. Needs `trnx[test]`; of what else the suite
imports, stand-ins are made where a package is not installed.

    OMP_NUM_THREADS=1 python scripts/conformance/nki_library/run.py --checkout PATH --sample 200

`--sample N --seed S` takes N cases at random: at least one of each file where N allows it, the rest
by the number of cases; with `--each M`, at least M of every folder that has so many. The inputs
that cases draw come from the same seed. `--files REGEX` and `--cases REGEX` restrict the choice,
`--jobs J` runs J cases at once, `--seconds` (of the processor) and `--gigabytes` are the limits of
a case (by default the jobs share the memory that is free; what does not fit is run again alone),
`--log FILE` keeps the text of every failure, `--json` prints one object as the last line.

`--resume FOLDER` keeps each result in a file of that folder (see `state.py`) and runs only what has
none there under the same conditions; `--retry` runs again what has no verdict. `--shard I/N` runs
the I-th of N parts of the choice: several may share a folder. The tables and the exit status are
about the part, results that were kept included. `report_folder.py` writes docs/nki_library.md from
such a folder.

Exit status 0 if and only if at least 98.5 % of the cases with a verdict passed (with spills or
without), every failure is a
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

from fork_server import Record
from report import NO_VERDICT, print_failures, print_table, short_name, status_of, summary
from sampling import Cases, select, shard
from scratch_copy import make_copy
from state import State, conditions
from suite import Collected, Limits, SuiteError, start


def run(options: argparse.Namespace, copy: Path) -> tuple[list[Record], Collected]:
    """Collect from the scratch copy, choose, run: the results, and what was collected."""
    state = None
    if options.resume is not None:
        held = conditions(options.checkout, copy, options.target, options.seed)
        state = State(options.resume, held)

    def begin(case: str) -> None:
        if state is not None:
            state.begin(case)

    def report(result: Record) -> None:
        case = short_name(result["case"])
        print(f"{status_of(result):18} {result.get('seconds', 0):8.2f} s  {case}", flush=True)
        if state is not None:
            state.keep(result)
        if options.log is not None:
            with options.log.open("a") as file:
                file.write(json.dumps(result) + "\n")

    with start(copy, copy.parent, options.files, options.target, options.seed) as suite:
        found = suite.collected
        for file, error in found.errors.items():
            print(f"not imported: {file}: {error.splitlines()[-1] if error else ''}")
        cases = select(found.cases, options.cases, options.sample, options.seed, options.each)
        cases = shard(cases, *options.shard)
        kept = _kept(cases, state, options.retry)
        left = {
            file: [case for case in listed if case not in kept] for file, listed in cases.items()
        }
        count = sum(map(len, cases.values()))
        print(
            f"{count} of {sum(map(len, found.cases.values()))} cases for {options.target}, ", end=""
        )
        print(f"{len(kept)} of them kept", flush=True)
        gigabytes = options.gigabytes or max(1, free_gigabytes() // options.jobs)
        limits = Limits(options.seconds, gigabytes)
        results = suite.run(left, limits, options.jobs, begin, report)
        return [*kept.values(), *results], found


def _kept(cases: Cases, state: State | None, retry: bool) -> dict[str, Record]:
    """The results that need no run, by case."""
    if state is None:
        return {}
    found = {case: state.result(case) for listed in cases.values() for case in listed}
    return {
        case: result
        for case, result in found.items()
        if result is not None and not (retry and status_of(result) in NO_VERDICT)
    }


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
    parser.add_argument("--each", type=int, default=0, help="cases to take of each folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is random")
    parser.add_argument("--target", default="trn2", choices=("trn2", "trn3"))
    parser.add_argument("--shard", type=_shard, default=(1, 1), help="the part to run, as I/N")
    parser.add_argument("--resume", type=Path, help="a folder that keeps results, and goes on")
    parser.add_argument("--retry", action="store_true", help="run again what has no verdict")
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


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no part such as 1/4")
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    sys.exit(main())
