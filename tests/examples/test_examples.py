"""Every example runs as a reader would run it, and README names each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# What an example prints, and the files that it makes.
EXPECTED = {
    "compile_a_model.py": ("aten.median.dim", ()),
    "write_a_kernel.py": ("trn3: 1, 127, 128 and 300 rows agree", ()),
    "debug_a_race.py": ("shared-hbm-order", ()),
    "read_a_profile.py": ("busiest queue", ("kernel.pftrace", "roofline.png", "memory.png")),
    "train_on_two_processes.sh": ('"event": "resume"', ("checkpoints",)),
    "submit_a_job.sh": ("manifests hold", ("job.yaml",)),
}
# Kernels and data of the examples.
_PARTS = {"rms_scale.py", "racing_cores.py", "job.yaml"}


@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs(name: str, tmp_path: Path) -> None:
    text, files = EXPECTED[name]
    command = [sys.executable] if name.endswith(".py") else ["bash"]
    # Scripts find `python`, `torchrun` and `trnx` of this environment.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    arguments = [str(tmp_path / "out")] if files else []
    done = subprocess.run(
        [*command, str(EXAMPLES / name), *arguments],
        cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert text in done.stdout
    for file in files:
        assert (tmp_path / "out" / file).exists()


def test_every_example_is_run_and_named() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert found == set(EXPECTED) | _PARTS
    readme = (ROOT / "README.md").read_text()
    assert all(f"examples/{name}" in readme for name in EXPECTED)
