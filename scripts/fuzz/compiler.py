"""Fuzz the compiler: random PyTorch programs, compiled by trnx and in eager.

    python scripts/fuzz/compiler.py --seed 1 --n 500 [--layers] [--jobs 2] [--json]
    python scripts/fuzz/compiler.py --seed 1 --only 123     # one program again, made smaller

A program has up to four tensors of random dtypes, sizes (1, 127, 128, 129 among them) and layouts
(transposed, with a step, with an offset, expanded) and up to 14 lines: pointwise functions,
reductions, products, views, copies, indexing, writes to arguments and to views of them. Some are
compared with their gradients, some are called with two sets of sizes under dynamic shapes. With
`--layers` most lines are parts of models (`torch_programs/layers.py`), in which one tensor may have
several roles, and some programs run under `no_grad` or autocast. Each is compared with eager as
`torch_programs/differential.py` says. What `aot_eager` gets wrong too is torch's. Exit status 0: no
failure.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import torch
from torch_programs import builder, layer_builder
from torch_programs.differential import Verdict, check
from torch_programs.program import Program
from torch_programs.shrink import shrink

CHUNK = 5  # programs that a process is given at a time
CHUNKS = 20  # that it is given in all


@dataclass(frozen=True)
class Outcome:
    """What became of one program."""

    number: int
    status: str
    detail: str

    @property
    def is_failure(self) -> bool:
        """See `Verdict`."""
        return Verdict(self.status).is_failure


Build = Callable[[int, int], Program]


def run_chunk(build: Build, seed: int, first: int, last: int) -> list[Outcome]:
    """Programs first..last-1, in a process of their own."""
    torch.set_num_threads(1)
    found = [(number, check(build(seed, number))) for number in range(first, last)]
    return [Outcome(number, verdict.status, verdict.detail) for number, verdict in found]


def run_all(build: Build, seed: int, count: int, jobs: int) -> Iterator[Outcome]:
    """The outcomes of all programs, in order."""
    chunks = [(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    context = multiprocessing.get_context("spawn")
    # New processes after some chunks, as what is compiled stays in memory: a pool that replaces its
    # own (`max_tasks_per_child`) may wait forever in Python 3.11.
    for start in range(0, len(chunks), CHUNKS * jobs):
        some = chunks[start : start + CHUNKS * jobs]
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            for running in [pool.submit(run_chunk, build, seed, *chunk) for chunk in some]:
                yield from running.result()


def show(build: Build, seed: int, number: int) -> Verdict:
    """Run one program again; print what of it fails."""
    program = build(seed, number)
    verdict = check(program)
    if verdict.is_failure:
        program = shrink(program, lambda one: check(one).status == verdict.status)
    print(f"# seed {seed}, program {number}: {check(program)}")
    print(program.script())
    return verdict


def main() -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=200, help="number of programs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, help="run, shrink and print this program alone")
    parser.add_argument("--show", type=int, default=3, help="failing programs to print")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--layers", action="store_true", help="programs of parts of models")
    options = parser.parse_args()
    build = layer_builder.build if options.layers else builder.build
    torch.set_num_threads(1)
    if options.only is not None:
        return int(show(build, options.seed, options.only).is_failure)
    started = time.perf_counter()
    outcomes = []
    for one in run_all(build, options.seed, options.n, options.jobs):
        outcomes.append(one)
        if one.is_failure:
            print(f"program {one.number}: {one.status}: {one.detail}", flush=True)
    failures = [one for one in outcomes if one.is_failure]
    for one in failures[: options.show]:
        show(build, options.seed, one.number)
    counts = dict(collections.Counter(one.status for one in outcomes))
    seconds = round(time.perf_counter() - started, 1)
    print(f"{len(outcomes)} programs of seed {options.seed}: {counts}, {seconds} s")
    if options.json:
        failed = [asdict(one) for one in failures]
        print(json.dumps({"programs": len(outcomes), "outcomes": counts, "failures": failed}))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
