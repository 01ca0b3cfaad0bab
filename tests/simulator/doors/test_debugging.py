"""`trnx sim --debug` and `--trace` as a user runs them, and breakpoints of every kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import sys
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def scale(a, wrong):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    if not wrong:
        nisa.dma_copy(dst=tile, src=a)
    total = 41 + 1
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)  # line 15
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def both(a, wrong):
    me = nl.program_id()
    if me == 1:
        nisa.core_barrier(data=a, cores=(0, 1))
    return scale(a, wrong)


@nki.jit
def stops(a):
    tile = nl.load(a)
    breakpoint()
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


x = np.ones((4, 3), np.float32)
how = sys.argv[1]
if how == "stops":
    print("result", stops(x).sum())
elif how == "both":
    both[2](x, True)
else:
    print("result", scale(x, how == "wrong").sum())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "scale.py"
    file.write_text(SCRIPT)
    return file


def _run(typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trnx.cli", "sim", "--target", "trn2", *arguments]
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("how", ["wrong", "both"])
def test_a_failing_check_opens_the_debugger_at_the_kernels_line(script: Path, how: str) -> None:
    done = _run("p total\np tile.shape\np wrong\nq\n", "--debug", str(script), how)
    assert done.returncode == 0, done.stderr
    assert "[uninitialised-read]" in done.stderr
    assert f"> {script}(15)scale()" in done.stdout
    assert "operand0=2.0)  # line 15" in done.stdout
    answers = [line.removeprefix("(Pdb) ") for line in done.stdout.splitlines()]
    assert [line for line in answers if line in ("42", "(4, 3)", "True")] == [
        "42",
        "(4, 3)",
        "True",
    ]


def test_without_the_option_the_finding_ends_the_script(script: Path) -> None:
    done = _run("", str(script), "wrong")
    assert done.returncode != 0
    assert "(Pdb)" not in done.stdout
    assert "[uninitialised-read] tensor_scalar: data" in done.stderr
    assert f"{script}:15 in scale" in done.stderr


def test_a_script_without_findings_is_not_stopped(script: Path) -> None:
    done = _run("", "--debug", str(script), "right")
    assert (done.returncode, done.stdout, done.stderr) == (0, "result 24.0\n", "")


def test_breakpoint_opens_the_debugger_in_the_kernel(script: Path) -> None:
    done = _run("p tile.shape, a.buffer.value\nc\n", str(script), "stops")
    assert done.returncode == 0, done.stderr
    assert "((4, 3), 'private_hbm')" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("result 12.0")


def test_the_trace_ends_at_the_last_legal_instruction(script: Path) -> None:
    done = _run("", "--trace", str(script), "both")
    lines = [line for line in done.stdout.splitlines() if " # " in line]
    assert done.returncode != 0
    # One program waits at the barrier; the other has recorded nothing before its finding.
    assert lines == []
    done = _run("", "--trace", str(script), "right")
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line, name, number in zip(
        lines, ("dma_copy", "tensor_scalar", "dma_copy"), (13, 15, 16), strict=False
    ):
        assert f" {name} " in line
        assert line.endswith(f"# {script}:{number}")
    assert "(4, 3) float32 in sbuf <- (4, 3) float32 in sbuf" in lines[1]
