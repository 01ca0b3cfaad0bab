"""The demo's promises: equal to eager, on NKI, and honest about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from trnx.backend import demo
from trnx.backend.demo_view import render
from trnx.backend.executable import Executable
from trnx.backend.report import collect_reports
from trnx.cli import app

pytest.importorskip("transformers", reason="the demo needs the extra `demo`")

aten = torch.ops.aten
GUARDED = {
    aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.linear, aten.matmul,
    aten._softmax, aten.native_layer_norm, aten.gelu,
    aten._scaled_dot_product_flash_attention_for_cpu,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run_json(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["demo", "--json", *arguments])
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def check(result: dict[str, Any]) -> None:
    assert result["ranking"] == result["ranking_eager"]
    assert 0.95 <= result["flops_on_nki"] <= 1.0
    assert result["nodes_on_nki"] >= 0.90
    assert all({"op", "reason", "source"} <= set(entry) for entry in result["fallbacks"])
    assert all(entry["reason"] for entry in result["fallbacks"])


def test_float32_equals_eager() -> None:
    result = run_json()
    check(result)
    assert result["cosine_min"] >= 0.99999
    assert result["max_abs_diff"] <= 1e-5


def test_bfloat16_is_as_good_as_eager_bfloat16() -> None:
    result = run_json("--dtype", "bf16")
    check(result)
    assert result["cosine_min"] >= 0.9995
    assert result["cosine_min_vs_fp32"] >= 0.999


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_other_generations(target: str) -> None:
    result = run_json("--target", target)
    check(result)
    assert result["max_abs_diff"] <= 1e-5


def test_reference_runner_has_the_same_plan() -> None:
    reference = run_json("--runner", "reference")
    assert reference["max_abs_diff"] <= 1e-5
    simulated = run_json()
    names = [region["name"] for region in simulated["regions"]]
    assert names == [region["name"] for region in reference["regions"]]
    assert simulated["fallbacks"] == reference["fallbacks"]


class OutsideTheSimulator(TorchDispatchMode):
    """Raises where a guarded op runs and no frame of trnx.simulator is on the stack."""

    inside = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in GUARDED:
            frame = sys._getframe()
            while frame and not frame.f_globals.get("__name__", "").startswith("trnx.simulator"):
                frame = frame.f_back  # type: ignore[assignment]
            if frame is None:
                raise AssertionError(f"{func} ran outside the simulator")
            self.inside += 1
        return func(*args, **(kwargs or {}))


def test_what_counts_as_nki_runs_in_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fallback(_: Any, region: Any, reason: str) -> None:
        raise AssertionError(f"{region.name} was counted as NKI but falls back: {reason}")

    mode = OutsideTheSimulator()
    call = Executable.__call__

    def guarded_call(self: Any, args: list[Any]) -> list[Any]:
        with mode:
            return call(self, args)

    # The mode goes inside: Dynamo does not enter compiled code while a user's mode is active.
    monkeypatch.setattr(Executable, "__call__", guarded_call)
    monkeypatch.setattr(Executable, "_refuse", no_fallback)
    model, tokens = demo.load(torch.float32)
    with torch.no_grad(), collect_reports() as reports:
        compiled = torch.compile(model, backend="trnx", options={"fallback": "eager"})
        ours = demo.embeddings(compiled, tokens)
        torch.testing.assert_close(ours, demo.embeddings(model, tokens), atol=1e-5, rtol=0)
    assert mode.inside > 100, "the guard saw the matrix products of the kernels"
    assert reports.flops_on_nki >= 0.95


def test_the_guard_guards() -> None:
    with OutsideTheSimulator(), pytest.raises(AssertionError, match="outside the simulator"):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))


def test_the_view_shows_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"op": "x", "reason": "no [rule]", "advice": "install trnx[xla]", "source": "a.py:1"}
    result = demo.DemoResult(
        dtype="fp32", target="trn2", runner="simulator", max_abs_diff=0.0, cosine_min=1.0,
        cosine_min_vs_fp32=1.0, ranking=[1, 0], ranking_eager=[0, 1], scores=[0.5, 0.25],
        flops_on_nki=1.0, nodes_on_nki=0.5,
        regions=[{"engine": "nki", "kernel": "linear", "ops": ["aten.linear.default"]}],
        fallbacks=[entry], compile_seconds=1.0, first_seconds=2.0, run_seconds=0.1,
        eager_seconds=0.1,
    )  # fmt: skip
    render(result)
    shown = capsys.readouterr().out
    assert "trnx[xla]" in shown
    assert "no [rule]" in shown
    assert "DIFFERENT" in shown
    assert "50.0 % of nodes" in shown
