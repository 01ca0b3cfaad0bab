"""Kernels written from NKI's documentation, without a look at the simulator: faulty and legal ones.

    python scripts/conformance/seeded/run.py --json            # all of them
    python scripts/conformance/seeded/run.py --only dma        # families that start so
    python scripts/conformance/seeded/run.py --show            # with the sources of what fails

`faults_*.py` are kernels with one fault each, and the line on which it stands; `legal_*.py` are
kernels that break no rule, most with the values that NumPy gives. A fault counts as found where the
simulator refuses the program with a finding, error or warning, at that line. Exit status 0 if and
only if at least 97 % of the faults are found, and no legal program is refused, warned of or has
other values.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from template import Kernel, Program, as_array

from trnx.simulator import load_module, simulate
from trnx.simulator.errors import FindingError, FindingWarning

FOLDER = Path(__file__).resolve().parent
SHARE = 97.0


@dataclass(frozen=True)
class Verdict:
    """What became of a program: "found", "accepted" or why not."""

    program: Program
    status: str
    detail: str = ""


def programs(kind: str) -> Iterator[Program]:
    """All programs of `faults` or `legal`, in the order of their files."""
    for file in sorted(FOLDER.glob(f"{kind}_*.py")):
        kernels: tuple[Kernel, ...] = importlib.import_module(file.stem).KERNELS
        for kernel in kernels:
            yield from kernel.programs()


def judge(program: Program) -> Verdict:
    """Run a program with values."""
    with tempfile.TemporaryDirectory(prefix="seeded_") as folder:
        file = Path(folder) / "kernel.py"
        file.write_text(program.source)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                kernel = load_module(file).kernel
                grid = program.kernel.cores if program.kernel.cores > 1 else None
                copies = [tensor.clone() for tensor in program.inputs]
                result = simulate(kernel, program.target, grid)(*copies)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            return _refused(program, error)
    if program.line:
        return Verdict(program, "missed")
    return _compared(program, result)


def _refused(program: Program, error: Exception) -> Verdict:
    finding: object = error
    if isinstance(error, FindingWarning) and error.finding is not None:
        finding = error.finding
    text = f"{type(error).__name__}: {error}"
    if not program.line:
        return Verdict(program, "refused", text)
    if not isinstance(finding, FindingError):
        return Verdict(program, "no finding", text)
    line = finding.location.line if finding.location is not None else 0
    if line != program.line:
        return Verdict(program, "other line", f"{line}, not {program.line}: {text}")
    return Verdict(program, "found", text)


def _compared(program: Program, result: object) -> Verdict:
    kernel = program.kernel
    if kernel.want is None:
        return Verdict(program, "accepted")
    wanted = np.asarray(kernel.want(*map(as_array, program.inputs)))
    assert isinstance(result, torch.Tensor), f"{program.name}: one result is compared"
    found = as_array(result)
    if found.shape != wanted.shape:
        return Verdict(program, "values", f"shape {found.shape}, not {wanted.shape}")
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    error = np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30)
    if not error <= kernel.within:
        return Verdict(program, "values", f"off by {error:.2e} of the largest")
    return Verdict(program, "accepted")


def table(verdicts: list[Verdict]) -> dict[str, dict[str, int]]:
    """Family -> counts by status."""
    counts: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        counts.setdefault(verdict.program.kernel.family, Counter())[verdict.status] += 1
    return {family: dict(count) for family, count in counts.items()}


def main() -> int:
    """Parse the command line, run, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="the beginning of the families to run")
    parser.add_argument("--kind", choices=("faults", "legal"), help="only these")
    parser.add_argument("--show", action="store_true", help="print the programs that fail")
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, object] = {}
    good = {"faults": "found", "legal": "accepted"}
    holds = True
    for kind in [options.kind] if options.kind else list(good):
        chosen = [one for one in programs(kind) if one.kernel.family.startswith(options.only)]
        verdicts = []
        for program in chosen:
            verdict = judge(program)
            verdicts.append(verdict)
            if verdict.status != good[kind]:
                print(f"{verdict.status}: {program.name}: {verdict.detail}", flush=True)
                if options.show:
                    print(program.source[program.source.index("@nki.jit") :])
        right = sum(verdict.status == good[kind] for verdict in verdicts)
        share = 100 * right / max(1, len(verdicts))
        kernels = len({id(program.kernel) for program in chosen})
        for family, counts in table(verdicts).items():
            print(f"{kind:7} {family:24} {counts}")
        print(
            f"{kind}: {right} of {len(verdicts)} programs of {kernels} kernels {good[kind]} "
            f"({share:.1f} %)"
        )
        holds &= share >= (SHARE if kind == "faults" else 100.0)
        report[kind] = {
            "programs": len(verdicts),
            "kernels": kernels,
            good[kind]: right,
            "percent": share,
            "by_family": table(verdicts),
        }
    if options.json:
        print(json.dumps(report | {"passed": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
