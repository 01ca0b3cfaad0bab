"""The script that runs other people's kernels: as they are, migrated, and what becomes of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "conformance" / "foreign.py"
OLD = """\
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ip, jf = nl.mgrid[0:4, 0:3]
    nl.store(out[ip, jf], value=nl.load(x[ip, jf]) * FACTOR)
    return out


if __name__ == "__main__":
    assert twice(np.ones((4, 3), np.float32)).sum() == 24
"""
NEW = """\
import numpy as np
import nki
import nki.language as nl


@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.multiply(nl.load(x), 2.0))
    return out


if __name__ == "__main__":
    twice(np.ones((4, 3), np.float32))
"""
TOLD = """\
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


def helper(tiles):
    return tiles.shape


@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = nl.ndarray((2, nl.par_dim(4), 3), dtype=x.dtype, buffer=nl.sbuf)
    helper(
        tiles[0:2])
    return out


if __name__ == "__main__":
    import numpy as np
    assert twice(np.ones((4, 3), np.float32)).sum() == 12
"""
TRACED = """\
import numpy as np
import triton_viz
from triton_viz.clients import Tracer
from triton_viz.core.trace import launches

import nki.isa as nisa
import nki.language as nl


def twice(x, out):
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out, tile)


if __name__ == "__main__":
    out = np.zeros((4, 3), np.float32)
    triton_viz.trace(client=Tracer(), frontend="nki")(twice)[(1, 1)](np.ones_like(out), out)
    assert out.sum() == 24
"""
FILES = {
    "old.py": OLD.replace("FACTOR", "2.0"),
    "wrong.py": OLD.replace("FACTOR", "3.0"),
    "left.py": OLD.replace("FACTOR", "2.0").replace("0:4, 0:3]", "0:4:2, 0:3]"),
    "new.py": NEW,
    "broken.py": NEW + "    open('/no/such/file')\n",
    "unrelated.py": "assert False\n",
    "library.py": "import nki\n\nSIZE = 3\n",
}

_KERNEL = OLD[: OLD.index("\n\nif __name__")].replace("twice", "test_twice")
_CASE = """

class Twice(unittest.TestCase):
    def test_values(self):
        assert test_twice(np.ones((4, 3), np.float32)).sum() == EXPECTED
"""
_TEXT = "import unittest\n\n" + _KERNEL.replace("FACTOR", "2.0") + _CASE
CASES = {
    "cases.py": _TEXT.replace("EXPECTED", "24"),
    "wrong_cases.py": _TEXT.replace("EXPECTED", "25"),
}

OTHERS = {"told.py": TOLD, "traced.py": TRACED}
LIMITED = {
    "large.py": NEW + "    np.ones(3 << 28)\n",
    "slow.py": NEW + "    import time\n\n    time.sleep(60)\n",
}


def _run(folder: Path, names: list[str], *options: str) -> tuple[int, dict[str, str]]:
    checkout = folder / "checkout"
    checkout.mkdir(parents=True, exist_ok=True)
    for name in names:
        (checkout / name).write_text({**FILES, **CASES, **LIMITED, **OTHERS}[name])
    arguments = ["--checkouts", str(folder), "--seconds", "60", *options, "--json"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert {path.name for path in checkout.iterdir()} == set(names), "it wrote to the checkout"
    data = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, {one["file"]: one["status"] for one in data["results"]}


def test_what_becomes_of_each_file(tmp_path: Path) -> None:
    status, found = _run(tmp_path / "all", list(FILES))
    assert status == 1
    assert found == {
        "checkout/broken.py": "failed",
        "checkout/left.py": "named",
        "checkout/new.py": "as it is, has no reference",
        "checkout/old.py": "migrated",
        "checkout/wrong.py": "wrong values",
    }


def test_a_failure_below_a_comment_of_migrate_is_named(tmp_path: Path) -> None:
    _, found = _run(tmp_path / "told", ["told.py"])
    assert found == {"checkout/told.py": "named"}


def test_triton_viz_has_a_stand_in(tmp_path: Path) -> None:
    status, found = _run(tmp_path / "viz", ["traced.py"])
    assert (status, found) == (0, {"checkout/traced.py": "as it is"})


def test_good_files_alone_hold_the_bar(tmp_path: Path) -> None:
    status, found = _run(tmp_path / "good", ["old.py", "new.py"])
    assert status == 0
    assert found["checkout/old.py"] == "migrated"


def test_a_kernel_that_is_named_like_a_test_is_none(tmp_path: Path) -> None:
    _, found = _run(tmp_path / "cases", list(CASES))
    assert found == {"checkout/cases.py": "migrated", "checkout/wrong_cases.py": "wrong values"}


def test_files_that_need_more_than_they_may_take(tmp_path: Path) -> None:
    status, found = _run(tmp_path / "limits", list(LIMITED), "--seconds", "12", "--gigabytes", "4")
    assert status == 1
    assert found == {"checkout/large.py": "no memory", "checkout/slow.py": "no time"}


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text('{"file": "checkout/wrong.py", "status": "migrated", "detail": ""}\n')
    status, found = _run(tmp_path / "on", ["new.py", "wrong.py"], "--results", str(kept))
    assert status == 0
    assert found["checkout/wrong.py"] == "migrated", "it ran again"
    assert [json.loads(line)["file"] for line in kept.read_text().splitlines()] == [
        "checkout/wrong.py",
        "checkout/new.py",
    ]
