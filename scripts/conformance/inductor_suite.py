"""PyTorch's own suite for Inductor, its tests for the CPU, with trnx in Inductor's place.

    python scripts/conformance/inductor_suite.py --checkout PYTORCH [--json] [--jobs N]
        [--sample N --seed S] [--tests REGEX] [--dynamic] [--results FILE]

PYTORCH is a checkout of the release that is installed (`test/inductor` is enough). Every test of
`test_torchinductor.py` runs with `backend="trnx"`; one that fails runs again with `aot_eager`:

* passed; where float32 results of the test's model are not close to eager's, their error against
  eager in float64 is at most twice eager's own (sums of another order);
* skipped: by the suite itself, with its reason;
* not ours: it fails with aot_eager too;
* internals: it passes with aot_eager, and its source names what only Inductor has (the generated
  code, counts of kernels, lowerings), which is printed;
* failed: anything else, also a test that ends its process or takes too long.

With `--dynamic` sizes are symbols, as in the suite's own `test_torchinductor_dynamic_shapes.py`.
Tests run in processes of a few each, with a limit of memory and of time for a test. `--results`
keeps what is known in a file of lines of JSON: a later run with the same file goes on from there.
`--json` prints one object as the last line; exit status 0 if and only if none failed and some ran.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

WORKER = Path(__file__).with_name("inductor_suite_worker.py")
SUITE = Path("test/inductor")
MODULE = "test_torchinductor"
TEMPLATE = "CommonTemplate"
TESTS_OF_A_PROCESS = 60
TEST_SECONDS = 300
# Importing torch, Inductor and the suite, on a busy machine.
START_SECONDS = 900

# What a test can only find where Inductor has compiled.
INTERNALS = re.compile(
    r"run_and_get_\w+|run_fw_bw_and_get_code|_run_and_get_stripped_kernels"
    r"|_run_and_assert_no_indirect_indexing|assertGeneratedKernelCountEqual|\bmetrics\b|FileCheck"
    r"|compile_fx_inner|\blowering\w*|\baoti\w*|_aoti\w*|add_scheduler_init_hook|GraphLowering"
    r"|\bV\.\w+|inductor_config|_inductor\.(?!config\b|test_case\b)\w+|\bpad_mm\b|fx_graph_cache"
    r"|\btriton\.\w+|DataTypePropagation|cpp_wrapper"
)


@dataclass(frozen=True)
class Result:
    """What became of one test."""

    test: str
    status: str
    reason: str


def test_sources(checkout: Path) -> dict[str, str]:
    """The tests of the suite's template, by name, with their text."""
    text = (checkout / SUITE / f"{MODULE}.py").read_text()
    lines = text.splitlines()
    template = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == TEMPLATE
    )
    return {
        node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in template.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def internals(source: str) -> str | None:
    """What of Inductor's internals the source of a test names, None where it names none."""
    found = INTERNALS.search(source)
    return found.group() if found else None


def next_line(stream: IO[bytes], seconds: float) -> bytes | None:
    """The next line of a worker; empty where it has ended, None where it says nothing so long."""
    ready, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if ready else None


@dataclass(frozen=True)
class Suite:
    """The suite in a checkout; `dynamic` says that sizes are symbols."""

    checkout: Path
    dynamic: bool


def run_some(suite: Suite, backend: str, tests: Sequence[str]) -> Iterator[Result]:
    """The first tests in a process of their own: all, or those up to one that ends it."""
    sizes = "dynamic" if suite.dynamic else "static"
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(suite.checkout), backend, sizes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("\n".join(tests).encode())
        process.stdin.close()
        if not next_line(process.stdout, START_SECONDS):
            raise SystemExit(f"the suite in {suite.checkout} cannot be loaded; see above")
        for test in tests:
            line = next_line(process.stdout, TEST_SECONDS)
            if not line:
                reason = "took too long" if line is None else "ended its process"
                yield Result(test, "failed", reason)
                return
            yield Result(**json.loads(line))
    finally:
        process.kill()
        process.wait()


def run_all(suite: Suite, backend: str, tests: Sequence[str]) -> Iterator[Result]:
    """Every test, with as many processes, one after the other, as it takes."""
    left = list(tests)
    while left:
        for result in run_some(suite, backend, left[:TESTS_OF_A_PROCESS]):
            left.remove(result.test)
            yield result


def classified(suite: Suite, tests: Sequence[str], sources: dict[str, str]) -> Iterator[Result]:
    """What became of each test, by the rules at the top."""
    failed = {}
    for result in run_all(suite, "trnx", tests):
        if result.status == "failed":
            failed[result.test] = result
        else:
            yield result
    for result in run_all(suite, "aot_eager", list(failed)):
        named = internals(sources[result.test])
        if result.status != "passed":
            yield Result(result.test, "not ours", result.reason)
        elif named is not None:
            yield Result(result.test, "internals", named)
        else:
            yield failed[result.test]


def known(path: Path | None) -> dict[str, Result]:
    """The results in a file of an earlier run."""
    if path is None or not path.exists():
        return {}
    found = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {result.test: result for result in found}


def chunks(tests: Sequence[str]) -> list[Sequence[str]]:
    """The tests, as many at a time as one process takes."""
    starts = range(0, len(tests), TESTS_OF_A_PROCESS)
    return [tests[start : start + TESTS_OF_A_PROCESS] for start in starts]


def chosen(arguments: argparse.Namespace, sources: dict[str, str]) -> list[str]:
    """The tests that are asked for."""
    tests = [test for test in sources if re.search(arguments.tests, test)]
    if arguments.sample is None:
        return tests
    count = min(arguments.sample, len(tests))
    return random.Random(arguments.seed).sample(tests, count)


def show(result: Result) -> None:
    """One line, and the end of what was said where it counts."""
    end = result.reason.strip().splitlines()[-1:] if result.status != "passed" else []
    print(" ".join([f"{result.status:<9}", result.test, *end])[:300], flush=True)


def run(arguments: argparse.Namespace) -> dict[str, Result]:
    """Run what is not known yet, and note each result as it comes."""
    done = known(arguments.results)
    sources = test_sources(arguments.checkout)
    tests = chosen(arguments, sources)
    suite = Suite(arguments.checkout, arguments.dynamic)

    def of_chunk(chunk: Sequence[str]) -> None:
        for result in classified(suite, chunk, sources):
            done[result.test] = result
            show(result)
            if arguments.results is not None:
                with arguments.results.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(of_chunk, chunks([test for test in tests if test not in done])))
    return {test: done[test] for test in tests}


def main() -> int:
    """Run the suite; 0 if none failed and some ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", default="")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = run(arguments)
    counts = Counter(result.status for result in results.values())
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    holds = counts["failed"] == 0 and counts["passed"] > 0
    if arguments.json:
        rest = [asdict(r) for r in results.values() if r.status != "passed"]
        print(json.dumps({"counts": counts, "rest": rest, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
