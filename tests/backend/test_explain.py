"""Reports and `trnx.explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import trnx
from trnx.backend.runners import SimulatorRunner
from trnx.errors import CoverageError, ExampleError


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


class Model(torch.nn.Module):
    """Products, attention, and an op that no kernel takes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.norm(self.up(x)))
        return y.cumprod(0) @ y.t()


def test_the_report_of_a_run() -> None:
    model, x = Model().eval(), torch.randn(5, 32)
    with trnx.collect_reports() as reports, torch.no_grad():
        torch.compile(model, backend="trnx", options={"select": "legal"})(x)
    (report,) = reports
    assert trnx.report.last() is report
    assert (report.kind, report.target, report.runner) == ("inference", "trn2", "simulator")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert report.flops_total == counter.get_total_flops()
    assert report.flops_nki == report.flops_total
    assert reports.flops_on_nki == 1.0
    assert 0 < reports.nodes_on_nki < 1
    assert 0 < reports.bytes_on_nki < 1
    assert any("cumprod" in e.op and "test_explain.py" in e.source for e in report.fallbacks)
    assert all(e.reason for e in report.fallbacks)
    assert report.compile_seconds > 0
    assert report.predicted_seconds > 0
    kernels = [r.to_dict() for r in report.regions if r.engine == "nki"]
    assert all(r["kernel"] and r["ops"] for r in kernels)
    assert json.loads(json.dumps(report.to_dict()))["regions"]
    assert report.regions[0].name in str(report)


def test_names_of_regions_are_unique() -> None:
    with trnx.collect_reports() as reports:
        torch.compile(Model(), backend="trnx")(torch.randn(5, 32)).sum().backward()
    assert [r.kind for r in reports] == ["forward", "backward"]
    assert len({r.name for r in reports}) == 2
    for report in reports:
        assert len({region.name for region in report.regions}) == len(report.regions)


def test_collections_do_not_see_what_is_compiled_outside() -> None:
    with trnx.collect_reports() as reports:
        pass
    torch.compile(torch.relu, backend="trnx")(torch.ones(3))
    assert len(reports) == 0
    assert reports.flops_on_nki is None


def test_explain_runs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_: object) -> None:
        raise AssertionError("a kernel was traced")

    monkeypatch.setattr(SimulatorRunner, "prepare", prepare)
    model, x = Model(), torch.randn(5, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    explanation = trnx.explain(model, x, options={"select": "legal", "target": "trn1"})
    assert [r.kind for r in explanation.reports] == ["forward", "backward"]
    assert explanation.target == "trn1"
    assert explanation.flops_on_nki == 1.0
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())


def test_an_explanation_as_text_and_as_data() -> None:
    with torch.no_grad():
        explanation = trnx.explain(Model().eval(), torch.randn(5, 32))
    text, data = str(explanation), json.loads(json.dumps(explanation.to_dict()))
    assert "not on NKI" in text
    assert "cumprod" in text
    assert "test_explain.py" in text
    assert "inference" in text
    assert len(data["graphs"]) == 1
    assert set(data) >= {"flops_on_nki", "bytes_on_nki", "nodes_on_nki", "graph_breaks"}


def test_arguments_that_the_model_writes_to_stay_as_they_are() -> None:
    x = torch.zeros(4)
    with torch.no_grad():
        trnx.explain(lambda x: x.add_(1), x)
    assert torch.equal(x, torch.zeros(4))


def test_graph_breaks_are_reported() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    explanation = trnx.explain(function, torch.ones(3))
    assert len(explanation.reports) == 2
    assert sum(explanation.graph_breaks.values()) == 1
    assert "graph breaks" in str(explanation)


def test_a_break_that_a_setting_avoids_names_it() -> None:
    layer = torch.nn.GRU(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return layer(x + 1)[0]

    wanted = r"RNN, GRU, or LSTM at \S+ in function -> set torch._dynamo.config.allow_rnn = True"
    with pytest.raises(ExampleError, match=wanted):
        trnx.explain(function, torch.ones(3, 2, 4))


def test_a_coverage_gate() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real @ x

    covered = trnx.explain(lambda x: x @ x, torch.ones(8, 8), options={"select": "legal"})
    covered.fail_under(100)
    uncovered = trnx.explain(function, torch.ones(8, 8, dtype=torch.float64))
    uncovered.fail_under(0)
    with pytest.raises(CoverageError, match=r"less than the required 50 %(.|\n)*fft"):
        uncovered.fail_under(50)


def test_a_share_of_nothing_is_none() -> None:
    explanation = trnx.explain(torch.relu, torch.ones(8, 8), options={"select": "legal"})
    assert explanation.flops_on_nki is None
    assert "n/a of FLOPs, 100.0 % of bytes" in str(explanation)
    assert json.loads(json.dumps(explanation.to_dict()))["flops_on_nki"] is None
    explanation.fail_under(bytes=100, ops=100, seconds=100)
    with pytest.raises(CoverageError, match="no matrix products; ask for bytes="):
        explanation.fail_under(1)


@pytest.mark.parametrize("kind", ["flops", "bytes", "ops", "seconds"])
def test_each_share_has_a_gate(kind: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr((x @ x) + 1)[0] @ x.double().float()

    explanation = trnx.explain(function, torch.ones(256, 256), options={"select": "none"})
    explanation.fail_under(**{kind: 0})
    with pytest.raises(CoverageError, match="less than the required 10 %"):
        explanation.fail_under(**{kind: 10})


def test_reports_print_themselves() -> None:
    with trnx.collect_reports() as reports:
        assert "no graph" in str(reports)
        torch.compile(torch.relu, backend="trnx")(torch.ones(3))
    assert str(reports) == str(reports[0])
    assert "fused_relu" in str(reports)


def test_explain_reports_where_fallback_error_would_raise() -> None:
    explanation = trnx.explain(
        lambda x: torch.linalg.qr(x)[0], torch.eye(3), options={"fallback": "error"}
    )
    assert any("qr" in entry.op for entry in explanation.reports.fallbacks)


def test_a_compiled_function_is_explained_as_what_it_was_made_from() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1

    x = torch.ones(3, 4)
    plain = trnx.explain(function, x).to_dict()
    for compiled in (
        torch.compile(function, backend="trnx"),
        torch.compile(function, backend="eager"),
    ):
        found = trnx.explain(compiled, x).to_dict()
        assert found["predicted_seconds"] == plain["predicted_seconds"]
        assert len(found["graphs"]) == 1


def test_explaining_often_does_not_hit_the_recompile_limit() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1

    for _ in range(10):
        assert len(trnx.explain(function, torch.ones(3)).reports) == 1


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.sum() > 0:  # branch
        y = y * 2
    return y - 1


def branching_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        if x.sum() > 0:  # loop
            x = x * 2
    return x - 1


def test_branches_on_data_are_reported_with_their_line() -> None:
    explanation = trnx.explain(lambda x: branching_in_a_loop(branching(x)), torch.ones(3))
    places = {source: reason for reason, source in explanation.graph_breaks}
    lines = Path(__file__).read_text().splitlines()
    for comment, function in (("branch", "branching"), ("loop", "branching_in_a_loop")):
        number = next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))
        assert "Data-dependent branching" in places[f"{__file__}:{number} in {function}"]
    shown = json.loads(json.dumps(explanation.to_dict()))["graph_breaks"]
    assert {entry["source"] for entry in shown} == places.keys()


def compiled_variants() -> list[Any]:
    options = {"target": "trn1", "select": "legal"}
    in_place = torch.nn.Linear(4, 4)
    in_place.compile(backend="trnx", options=options)
    return [
        torch.compile(torch.relu, backend="trnx", options=options),
        torch.compile(torch.nn.Linear(4, 4), backend="trnx", options=options),
        in_place,
        torch.compile(torch.nn.ReLU().forward, backend="trnx", options=options),
    ]


@pytest.mark.parametrize("index", range(4))
def test_options_of_the_compiled_function_hold(index: int) -> None:
    compiled = compiled_variants()[index]
    x = torch.ones(4, 4)
    with torch.no_grad():
        assert trnx.explain(compiled, x).target == "trn1"
        assert trnx.profile(compiled, x).target == "trn1"
        assert trnx.explain(compiled, x, options={"target": "trn3"}).target == "trn3"
        assert trnx.profile(compiled, x, target="trn3").target == "trn3"


def test_options_of_another_backend_are_not_ours() -> None:
    compiled = torch.compile(torch.relu, backend="aot_eager")
    assert trnx.explain(compiled, torch.ones(4)).target == "trn2"


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(32, 32), torch.nn.Linear(32, 64)])
        self.heads = torch.nn.ModuleDict({"q": torch.nn.Linear(64, 16)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        q = self.heads["q"](x)
        return torch.softmax(torch.bmm(q, q.transpose(1, 2)), -1).cumprod(0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_regions_are_labelled_by_layer_and_sizes(dynamic: bool) -> None:
    x = torch.randn(2, 5, 32)
    compiled = torch.compile(Nested(), backend="trnx", dynamic=dynamic)
    with torch.no_grad():
        (report,) = trnx.explain(compiled, x).reports
        profile = trnx.profile(compiled, x)
    labels = [region.label for region in report.regions]
    assert labels == [
        "layers.0: linear 10x32x32",
        "layers.1: linear 10x32x64",
        "heads.q: linear 10x64x16",
        "bmm 2x5x16x5",
        "softmax 2x5x5",
        "cumprod 2x5x5",
    ]
    assert [region.label for region in profile.regions] == labels
    assert [region["label"] for region in report.to_dict()["regions"]] == labels


def test_gradients_are_labelled_by_the_layer_of_the_forward_pass() -> None:
    x = torch.randn(10, 32)
    backward = trnx.explain(torch.nn.Sequential(torch.nn.Linear(32, 64)), x).reports[1]
    assert "0: linear_weight_gradient 64x10x32" in [region.label for region in backward.regions]


def in_try(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.mean() > 0:
            raise ValueError
        return x
    except ValueError:
        return x * 3


def test_a_break_within_try_is_told_with_its_line() -> None:
    line = in_try.__code__.co_firstlineno + 2
    message = (
        rf"(?s)graph break:.*Data-dependent branching; all .* in eager at \S+:{line} in in_try"
    )
    with pytest.raises(ExampleError, match=message):
        trnx.explain(in_try, torch.ones(4, 4))
