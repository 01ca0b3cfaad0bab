"""scripts/bench/simulator.py: its arithmetic, and that its kernels and measures work (no times)."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("bench_simulator", FOLDER / "simulator.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_simulator"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("bench_simulator", "simulator_measures"):
            sys.modules.pop(name, None)


def test_a_row_holds_up_to_its_bar_and_with_the_right_result_alone(script: ModuleType) -> None:
    assert script.Row("a", 1.25, 1.25).holds
    assert not script.Row("a", 1.26, 1.25).holds
    assert not script.Row("a", 1.0, 1.25, is_right=False).holds
    assert script.Row("a", 99.0, None).holds
    assert "FAILS" in script.Row("a", 2.0, 1.0).text()
    assert "wrong" in script.Row("a", 0.5, 1.0, is_right=False).text()


def test_the_bars_hold_where_every_row_does(script: ModuleType) -> None:
    good, bad = script.Row("a", 1.0, 1.0), script.Row("b", 2.0, 1.0)
    assert script.summary([good])["bars_hold"]
    result = script.summary([good, bad])
    assert not result["bars_hold"]
    assert [row["holds"] for row in json.loads(json.dumps(result))["rows"]] == [True, False]


def test_medians_are_of_the_turns_after_the_warm_up(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def sleep(seconds: Iterator[float]) -> None:
        nonlocal now
        now += next(seconds)

    monkeypatch.setattr(script.measures.time, "thread_time", lambda: now)
    warm_up = script.measures.WARM_UP
    slow = iter([*[50.0] * warm_up, 3.0, 1.0, 2.0])
    fast = iter([*[60.0] * warm_up, 0.5, 0.5, 9.0])
    assert script.measures.alternate(lambda: sleep(slow), lambda: sleep(fast), 3) == (
        2.0,
        0.5,
        2.0,
    )


def test_an_instruction_counts_with_its_least_time(script: ModuleType) -> None:
    assert script.measures.least_times([[3.0, 1.0], [2.0, 5.0]]) == [2.0, 1.0]


def test_every_case_has_a_kernel_on_every_generation(script: ModuleType) -> None:
    names = []
    for case in script.measures.cases():
        names.append(case.name)
        for target in script.measures.TARGETS:
            planned, tensors = script.measures.launch(case, target)
            assert len(tensors) == len(planned.tensor_names)
    assert len(names) == 4
    assert set(script.MEMORY_CASES) <= set(names)


def test_a_case_is_wrong_where_its_result_is(script: ModuleType) -> None:
    measures = script.measures
    a, b = torch.randn(130, 70), torch.randn(70, 90)
    operands = {"x": a, "weight": b.t(), "bias": None, "residual": None, "activation": "none"}
    right = measures.Case("product", "linear", 1.25, operands, lambda: a @ b, 1e-5)
    wrong = measures.Case("product", "linear", 1.25, operands, lambda: a @ b + 1, 1e-5)
    assert measures.replay(right, "trn2", 1)["is_right"]
    assert not measures.replay(wrong, "trn2", 1)["is_right"]


def test_the_kernel_of_the_tracing_bar_computes(script: ModuleType) -> None:
    program = script.measures.tiles_program(2)
    assert program.instruction_count == 18
    x = torch.randn(256, 8)
    (y,) = program.run([x])
    tile = x[:128]
    shifted = torch.exp(tile - tile.amax(1, keepdim=True))
    torch.testing.assert_close(y[:8], tile.T @ shifted)
    expected = shifted[8:] + shifted[8:].bfloat16().float()
    torch.testing.assert_close(y[8:128], expected, rtol=1e-2, atol=1e-2)


def test_measures_of_tracing_are_positive(script: ModuleType) -> None:
    median, mean = script.measures.tracing(True, 3, 1)
    assert median > 0
    assert mean > 0
    assert script.measures.resident_bytes() > 0
