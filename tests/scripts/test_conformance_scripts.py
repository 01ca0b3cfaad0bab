"""The script that runs others with `trnx sim`: which it takes, what becomes of them, its exit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "conformance" / "scripts.py"
KERNEL = """\
import nki
import nki.language as nl

COUNT = 2


@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.add(nl.load(x), nl.load(x)))
    return out
"""
FILES = {
    "kernels.py": KERNEL,
    "good.py": "import numpy as np\nfrom kernels import twice\n"
    "assert twice(np.ones((2, 3), np.float32)).sum() == 12\nopen('made.txt', 'w').close()\n",
    "large.py": "import numpy as np\nfrom kernels import twice\n"
    "twice(np.ones((129, 3), np.float32))\n",
    "older.py": "import os, neuronxcc.nki as nki\nimport nki.language\nraise SystemExit(9)\n",
    "unrelated.py": "raise SystemExit(9)\n",
    "__init__.py": "import nki\nraise SystemExit(9)\n",
    "newer.py": "import os\nimport nki\nFLAGS = '--target trn3'\n"
    "assert os.environ['NEURON_PLATFORM_TARGET_OVERRIDE'] == 'trn3'\n",
}


def run(checkout: Path, files: dict[str, str]) -> tuple[int, dict[str, object]]:
    folder = checkout / "nki" / "examples"
    folder.mkdir(parents=True)
    (checkout / "outside.py").write_text("import nki\nraise SystemExit(9)\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--checkout", str(checkout), "--seconds", "60", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert {path.name for path in folder.iterdir()} == set(files), "it wrote to the checkout"
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_what_becomes_of_each_script(tmp_path: Path) -> None:
    status, found = run(tmp_path / "good", FILES)
    assert status == 0
    results = found.pop("results")
    assert isinstance(results, list)
    statuses = {Path(one["script"]).name: one["status"] for one in results}
    assert statuses == {
        "kernels.py": "only defines kernels",
        "good.py": "ran",
        "large.py": "named",
        "newer.py": "ran",
    }
    (detail,) = [one["detail"] for one in results if one["status"] == "named"]
    assert "129" in detail
    assert found == {
        "ran": 2,
        "only defines kernels": 1,
        "named": 1,
        "failed": 0,
        "not run": {"for NKI before 0.4": 1, "without NKI": 1, "part of a package": 1},
    }


def test_a_failure_is_the_exit_status(tmp_path: Path) -> None:
    wrong = {"kernels.py": KERNEL, "wrong.py": "import nki\nraise ValueError('my own')\n"}
    status, found = run(tmp_path / "wrong", wrong | {"good.py": FILES["good.py"]})
    assert (status, found["failed"], found["ran"]) == (1, 1, 1)
    results = found["results"]
    assert isinstance(results, list)
    assert [one["detail"] for one in results if one["status"] == "failed"] == ["ValueError: my own"]
    assert run(tmp_path / "none", {"unrelated.py": ""})[0] == 1
