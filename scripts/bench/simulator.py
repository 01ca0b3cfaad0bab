"""Speed and memory of the simulator, one thread: the bars of replay and of tracing.

Replay with preallocated outputs against torch eager with `out=`, by the registry's own kernels, on
every generation: matmul 1024^3 float32 <= 1.25x, bfloat16 <= 1.3x of eager's float32 product,
softmax 2048x2048 <= 3x, flash attention 1x8x1024x64 <= 2.2x. Each kernel also runs with all checks,
its result must be eager's, and replay must give the same bits.

Tracing with all checks on, 128 x 8 tiles: <= 60 us an instruction (median) with values, <= 30 us
without; an instruction of a kernel eight times as long costs <= 1.5x; growth of peak memory <= 1.3x
of arguments, outputs, SBUF and PSUM; <= 400 bytes an instruction for the Program.

Times are CPU times of the thread: for replay the median ratio of 10 pairs of a call and eager's,
one after the other, and for tracing the median over instructions of the least time that each took
in 7 traces. Other processes are not counted, but they lengthen both by the caches that they take.
`--json` prints one object as the last line; exit status 0 means that the bars hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import simulator_measures as measures
import torch

TRACING_BARS = {
    "tracing with values, us": 60.0,
    "tracing without values, us": 30.0,
    "tracing, 8 times as long, ratio": 1.5,
    "Program, bytes an instruction": 400.0,
}
MEMORY_BAR = 1.3
MEMORY_CASES = ("matmul 1024^3 float32", "softmax 2048x2048", "flash attention 1x8x1024x64")


@dataclass(frozen=True)
class Row:
    """One number; `bar` is None where it is shown for information. `note` is printed."""

    name: str
    value: float
    bar: float | None
    note: str = ""
    is_right: bool = True

    @property
    def holds(self) -> bool:
        """Whether the bar holds, and the result was right."""
        return self.is_right and (self.bar is None or self.value <= self.bar)

    def text(self) -> str:
        """A line of the table."""
        bar = "" if self.bar is None else f"<= {self.bar:g}"
        verdict = "" if self.bar is None else "holds" if self.holds else "FAILS"
        wrong = "" if self.is_right else " (wrong result)"
        return f"{self.name:<44}{self.value:10.2f} {bar:<8}{verdict:<7}{self.note}{wrong}"


def replay_rows(runs: int) -> list[Row]:
    """Replay of every case on every generation."""
    rows = []
    for case in measures.cases():
        for target in measures.TARGETS:
            found = measures.replay(case, target, runs)
            note = f"{found['trnx_ms']:.2f} ms, eager {found['eager_ms']:.2f} ms"
            name = f"replay, {case.name}, {target}"
            rows.append(Row(name, found["ratio"], case.bar, note, found["is_right"]))
    return rows


def in_new_process(measure: str, *arguments: str) -> float:
    """A measure of memory: nothing else has been there before."""
    command = [sys.executable, os.path.abspath(__file__), "--measure", measure, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.splitlines()[-1])


def tracing_rows(turns: int, repeats: int) -> list[Row]:
    """Time, growth and memory of tracing."""
    values = {
        "tracing with values, us": measures.tracing(True, turns, repeats)[0],
        "tracing without values, us": measures.tracing(False, turns, repeats)[0],
        "tracing, 8 times as long, ratio": measures.growth(turns, 8, repeats),
        "Program, bytes an instruction": in_new_process("bytes", str(turns * 32)),
    }
    rows = [Row(name, value, TRACING_BARS[name]) for name, value in values.items()]
    rows.append(Row("tracing flash attention, us", measures.attention_tracing(repeats), None))
    for name in MEMORY_CASES:
        value = in_new_process("peak", name, "trn2")
        rows.append(Row(f"peak memory, {name}", value, MEMORY_BAR))
    return rows


MEASURES: dict[str, Callable[..., float]] = {
    "bytes": lambda turns: measures.bytes_per_instruction(int(turns)),
    "peak": measures.peak_memory,
}


def summary(rows: list[Row]) -> dict[str, Any]:
    """The JSON object."""
    return {
        "rows": [{**asdict(row), "holds": row.holds} for row in rows],
        "load_average": os.getloadavg()[0],
        "bars_hold": all(row.holds for row in rows),
    }


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure:
        print(MEASURES[arguments.measure[0]](*arguments.measure[1:]))
        return 0
    rows = replay_rows(runs=10) + tracing_rows(measures.TURNS, repeats=7)
    for row in rows:
        print(row.text())
    print(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    result = summary(rows)
    if arguments.json:
        print(json.dumps(result))
    return 0 if result["bars_hold"] else 1


if __name__ == "__main__":
    sys.exit(main())
