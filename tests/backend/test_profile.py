"""`trnx.profile` of models, and `trnx profile` of scripts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trnx
from trnx import cli
from trnx.backend.errors import ExampleError
from trnx.backend.profile_script import profile_script
from trnx.simulator import TensorSpec, load_module
from trnx.simulator.frontend.run_script import ScriptError

TIMING = Path(__file__).parent.parent / "simulator" / "timing"

SCRIPT = """
import sys
import numpy as np
import torch
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out

for columns in (512, 512, 64):
    assert double(np.ones((128, columns), np.float32)).sum() == 256 * columns
model = torch.compile(torch.nn.Linear(8, 4), backend="trnx")
with torch.no_grad():
    model(torch.ones(3, 8))
print("arguments", sys.argv[1:])
sys.exit(0)
"""


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


class Model(torch.nn.Module):
    """Kernels, and an op that no kernel takes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).digamma()


@pytest.fixture
def profile() -> Any:
    with torch.no_grad():
        return trnx.profile(torch.compile(Model(), backend="trnx"), torch.randn(5, 32))


def test_a_model_is_the_sum_of_its_regions_and_launches(profile: Any) -> None:
    assert isinstance(profile, trnx.ModelProfile)
    assert (profile.name, profile.target) == ("Model", "trn2")
    with torch.no_grad():
        explained = trnx.explain(Model(), torch.randn(5, 32))
    assert profile.total_seconds == explained.reports.predicted_seconds
    data = json.loads(json.dumps(profile.to_dict()))
    regions = sum(region["seconds"] for region in data["regions"])
    assert data["total_seconds"] == pytest.approx(regions + data["launch_seconds"])
    assert sum(data["seconds"].values()) == pytest.approx(regions)
    assert {region["by"] for region in data["regions"]} == {"schedule", "estimate"}
    assert data["matmul_flops"] == 2 * 5 * 32 * 64 * 2
    # A kernel's critical path is all of its time.
    scheduled = sum(r["seconds"] for r in data["regions"] if r["by"] == "schedule")
    path = sum(entry["seconds"] for entry in data["critical_path"])
    assert path == pytest.approx(scheduled)


def test_a_model_as_text(profile: Any) -> None:
    text = str(profile)
    assert "Model on trn2" in text
    assert "digamma" in text
    assert "estimated, not scheduled" in text
    assert "dma_load" in text
    assert "_matmul.py" in text


def test_the_trace_of_a_model_has_its_regions(
    profile: Any, open_trace: Any, tmp_path: Path
) -> None:
    trace = open_trace(profile.write_trace(tmp_path / "model.pftrace"))
    rows = trace.query(
        "select slice.name as name, ts, dur, extract_arg(arg_set_id, 'debug.picoseconds') as ps"
        " from slice join track on slice.track_id = track.id"
        " where track.name = 'regions' order by ts"
    )
    found = [(row.name, row.ts, row.ps) for row in rows]
    assert found[0][0].startswith("launch of graph_")
    assert [name for name, _, _ in found[1:]] == [region.label for region in profile.regions]
    assert sum(ps for _, _, ps in found) == pytest.approx(profile.total_seconds * 1e12, abs=10)
    (row,) = trace.query(
        "select min(ts) as first from slice join track on slice.track_id = track.id"
        " where track.name = 'dma_load'"
    )
    assert row.first == found[1][1]
    queue = profile.queues["tensor"][0]
    (row,) = trace.query(
        "select sum(extract_arg(arg_set_id, 'debug.picoseconds')) as ps from slice"
        " join track on slice.track_id = track.id where track.name = 'tensor'"
    )
    assert row.ps == round(queue * 1e12)
    trace.close()


def test_the_plots_of_a_model(profile: Any, tmp_path: Path) -> None:
    paths = profile.plot(tmp_path / "plots")
    assert [path.name for path in paths] == ["roofline.png", "memory.png"]
    assert all(path.stat().st_size > 5000 for path in paths)


def test_without_kernels_there_is_nothing_to_draw(tmp_path: Path) -> None:
    found = trnx.profile(torch.compile(lambda x: x.digamma(), backend="trnx"), torch.ones(3))
    assert found.plot(tmp_path) == ()
    assert "digamma" in str(found)
    assert found.write_trace(tmp_path / "x.pftrace").stat().st_size > 0


def test_options_and_targets_are_those_of_the_backend() -> None:
    x = torch.randn(5, 32)
    with torch.no_grad():
        plain = trnx.profile(Model(), x, target="trn1", options={"select": "none"})
        kernels = trnx.profile(Model(), x, options={"target": "trn3"})
    assert (plain.target, kernels.target) == ("trn1", "trn3")
    assert {region.engine for region in plain.regions} == {"xla"}
    assert "nki" in {region.engine for region in kernels.regions}


def test_backward_is_profiled_too() -> None:
    found = trnx.profile(torch.nn.Linear(8, 4), torch.randn(3, 8, requires_grad=True))
    assert [name.split(".")[1] for name in found.graphs] == ["forward", "backward"]
    assert found.runs == (0, 0)


def test_a_kernel_is_no_model() -> None:
    kernels = load_module(TIMING / "timing_kernels.py")
    spec = TensorSpec.dense((128, 512), torch.float32)
    found = trnx.profile(kernels.scale, spec, False, target="trn3")
    assert isinstance(found, trnx.Profile)
    assert found.target == "trn3"
    with pytest.raises(ExampleError, match=r"torch\.compile"):
        trnx.profile(kernels.scale, spec, is_double=False)


def test_a_script_is_profiled_by_kernel_and_graph(script: Path) -> None:
    before = dict(os.environ)
    (found,) = profile_script(str(script), ["a"], target="trn2")
    assert dict(os.environ) == before
    assert found.runs == (2, 1, 1)
    assert [name.split(".")[1] for name in found.graphs] == ["double", "double", "inference"]
    large, small, _ = (region.seconds for region in found.regions)
    assert large > small
    assert "script.py" in found.critical_path[0][0].file or "_matmul" in str(found)


def test_a_script_that_names_targets_has_a_profile_for_each(tmp_path: Path) -> None:
    text = SCRIPT.replace('backend="trnx"', 'backend="trnx", options={"target": "trn1"}')
    path = tmp_path / "script.py"
    path.write_text(text)
    found = profile_script(str(path), target="trn3")
    assert [(model.target, model.runs) for model in found] == [("trn3", (2, 1)), ("trn1", (1,))]


def test_scripts_that_cannot_be_profiled(tmp_path: Path) -> None:
    with pytest.raises(ScriptError):
        profile_script(str(tmp_path / "absent.py"))
    empty = tmp_path / "empty.py"
    empty.write_text("print(1)")
    with pytest.raises(ExampleError, match="nothing to profile"):
        profile_script(str(empty))
    failing = tmp_path / "failing.py"
    failing.write_text("import sys; sys.exit(3)")
    with pytest.raises(SystemExit, match="3"):
        profile_script(str(failing))


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["trnx", *arguments])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_writes_what_it_is_asked_for(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    trace, plots = tmp_path / "out.pftrace", tmp_path / "plots"
    asked = ("--target", "trn2", "--trace", str(trace), "--plot", str(plots))
    assert _run(monkeypatch, "profile", *asked, str(script), "a", "--b") == 0
    shown = capsys.readouterr().out
    assert "arguments ['a', '--b']" in shown
    assert "script.py on trn2" in shown
    assert trace.stat().st_size > 1000
    assert sorted(path.name for path in plots.iterdir()) == ["memory.png", "roofline.png"]


def test_the_command_prints_one_json_object_last(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert _run(monkeypatch, "profile", "--json", "--target", "trn2", str(script)) == 0
    lines = capsys.readouterr().out.splitlines()
    (model,) = json.loads(lines[-1])["targets"]
    assert [graph["runs"] for graph in model["graphs"]] == [2, 1, 1]


def test_the_command_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert _run(monkeypatch, "profile", str(tmp_path / "absent.py")) == 1
    assert "there is no script" in capsys.readouterr().err
