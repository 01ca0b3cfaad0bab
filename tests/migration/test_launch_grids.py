"""`trnx migrate` on launch grids with a program for each tile: a loop over the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trnx.simulator
from trnx.migration.migrate import MARK, migrate
from trnx.simulator.errors import TrnxError

HEAD = """\
import math

import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

"""
TILES = '''\
@nki.jit
def kernel(x, scale=None,
           offset=(1.0),
           ):
    """Each program
    has a tile."""
    rows, cols = x.shape
    i = nl.program_id(axis=0) * 16
    assert rows % 16 == 0, f"""no
whole tiles"""
    scale = scale or float("2")
    offset = offset or Offset(1.0)

    # what the programs make together
    out = nl.ndarray((rows, cols), dtype=x.dtype,
                     buffer=nl.shared_hbm)
    if offset is None:
        rest = nl.ndarray((rows, cols), dtype=x.dtype, buffer=nl.shared_hbm)
    j = nl.program_id(1) * 8
    ip = i + nl.arange(16)[:, None]
    jf = j + nl.arange(8)[None, :]
    total = nl.zeros((16, 8), dtype=nl.float32, buffer=nl.sbuf)
    for turn in range(2):
        total[...] = total + nl.load(x[ip, jf])
    if nl.program_id(0) + 1 == nl.num_programs(0) and nl.program_ndim() == 2:
        total[...] = total * 10.0
    nl.store(out[ip, jf], value=total * scale + offset)
    if offset is None:
        return out, rest
    return out
'''
RUNS = {
    "kernel[rows, cols](x)": "kernel(x, launch_grid=(rows, cols))",
    "kernel[rows,\n        cols](x, 2.0,\n        )":
        "kernel(x, 2.0,\n        launch_grid=(rows, cols)\n)",
    "nki.simulate_kernel(kernel[rows, cols], x)": "simulate(kernel)(x, launch_grid=(rows, cols))",
    "kernel[nl.spmd_dim(rows // 2, nl.nc(2)), cols](x)": "launch_grid=((rows // 2) * 2, cols))",
    "kernel[nl.nc(2) * (rows // 2), nl.nc(1) * cols](x)": "launch_grid=(2 * (rows // 2), 1 * cols)",
    "kernel[grid](x)": "kernel(x, launch_grid=grid)",
}  # fmt: skip


def _expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    doubled = 2 * x
    doubled[-16:] *= 10
    return doubled * 2 + 1


def _run(tmp_path: Path, text: str, *arguments: Any, target: str = "trn2") -> Any:
    file = tmp_path / f"kernel_{len(list(tmp_path.iterdir()))}.py"
    file.write_text(text)
    module = trnx.simulator.load_module(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        return np.asarray(module.run(*arguments))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("launch", RUNS)
def test_a_kernel_loops_over_its_programs(tmp_path: Path, launch: str, target: str) -> None:
    old = (
        f"{HEAD}{TILES}\n\ndef run(x):\n    rows, cols = x.shape[0] // 16, x.shape[1] // 8\n"
        f"    grid = (rows, cols)\n    return {launch}\n"
    )
    found = migrate(old)
    assert found.notes == ()
    assert RUNS[launch] in found.new
    x = np.random.default_rng(0).standard_normal((32, 24)).astype(np.float32)
    with pytest.raises((TrnxError, TypeError)):
        _run(tmp_path, old, x, target=target)
    np.testing.assert_allclose(_run(tmp_path, found.new, x, target=target), _expected(x), rtol=1e-5)
    assert migrate(found.new).new == found.new, "a second time changes nothing"


def test_what_all_programs_share_stands_before_the_loop() -> None:
    new = migrate(f"{HEAD}{TILES}").new
    before, loop = new.split("    assert nl.num_programs() == 1")
    assert "offset=(1.0), launch_grid=(1, 1),\n" in before
    assert "    # what the programs make together\n    out = nl.ndarray" in before
    assert "\nwhole tiles" in before, "a text of several lines keeps its spaces"
    assert "            total = nl.zeros(" in loop, "a tile is cleared for each program"
    assert "                total[...] = nl.add(total, " in loop
    assert loop.endswith("    return out\n")


def test_a_launch_by_brackets_of_a_rewritten_kernel_is_refused(tmp_path: Path) -> None:
    new = migrate(f"{HEAD}{TILES}").new + "\n\ndef run(x):\n    return kernel[2](x)\n"
    with pytest.raises(AssertionError, match="launch with launch_grid"):
        _run(tmp_path, new, np.ones((32, 24), np.float32))


def test_kernels_of_other_files_get_their_grid_as_an_argument() -> None:
    old = (
        f"{HEAD}from attention import flash\n\nrun = nki.baremetal(flash)\n"
        "a = run[2, heads](q, k, seed=None)\nb = flash[2, heads](q)\n"
        "c = flash[heads](q)\nd = table[2, heads](q)\n"
    )
    new = migrate(old).new
    assert "run = nki.simulate(flash)\na = run(q, k, seed=None, launch_grid=(2, heads))\n" in new
    assert "b = flash(q, launch_grid=(2, heads))\n" in new
    assert "c = flash[heads](q)\nd = table[2, heads](q)\n" in new, "these may be something else"


ONE_AXIS = """\
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ds(nl.program_id(0) * 8, 8)
    nl.store(out[rows], value=nl.load(x[rows]))
    return out


def run(x):
    return kernel[GRID](x)
"""


@pytest.mark.parametrize(
    ("grid", "new"),
    [
        ("2", "kernel[2](x)"),
        ("nl.nc(2)", "kernel[2](x)"),
        ("x.shape[0] // 8", "kernel(x, launch_grid=(x.shape[0] // 8,))"),
        ("(2,)", "kernel[2,](x)"),
    ],
)
def test_a_grid_of_one_axis_may_be_the_cores(tmp_path: Path, grid: str, new: str) -> None:
    found = migrate(HEAD + ONE_AXIS.replace("GRID", grid))
    assert ("launch_grid" in found.new) == ("launch_grid" in new)
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    assert np.array_equal(_run(tmp_path, found.new, x), x)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nisa.core_barrier(x, (0, 1))", "its programs meet"),
        ("if x.shape[0] > 3: return out", "it returns from within"),
        (
            "more = nl.ndarray(out[rows].shape, nl.int8, buffer=nl.shared_hbm)",
            "`more` or its shape",
        ),
        ("x = nl.load(x[0:8])", "`x` is bound again in each program"),
        ("out = nl.add(out, 1.0)", "`out` or its shape is made by each program"),
        ("j = nl.program_id(axis)", "has no axis that is a number"),
    ],
)
def test_a_kernel_that_has_no_such_loop_stays(line: str, why: str) -> None:
    first, last = (HEAD + ONE_AXIS.replace("GRID", "x.shape[0] // 8")).split("    nl.store")
    old = f"{first}    {line}\n    nl.store{last}"
    found = migrate(old)
    (note,) = [(number, text) for number, text in found.notes if "loop over the tiles" in text]
    assert why in note[1]
    assert note[0] == old[: old.index("def kernel")].count("\n") + 1
    assert f"{MARK} a launch grid" in found.new
    assert "kernel[x.shape[0] // 8](x)" in found.new


def test_notes_stand_at_the_lines_of_the_old_file() -> None:
    line = "    nl.atomic_rmw(x, x, op=np.add)\n"
    old = f"{HEAD}{TILES}".replace("    nl.store", f"{line}    nl.store")
    (note,) = migrate(old).notes
    assert note[0] == old[: old.index("nl.atomic_rmw")].count("\n") + 1


def test_functions_of_one_name_stay() -> None:
    """A launch does not say which of them it means."""
    source = ONE_AXIS.replace("GRID", "x.shape[0] // 8")
    found = migrate(f"{HEAD}{source}\n\ndef other():\n    def kernel(x):\n        return x\n")
    assert "more functions have its name" in found.notes[0][1]
    assert "launch_grid" not in found.new
