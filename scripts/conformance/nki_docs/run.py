"""The examples of the NKI documentation on the simulator, unmodified.

From a checkout of the documentation repository this runs

* every code block of the docstrings of nki.language and nki.isa that calls NKI: a block that
  defines kernels is imported and its kernels run on inputs made here, anything else runs at the
  simulator's prompt (or in a kernel of two programs, where it talks to the other core), with the
  names that it leaves open bound here. Blocks without a call of NKI (pseudo-code of a behaviour)
  are listed as such, not run;
* every kernel defined in `nki/examples`, with `torch_xla` and `jax` kept out, and the example
  scripts that need neither as they are.

An example passes if its own assertions hold and its results equal NumPy's; a kernel also has to
give equal Programs traced with values and without, whose replays equal the first run bit for bit.
The example that violates a layout must raise a named error, and so must the files that are no
runnable Python.

    python scripts/conformance/nki_docs/run.py --checkout PATH --json | tee nki_docs.log

`--json` prints one object as the last line. Exit status 0 if and only if all pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import blocks
import kernels
import modes

from trnx.simulator import install


@dataclass
class Result:
    """One example."""

    name: str
    status: str  # "passed", "failed" or "no code"
    detail: str
    seconds: float


def attempt(name: str, run: Callable[[], str]) -> Result:
    """Run one example; `run` returns what was compared, or raises."""
    start = time.perf_counter()
    try:
        status, detail = "passed", run()
    # The boundary of this script: whatever an example raises is its result.
    except Exception as error:  # noqa: BLE001
        status = "failed"
        place = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    return Result(name, status, detail, round(time.perf_counter() - start, 3))


def run_all(checkout: Path, folder: Path) -> list[Result]:
    """All results; generated module files go to `folder`."""
    results = []
    for block in blocks.find_blocks(checkout):
        if block.why_not:
            results.append(Result(block.name, "no code", block.why_not, 0.0))
            continue
        results.append(attempt(block.name, lambda block=block: blocks.run(block, folder)))
    for name, run in kernels.cases(checkout):
        results.append(attempt(name, run))
    return results


def main() -> int:
    """Parse the command line, run, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="the documentation's checkout")
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    options = parser.parse_args()
    if not (options.checkout / "nki" / "examples").is_dir():
        parser.error(f"{options.checkout} has no folder nki/examples")
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    install()
    with tempfile.TemporaryDirectory() as folder:
        results = run_all(options.checkout, Path(folder))
    counts = dict.fromkeys(("passed", "failed", "no code"), 0)
    for result in results:
        counts[result.status] += 1
        print(f"{result.status:8} {result.name:60} {result.seconds:7.2f} s  {result.detail}")
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    print(f"{len(modes.compared)} kernels traced in both modes: equal Programs, equal replays")
    if options.json:
        counts["equal programs"] = len(modes.compared)
        print(json.dumps({**counts, "results": [asdict(result) for result in results]}))
    return 0 if counts["passed"] and not counts["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
