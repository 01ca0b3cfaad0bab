"""The wheel works from outside the checkout: entry point, kernels, command, typing marker."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USE = """
import importlib.metadata
import sys
import torch
import trnx
from pathlib import Path

site = Path(sys.argv[1])
assert site in Path(trnx.__file__).parents, trnx.__file__
entries = importlib.metadata.distribution("trnx").entry_points
(entry,) = entries.select(group="torch_dynamo_backends")
assert entry.name == "trnx"
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())
x = torch.randn(4, 8)
with torch.no_grad(), trnx.collect_reports() as reports:
    torch.testing.assert_close(torch.compile(model, backend="trnx")(x), model(x))
assert reports.flops_on_nki == 1.0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a clean copy of what git tracks."""
    source = tmp_path_factory.mktemp("source")
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, files.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*command, "-w", str(out), str(source)], check=True, capture_output=True)
    (built,) = out.glob("trnx-*.whl")
    return built


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"trnx"}
    assert "trnx/py.typed" in names
    kernel = "nki_kernels/kernels/attention/sdpa"
    for module in ("backend/entry", "simulator/language/tensor", kernel, "fallback/xla"):
        assert f"trnx/{module}.py" in names


def test_wheel_compiles_a_model_from_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (tmp_path / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, "use.py", str(site)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
