"""Compare what two checkouts of trnx record: for redesigns that must not change behaviour.

    git worktree add --detach /tmp/before main
    python scripts/compare_programs.py --before /tmp/before [--json] [--only SUBSTRING]

Each checkout runs in a process of its own, laid out as it is installed, on the same cases: all
kernels of the registry over their samples and generated kernels on every generation, kernels of the
simulator's tests (loops, cores, ranks), programs of the fuzzer, seeded bugs. A case is a text: the
listing of its Program, the predicted time of every instruction, the bits of its results, or the
error with its line; a line of trnx's own kernels is given by its text, because files move. Texts
must be equal byte by byte once `RENAMES` has been applied to the earlier one. `--json` prints one
object as the last line; exit status 0 means that all are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from check_tree import ROOT, build_tree

WORKER = ROOT / "scripts" / "compare_programs_side.py"
# Programs with a listing that a comparison must have.
LEAST_PROGRAMS = 200
SHOWN = 5

# What moved or got another name: (pattern in the text of the earlier checkout, what it is now).
RENAMES: tuple[tuple[str, str], ...] = (
    (r"\bdetail=", "attributes="),
    (r"simulator\.isa\.reductions\._(\w+)", r"simulator.operators.reductions.\1_last"),
    (
        r"simulator\.isa\.activation_functions\._sin\b",
        r"simulator.operators.functions.sin_of_scalar_engine",
    ),
    (
        r"simulator\.isa\.(?:alu|activation_functions)\._?"
        r"(copy|gelu\w*|silu_dx|erf_dx|prelu|relu|abs_max|abs_min|left_shift|logical_right_shift)\b",
        r"simulator.operators.functions.\1",
    ),
    # A scan holds the function of its operator, not the operator.
    (
        r"_through_torch(\S+)<\S+AluOp#\d+\(name='\w+', function=([\w.]+),[^)]*\)",
        r"_through_torch\1<\2",
    ),
    (r"needs trn2 or newer", "needs trn2 (NeuronCore-v3) or newer"),
    (r"needs trn3 or newer", "needs trn3 (NeuronCore-v4) or newer"),
    (
        r": it needs NeuronCore-v3 or newer",
        ": needs trn2 (NeuronCore-v3) or newer; the target is trn1",
    ),
    # Rooms, and names of the field.
    (r"\bRow\(", "Instruction("),
    (r"\bOperandRow\(", "Operand("),
    (r"\bPattern\(", "AccessPattern("),
    (r"simulator\.operators\.", "simulator.language.operators."),
    (r"simulator\.codecs\.", "simulator.memory.dtype_conversion."),
    (r"simulator\.tiles\.(_with_second|_map_pair)", r"simulator.frontend.tile_operators.\1"),
    (r"simulator\.tiles\.", "simulator.frontend.tiles."),
    (r"simulator\.exchange\.", "simulator.multicore.exchange."),
    (r"simulator\.joint\.Joint\b", "simulator.program.interleaved_loops.InterleavedLoops"),
    (r"simulator\.joint\.Arrival\b", "simulator.program.interleaved_loops.WaitPoint"),
    (r"simulator\.joint\.Meeting\b", "simulator.program.interleaved_loops.Rendezvous"),
    (r"\bmeeting=", "rendezvous="),
    (r"simulator\.joint\.", "simulator.program.interleaved_loops."),
    (r"simulator\.registers\.", "simulator.language.registers."),
    # In the sources of the attention kernels.
    (r"\brows_of\((x|target|out|g\.dq_sum), chunk", r"head_rows(\1, chunk"),
    (r"\bdst=fade\b", "dst=factor"),
)

# Cases that differ on purpose: why. They are compared and shown, and do not count.
ON_PURPOSE: dict[str, str] = {
    "fuzz 42": "nl.gelu_apprx_tanh of a tile is ScalarE's function now, and differs in last bits",
    "fuzz 171": "the step of nl.where holds numbers, and its operands no more",
}


def renamed(text: str, renames: Sequence[tuple[str, str]] = RENAMES) -> str:
    """A text of the earlier checkout with the names of this one."""
    for pattern, now in renames:
        text = re.sub(pattern, now, text)
    return text


def start(checkout: Path, folder: Path, only: str) -> subprocess.Popen[str]:
    """Lay out a checkout under `folder` and write the texts of its cases to `folder`/cases."""
    tree = folder / "tree"
    build_tree(checkout, tree)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    command = [sys.executable, str(WORKER), "--checkout", str(checkout), "--tree", str(tree)]
    command += ["--cases", str(folder / "cases"), "--only", only]
    return subprocess.Popen(command, cwd=folder, env=environment, text=True)


def first_difference(before: str, after: str) -> str:
    """The first line that differs, of both texts."""
    lines = zip_longest(before.splitlines(), after.splitlines(), fillvalue="(no line)")
    for number, (one, other) in enumerate(lines, 1):
        if one != other:
            return f"line {number}\n  before: {one}\n  after:  {other}"
    return "ends of lines"


def differences(before: Path, after: Path) -> Iterator[tuple[str, str]]:
    """(case, what differs) of two folders of texts."""
    names = sorted({path.name for folder in (before, after) for path in folder.iterdir()})
    for name in names:
        if not ((before / name).exists() and (after / name).exists()):
            side = "before" if (before / name).exists() else "after"
            yield name, f"only {side}"
            continue
        one, other = renamed((before / name).read_text()), (after / name).read_text()
        if one != other:
            yield name, first_difference(one, other)


def summary(before: Path, after: Path) -> dict[str, Any]:
    """Counts of cases by kind, and what differs."""
    names = [path.name for path in after.iterdir()]
    every = dict(differences(before, after))
    found = {name: what for name, what in every.items() if name not in ON_PURPOSE}
    texts = ((after / name).read_text() for name in names)
    programs = sum(text.startswith("program ") for text in texts)
    return {
        "cases": dict(Counter(name.partition(" ")[0] for name in names)),
        "programs": programs,
        "renames": len(RENAMES),
        "different": found,
        "on_purpose": {name: ON_PURPOSE[name] for name in every if name in ON_PURPOSE},
        "equal": not found,
    }


def compare(before: Path, after: Path, only: str = "") -> dict[str, Any]:
    """Run both checkouts side by side and compare their texts."""
    with tempfile.TemporaryDirectory() as folder:
        sides = [Path(folder) / "before", Path(folder) / "after"]
        running = []
        for checkout, side in zip((before, after), sides, strict=True):
            (side / "cases").mkdir(parents=True)
            running.append(start(checkout.resolve(), side, only))
        failed = [str(process.args) for process in running if process.wait()]
        if failed:
            raise SystemExit(f"failed: {failed}")
        return summary(sides[0] / "cases", sides[1] / "cases")


def main() -> int:
    """Command line: 0 where both checkouts record the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="folder of the other checkout")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    options = parser.parse_args()
    result = compare(options.before, ROOT, options.only)
    for name, why in result["on_purpose"].items():
        print(f"{name} differs on purpose: {why}")
    for name, what in list(result["different"].items())[:SHOWN]:
        print(f"{name}: {what}")
    is_whole = bool(options.only) or result["programs"] >= LEAST_PROGRAMS
    print(
        f"{result['programs']} programs, {result['cases']}: "
        f"{len(result['different'])} differ, {result['renames']} renames"
    )
    if options.json:
        print(json.dumps(result))
    return 0 if result["equal"] and is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
