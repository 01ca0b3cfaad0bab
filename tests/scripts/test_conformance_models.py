"""`scripts/conformance/models.py`: what it compares, and what it counts as wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def models() -> ModuleType:
    path = SCRIPTS / "conformance" / "models.py"
    before = list(sys.path)
    try:
        spec = importlib.util.spec_from_file_location("_conformance_models", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def case(models: ModuleType, model: Any) -> Any:
    """A case of a model that takes [5, 8]."""

    def build(train: bool) -> Any:
        torch.manual_seed(0)
        return models.Built(model.train(train), (torch.randn(5, 8),))

    return models.Case("small", build)


@pytest.mark.parametrize("train", [False, True])
def test_a_model_equals_eager(models: ModuleType, train: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    outcome = models.measure(case(models, model), train)
    assert (outcome.status, outcome.details) == ("ok", [])
    # In training: weights and biases of both, the input, and three buffers.
    assert outcome.tensors == (1 + 4 + 1 + 3 if train else 1)


def test_what_eager_refuses_is_listed(models: ModuleType) -> None:
    assert models.measure(case(models, torch.nn.Linear(7, 4)), False).status == "eager"


def test_random_values_are_no_reference(models: ModuleType) -> None:
    class Noise(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Noise.calls += 1
            return x + Noise.calls

    assert models.measure(case(models, Noise()), False).status == "eager"


def compared(models: ModuleType, actual: torch.Tensor, expected: torch.Tensor, exact: Any) -> Any:
    outcome = models.Outcome("x", False)
    models.compare(outcome, {"result 0": actual}, {"result 0": expected}, lambda: exact)
    return outcome


def test_tolerance_is_of_the_largest_value(models: ModuleType) -> None:
    expected = torch.tensor([100.0, 0.0, float("inf"), float("nan")])
    near = expected + torch.tensor([0.0, 0.009, 0.0, 0.0])
    far = expected + torch.tensor([0.0, 0.011, 0.0, 0.0])
    assert compared(models, near, expected, {}).status == "ok"
    assert compared(models, far, expected, {}).status == "differs"
    assert compared(models, torch.zeros(4), expected, {}).status == "differs"


def test_an_error_up_to_twice_that_of_eager_counts(models: ModuleType) -> None:
    exact = {"result 0": torch.tensor([1.0], dtype=torch.float64)}
    expected = torch.tensor([1.01])
    right = compared(models, torch.tensor([0.985]), expected, exact)
    assert (right.status, right.by_float64) == ("ok", 1)
    assert compared(models, torch.tensor([0.97]), expected, exact).status == "differs"


def test_shape_dtype_and_strides_are_those_of_eager(models: ModuleType) -> None:
    expected = torch.zeros(3, 4)
    for wrong in (torch.zeros(4, 3), expected.double(), torch.zeros(4, 3).t()):
        assert compared(models, wrong, expected, {}).status == "differs"
    outcome = models.Outcome("x", True)
    strided = {"gradient of weight": torch.zeros(4, 3).t()}
    models.compare(outcome, strided, {"gradient of weight": expected}, dict)
    assert outcome.status == "ok"


def test_a_missing_gradient_is_an_error(models: ModuleType) -> None:
    outcome = models.Outcome("x", True)
    models.compare(outcome, {}, {"gradient of weight": torch.zeros(3)}, dict)
    assert outcome.status == "differs"
