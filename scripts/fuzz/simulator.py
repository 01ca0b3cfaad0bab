"""Fuzz the NKI simulator: random programs of instructions against a NumPy reference.

    python scripts/fuzz/simulator.py --seed 1 --n 10000 [--jobs 2] [--json]
    python scripts/fuzz/simulator.py --seed 1 --only 123     # one program again, with its source

A program has a random target and some instructions, and functions of nki.language that make tiles,
chained over random tiles, views of views, types, memories and engines, at automatic and manual
addresses, at addresses that values decide (registers, indices, `.indirect`), some of them in
register loops that turn as often as a value says. Two of three are legal by construction: they must
run, give the same bits when they are called again and in a replay of their trace, and agree with
the reference (`nki_reference`, numpy and ml_dtypes alone). The third has something changed at
random: it must agree too, or be refused with an error that trnx names, and where the reference
knows it to be illegal it must be refused. Another exception is a crash; a program that takes longer
than --timeout seconds hangs. Equal seeds make equal programs.
Exit status 0: no failure.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import multiprocessing
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import nki_reference  # noqa: F401  (fills the table)
import torch
from nki_reference.addressing import GATHERS, make_indirect, make_loop, place
from nki_reference.choices import SeededChoices
from nki_reference.differential import Verdict, check, plan_snapshots, prune_snapshots
from nki_reference.mutate import mutate
from nki_reference.program import TARGETS, Program
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import ENTRIES

CHUNK = 50
# What two cores run besides the instructions in which they meet: nothing through shared HBM.
PER_CORE = ("tensor_tensor", "tensor_scalar", "tensor_copy", "activation", "iota", "tensor_reduce")


class HangError(Exception):
    """A program took too long."""


@dataclass(frozen=True)
class Outcome:
    """What became of one program."""

    number: int
    target: str
    kind: str  # legal or wild
    status: str
    detail: str
    instructions: tuple[str, ...]

    @property
    def is_failure(self) -> bool:
        """Neither agreed nor refused."""
        return self.status not in ("agreed", "refused")


def make_program(seed: int, number: int) -> Program:
    """The program of a seed and a number."""
    choices = SeededChoices(f"{seed}/{number}")
    target = choices.pick(tuple(TARGETS))
    generation = TARGETS[target]
    cores = 2 if generation > 2 and choices.flag(6) else 1
    builder = ProgramBuilder(choices, target, cores)
    is_wild = choices.flag(34)
    legal = [
        entry
        for entry in ENTRIES.values()
        if generation in entry.generations
        and (entry.cores == cores or (cores > 1 and entry.name in PER_CORE))
        # Other changes than of tiles before they are made would be in vain.
        and not (is_wild and entry.name == "language")
    ]
    meeting = [entry for entry in legal if entry.cores > 1]
    if meeting:
        choices.pick(meeting).draw(builder)
    has_indirect = generation > 3 and not is_wild and choices.flag(60)
    if has_indirect:
        builder.partitions = choices.pick((16, 32, 64, 128))
    for _ in range(choices.integer(1, 6)):
        if has_indirect and choices.flag(40):
            ENTRIES[choices.pick(tuple(GATHERS))].draw(builder)
            make_indirect(builder, builder.calls[-1])
        else:
            choices.pick(legal).draw(builder)
    program = builder.program()
    if is_wild:
        mutate(choices, program)
        return program
    if choices.flag(25):
        place(choices, program)
    if choices.flag(40):
        make_loop(choices, program)
    return program


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise HangError after so long; kill the process if that does not help."""

    def stop(*_: Any) -> None:
        raise HangError(f"no result after {seconds} seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def judge(program: Program, timeout: float) -> Verdict:
    """Run one program; whatever it raises is a verdict too."""
    try:
        with time_limit(timeout):
            return check(program, must_run=not program.is_wild)
    except HangError as hang:
        return Verdict("hang", str(hang))
    except Exception:  # noqa: BLE001  (any exception here is what the fuzzer looks for)
        return Verdict("crash", traceback.format_exc(limit=-6))


def run_one(seed: int, number: int, timeout: float) -> Outcome:
    """The outcome of one program."""
    program = make_program(seed, number)
    names = tuple(dict.fromkeys(call.name for call in program.calls))
    verdict = judge(program, timeout)
    kind = "wild" if program.is_wild else "legal"
    return Outcome(number, program.target, kind, verdict.status, verdict.detail, names)


def run_chunk(seed: int, first: int, last: int, timeout: float) -> list[Outcome]:
    """The outcomes of programs first..last-1, in a worker."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    return [run_one(seed, number, timeout) for number in range(first, last)]


def run_all(seed: int, count: int, jobs: int, timeout: float) -> list[Outcome]:
    """The outcomes of all programs, in order."""
    chunks = [(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    if jobs <= 1:
        return [one for first, last in chunks for one in run_chunk(seed, first, last, timeout)]
    context = multiprocessing.get_context("spawn")
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running = [(chunk, pool.submit(run_chunk, seed, *chunk, timeout)) for chunk in chunks]
        for (first, last), future in running:
            try:
                outcomes += future.result()
            except BrokenProcessPool:
                text = f"the process of programs {first} to {last - 1}, or another one, died"
                outcomes.append(Outcome(first, "", "", "died", text, ()))
    return outcomes


def summary(seed: int, outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """Counts by kind and status, instructions covered, failures."""
    covered = {
        (name, one.target)
        for one in outcomes
        if one.status == "agreed"
        for name in one.instructions
    }
    return {
        "seed": seed,
        "programs": len(outcomes),
        "outcomes": {
            kind: dict(collections.Counter(one.status for one in outcomes if one.kind == kind))
            for kind in ("legal", "wild")
        },
        "instructions_agreed": len({name for name, _ in covered}),
        "instructions_and_targets_agreed": len(covered),
        "seconds": round(seconds, 1),
        "failures": [asdict(one) for one in outcomes if one.is_failure],
        "passed": not any(one.is_failure for one in outcomes),
    }


def show(seed: int, number: int, timeout: float) -> Outcome:
    """Run one program again and print it as a file that runs."""
    program = make_program(seed, number)
    outcome = run_one(seed, number, timeout)
    print(f"# seed {seed}, program {number}, {program.target}, {outcome.kind}: {outcome.status}")
    for line in outcome.detail.splitlines():
        print(f"#   {line}")
    plan_snapshots(program)
    prune_snapshots(program)
    print(program.script())
    return outcome


def main() -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=1000, help="number of programs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one program")
    parser.add_argument("--only", type=int, help="run and print this program alone")
    parser.add_argument("--show", type=int, default=3, help="failing programs to print")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only is not None:
        return int(show(options.seed, options.only, options.timeout).is_failure)
    started = time.perf_counter()
    outcomes = run_all(options.seed, options.n, options.jobs, options.timeout)
    report = summary(options.seed, outcomes, time.perf_counter() - started)
    failures = [one for one in outcomes if one.is_failure and one.status != "died"]
    for one in failures[: options.show]:
        show(options.seed, one.number, options.timeout)
    print(
        f"{report['programs']} programs of seed {options.seed}: {report['outcomes']}, "
        f"{len(report['failures'])} failures, {report['seconds']} s"
    )
    if options.json:
        print(json.dumps(report))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
