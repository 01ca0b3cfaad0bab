"""`TORCH_COMPILE_DEBUG=1` leaves graphs, plan, kernels and reports in torch's debug folder."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from trnx.backend.report import RegionReport
from trnx.nki_kernels.registry import kernels

SCRIPT = """
import torch, trnx
from torch.nn import functional as F
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)

def step(x):
    return torch.linalg.inv(F.gelu(model(x)) + 20 * torch.eye(16))

x = torch.randn(16, 16)
compiled = torch.compile(step, backend="trnx", options={"select": "legal", "fallback": "eager"})
found = compiled(x)
torch.testing.assert_close(found, step(x))
found.sum().backward()
"""
FILES = {"captured.py", "canonical.py", "plan.txt", "report.json", "kernels"}


def _graphs(folder: Path) -> dict[str, Path]:
    """Kind of each graph -> its folder; all of one run."""
    (run,) = folder.glob("torch_compile_debug/run_*")
    return {found.name.partition(".")[2]: found for found in (run / "trnx").iterdir()}


def test_a_process_leaves_graphs_plan_kernels_and_reports(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TORCH_COMPILE_DEBUG": "1",
        "TORCH_COMPILE_DEBUG_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    graphs = _graphs(tmp_path)
    assert set(graphs) == {"forward", "backward"}
    for folder in graphs.values():
        assert {path.name for path in folder.iterdir()} == FILES
        for graph in ("captured.py", "canonical.py"):
            assert ast.parse((folder / graph).read_text()).body
        assert list((folder / "kernels").iterdir())
    _check_forward(graphs["forward"])


def _check_forward(folder: Path) -> None:
    assert "torch.ops.aten.gelu" in (folder / "captured.py").read_text()
    report = json.loads((folder / "report.json").read_text())
    plan = (folder / "plan.txt").read_text()
    assert {region["engine"] for region in report["regions"]} == {"nki", "eager"}
    for region in report["regions"]:
        assert f"\n{region['name']}: {region['engine']}" in plan
    assert "aten.linalg_inv_ex" in plan
    copied = {path.name: path for path in (folder / "kernels").iterdir()}
    for name in copied:
        assert f"(kernels/{name})" in plan
    source = Path(str(kernels().file_of("linear_activation")))
    assert copied[source.name].read_bytes() == source.read_bytes()


def _f(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * 2


def _compile_into(root: Path) -> None:
    torch.compiler.reset()
    x = torch.randn(8, 16)
    with torch._dynamo.config.patch(debug_dir_root=str(root)):
        found = torch.compile(_f, backend="trnx", options={"select": "legal"})(x)
    torch.testing.assert_close(found, _f(x))


def test_nothing_is_left_where_nobody_asked(tmp_path: Path) -> None:
    with torch._inductor.config.patch("trace.enabled", False):
        _compile_into(tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_folder_that_cannot_be_made_fails_no_compilation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    root.write_text("a file")
    with (
        torch._inductor.config.patch("trace.enabled", True),
        caplog.at_level(logging.WARNING, "trnx.backend.debug_folder"),
    ):
        _compile_into(root)
    assert "is not written: " in caplog.text
    assert root.read_text() == "a file"


def test_a_region_with_a_function_of_python_has_a_label() -> None:
    region = RegionReport("region_0", "eager", None, ["aten.linalg_inv_ex.default", "getitem"], "")
    assert region.label == "linalg_inv_ex, getitem"
