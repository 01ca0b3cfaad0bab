"""`trnx device report`: what a device contradicts is named, and nothing else is."""

from __future__ import annotations

import io
import json
import math
import random
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trnx.cli import app
from trnx.device.collect import ABOUT, FORMAT, VERSION
from trnx.device.errors import ArchiveError
from trnx.device.fit import predicted_ns, told_by
from trnx.device.probes import PROBES
from trnx.device.report import report
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import hardware

Records = dict[str, dict[str, Any]]


def _write(file: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as opened:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            opened.addfile(member, io.BytesIO(data))
    return file


def _archive(folder: Path, records: Records, target: str = "trn2", **about: Any) -> Path:
    head = {"format": FORMAT, "version": VERSION, "target": target, "versions": {"torch": "2.13"}}
    members = {f"{FORMAT}/{ABOUT}": json.dumps({**head, **about}).encode()}
    for task, record in records.items():
        text = json.dumps({"task": task, **record}).encode()
        members[f"{FORMAT}/tasks/{task}.json"] = text
    return _write(folder / "a.tar.gz", members)


def _probes(target: str, noise: float = 0.0, spread: float = 0.0, **scales: float) -> Records:
    """What a chip would measure whose constants are `scales` times those of the model."""
    now, drawn = timing(hardware(target)), random.Random(7)
    chip = replace(now, **{name: getattr(now, name) * scale for name, scale in scales.items()})
    found = {}
    for index in range(len(PROBES)):
        ns = predicted_ns(index, target, chip) * math.exp(drawn.uniform(-noise, noise))
        result = {"name": PROBES[index].name, "ns": ns, "spread_ns": spread * ns}
        part = "probe" if PROBES[index].cores == 1 else "cores"
        found[f"{part}.{index:02}"] = {"status": "ok", "result": result}
    return found


SHIFTED: list[dict[str, float]] = [
    {"scalar_issue_cycles": 2.0, "dma_issue_ns": 0.6},
    {"vector_issue_cycles": 0.6, "scalar_table_ns": 1.5, "gpsimd_start_cycles": 2.0},
    {"scalar_latency_cycles": 0.6},
    {"dma_software_issue_ns": 1.5},
]
# Each of the others alone; a fit tries some hundred predictions.
SLOW: list[dict[str, float]] = [
    {"scalar_issue_cycles": 1.6},
    {"vector_issue_cycles": 1.5},
    {"vector_latency_cycles": 1.5},
    {"gpsimd_start_cycles": 1.7},
    {"scalar_table_ns": 0.7},
    {"dma_issue_ns": 1.5},
    {"matmul_min_columns": 1.5},
    {"stride_limit_bytes": 0.5},
    {"handoff_ns": 1.7},
    {"meeting_ns": 0.55},
    {"weights_fp32_cycles": 1.7},
]


@pytest.mark.parametrize(
    ("target", "scales"),
    [
        *(("trn2", scales) for scales in SHIFTED),
        ("trn3", SHIFTED[0]),
        *(pytest.param("trn2", scales, marks=pytest.mark.slow) for scales in SLOW),
        *(pytest.param("trn3", scales, marks=pytest.mark.slow) for scales in SHIFTED[1:]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value,
)
def test_names_the_constants_that_are_off(
    target: str, scales: dict[str, float], tmp_path: Path
) -> None:
    found = report(_archive(tmp_path, _probes(target, noise=0.01, **scales), target))
    assert {change.constant for change in found.changes} == set(scales)
    now = timing(hardware(target))
    for change in found.changes:
        assert change.now == getattr(now, change.constant)
        assert change.fitting / change.now == pytest.approx(scales[change.constant], rel=0.1)
        assert f"| `{change.constant}` |" in str(found)
    assert found.problems == ()


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_names_none_where_the_model_holds(noise: float, tmp_path: Path) -> None:
    found = report(_archive(tmp_path, _probes("trn2", noise=noise)))
    assert found.changes == ()
    assert found.ok
    assert "None: what was measured is what is predicted." in str(found)
    assert [abs(row["error"]) <= 1.1 * noise + 1e-9 for row in found.probes] == [True] * len(PROBES)


def test_a_time_within_its_own_spread_changes_nothing(tmp_path: Path) -> None:
    measured = _probes("trn2", spread=0.6, scalar_issue_cycles=3.0)
    assert report(_archive(tmp_path, measured)).changes == ()


def test_each_probe_tells_about_something() -> None:
    assert all(probe.tells for probe in PROBES)
    told = {name for probe in PROBES for name in told_by(probe)}
    assert {name for scales in SHIFTED + SLOW for name in scales} <= told


def test_the_page_names_what_went_wrong(tmp_path: Path) -> None:
    check = {"name": "driver", "status": "problem", "found": "not loaded", "fix": "modprobe neuron"}
    rows = [
        {"kernel": "softmax", "note": "127 rows", "largest": 0.5, "problem": "differs by 0.5"},
        {"kernel": "softmax", "note": "128 rows", "largest": 0.0, "problem": ""},
        {"kernel": "softmax", "note": "empty", "refused": "no rows"},
    ]
    model = {"model": "mlp", "largest": 0.1, "problem": "results differ", "seconds": 1e-3}
    records: Records = {
        "doctor": {"status": "ok", "result": {"checks": [check]}},
        "kernel.softmax": {"status": "ok", "result": {"samples": rows}},
        "model.mlp": {"status": "ok", "result": {**model, "predicted_seconds": 1e-4}},
        "model.encoder": {"status": "timeout", "error": "it took longer than 1800 s"},
    }
    found = report(_archive(tmp_path, records))
    assert found.problems == (
        "model.encoder: timeout: it took longer than 1800 s",
        "doctor: driver: not loaded",
        "softmax, 127 rows: differs by 0.5",
        "model.mlp: results differ",
    )
    page = str(found)
    assert "3 of 4 tasks ended with a result." in page
    assert "| mlp | 1.000 ms | 0.100 ms | 0.1 |" in page
    shown = CliRunner().invoke(app, ["device", "report", str(tmp_path / "a.tar.gz"), "--json"])
    assert shown.exit_code == 1
    assert json.loads(shown.output)["problems"] == list(found.problems)


_MODEL = {"model": "mlp", "problem": "", "seconds": 1.0, "predicted_seconds": 1.0, "largest": 0.0}
_ROW = {"collective": "all_reduce", "bytes": 4, "seconds": 1.0, "problem": ""}
# What no task has found: kind -> task and result.
_RESULTS: dict[str, tuple[str, Any]] = {
    "a result of text": ("doctor", "x"),
    "samples of text": ("kernel.softmax", {"samples": ["x"]}),
    "a model without a time": ("model.mlp", {**_MODEL, "seconds": None}),
    "a model without a name": ("model.mlp", {k: v for k, v in _MODEL.items() if k != "model"}),
    "a model with text": ("model.mlp", {**_MODEL, "largest": []}),
    "a collective with text": ("ranks.pair", {"ranks": 2, "rows": [{**_ROW, "seconds": "x"}]}),
}


def _foreign(kind: str, folder: Path) -> Path:
    good = _archive(folder, _probes("trn2"))
    file = folder / kind
    if kind == "cut":
        file.write_bytes(good.read_bytes()[:300])
    elif kind == "text":
        file.write_text("hello")
    elif kind == "outside":
        _write(file, {f"{FORMAT}/../../etc/passwd": b"x"})
    elif kind == "no json":
        _write(file, {f"{FORMAT}/{ABOUT}": b"\x80\x04."})
    elif kind == "nothing":
        _write(file, {})
    elif kind == "newer":
        return _archive(folder, {}, version=VERSION + 1)
    elif kind == "other target":
        return _archive(folder, _probes("trn2"), target="gpu")
    elif kind == "a target without TorchNeuron":
        return _archive(folder, {}, target="trn1")
    elif kind == "no such probe":
        return _archive(folder, {"probe.99": {"status": "ok", "result": {"name": "x", "ns": 1.0}}})
    elif kind == "no status":
        return _archive(folder, {"doctor": {}})
    elif kind in _RESULTS:
        task, result = _RESULTS[kind]
        return _archive(folder, {task: {"status": "ok", "result": result}})
    return file


@pytest.mark.parametrize(
    "kind",
    [
        *("cut", "text", "outside", "no json", "nothing", "newer", "other target"),
        *("a target without TorchNeuron", "no such probe", "no status", "missing"),
        *_RESULTS,
    ],
)
def test_what_is_no_archive_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"trnx device collect|cannot be read"):
        report(_foreign(kind, tmp_path))
