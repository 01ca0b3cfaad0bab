"""nki-library's kernels with published times, as they are, with and without each compiler pass.

    python scripts/bench/aws_passes.py --checkout NKI_LIBRARY > FILE
    python scripts/calibrate/passes.py --bench FILE

The problems are those of `versus_aws.py` that have a published time, on trn2. The last line is one
object, for `passes.py`: measured and predicted ns, these without the start of the NEFF, which
`cores` says. What their kernel refuses, and kernels of more than `--most` instructions, are listed.
Exit status 0 if a kernel was predicted.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from versus_checkouts import Checkouts, traced
from versus_problems import Problem, problems

from trnx.backend.options import on_cores
from trnx.simulator.errors import TrnxError
from trnx.simulator.timing.compiler import EVERY, Pass
from trnx.simulator.timing.scheduler import schedule

TARGET = "trn2"


def times(checkouts: Checkouts, problem: Problem, lnc: int, most: int) -> dict[str, Any] | str:
    """The object's entry for a problem, or why there is none."""
    try:
        with redirect_stdout(io.StringIO()):  # they log there
            kernel = checkouts.named(problem.kernel)
            rows = traced(kernel, problem.arguments(checkouts, lnc), TARGET, lnc).rows
    except (TrnxError, AssertionError) as error:
        return str(error)
    if len(rows) > most:
        return f"{len(rows)} instructions"
    chip = on_cores(TARGET, lnc)

    def predicted(passes: frozenset[Pass]) -> float:
        return schedule(rows, chip, passes=passes).total_ps / 1000

    return {
        "operator": "nki-library",
        "name": f"{problem.name}, LNC {lnc}",
        "cores": lnc,
        "measured": 1e3 * problem.published[lnc],
        "usual": predicted(EVERY),
        "without": {one.name: predicted(EVERY - {one}) for one in Pass},
    }


def main() -> int:
    """Parse the command line, predict, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="nki-library")
    parser.add_argument("--most", type=int, default=40_000, help="instructions of a kernel")
    options = parser.parse_args()
    found = []
    warnings.simplefilter("ignore")  # what their source may be judged otherwise for
    with tempfile.TemporaryDirectory(prefix="aws_passes_") as folder:
        checkouts = Checkouts([options.checkout], Path(folder))
        for problem in problems():
            for lnc in problem.published:
                row = times(checkouts, problem, lnc, options.most)
                print(f"{problem.name}, LNC {lnc}: {row}", flush=True)
                found += [row] if isinstance(row, dict) else []
    print(json.dumps({"kernels": found}))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
