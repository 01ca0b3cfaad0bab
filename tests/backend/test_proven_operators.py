"""Operators of torch in place of recorded steps: where they run, and that the values stay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from trnx.backend.programs import ProgramCache
from trnx.backend.proven_operators import ProvenOperator
from trnx.backend.runners import Prepared, SimulatorRunner
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, KernelSpec, Sample
from trnx.simulator import TensorSpec
from trnx.simulator.hardware import hardware

NAMES = ("convolution", "convolution_weight_gradient")


def _bindings(values: dict[str, Any]) -> Bindings:
    return Bindings({
        name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    })  # fmt: skip


def _prepared(spec: KernelSpec, values: dict[str, Any], target: str = "trn2") -> Prepared:
    return SimulatorRunner(ProgramCache()).prepare(spec, _bindings(values), hardware(target))


def _samples(spec: KernelSpec) -> Iterator[Sample]:
    for sample in spec.samples(torch.Generator().manual_seed(3)):
        values = {
            name: value.contiguous() if isinstance(value, torch.Tensor) else value
            for name, value in sample.values.items()
        }
        if spec.supports(_bindings(values), hardware("trn2")) is None:
            yield replace(sample, values=values)


def _is_sum_of_products(values: dict[str, Any]) -> bool:
    is_plain = values.get("activation", "none") == "none" and values.get("mean") is None
    return is_plain and _may_be_proven(values)


def _may_be_proven(values: dict[str, Any]) -> bool:
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    # ScalarE computes the others otherwise than torch does.
    is_known = values.get("activation", "none") in ("none", "relu", "gelu", "silu", "sigmoid")
    return is_known and all(tensor.dtype is torch.float32 for tensor in tensors)


def _convolution(**more: Any) -> tuple[KernelSpec, dict[str, Any]]:
    spec = kernels()["convolution"]
    sample = next(one for one in _samples(spec) if _is_sum_of_products(one.values))
    empty = dict.fromkeys(
        ("bias", "residual", "norm_weight", "norm_bias", "mean", "variance"), None
    )
    values = {
        **sample.values, **empty, "x": torch.randn(2, 12, 9, 10),
        "weight": torch.randn(20, 12, 3, 3), "activation": "none", "stride": [1, 1],
        "padding": [1, 1], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0],
        "groups": 1,
    }  # fmt: skip
    return spec, {**values, **more}


def _tensors(values: dict[str, Any]) -> list[torch.Tensor]:
    return [value for value in values.values() if isinstance(value, torch.Tensor)]


def _steps(prepared: Prepared, values: dict[str, Any], names: tuple[str, ...]) -> torch.Tensor:
    """What the recorded steps give."""
    assert prepared.program is not None
    (found,) = prepared.program.run([values[name] for name in names])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_all_samples_that_torch_has_operators_of_are_proven(name: str) -> None:
    spec, found = kernels()[name], 0
    for sample in _samples(spec):
        prepared = _prepared(spec, dict(sample.values))
        assert (prepared.compute is not None) == _may_be_proven(dict(sample.values)), sample
        if prepared.compute is None:
            continue
        found += 1
        launch = spec.launch(_bindings(dict(sample.values)), hardware("trn2"))
        results = prepared.compute(_tensors(dict(sample.values)))
        assert results is not None
        expected = _steps(prepared, dict(sample.values), launch.tensor_names)
        scale = float(expected.abs().max())
        torch.testing.assert_close(results[0], expected, rtol=1e-5, atol=1e-5 * scale)
    assert found >= 5


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("size", [1, 127, 128, 129])
def test_sizes_around_the_partitions(target: str, size: int) -> None:
    spec, values = _convolution(x=torch.randn(1, size, 5, 6), weight=torch.randn(size, size, 3, 3))
    assert _prepared(spec, values, target).compute is not None


@pytest.mark.parametrize("where", ["x", "weight"])
@pytest.mark.parametrize("what", [math.inf, -math.inf, math.nan])
def test_the_steps_say_where_results_are_not_finite(where: str, what: float) -> None:
    spec, values = _convolution()
    values[where][0, 0, 0, 0] = what
    prepared = _prepared(spec, values)
    assert prepared.compute is not None
    assert prepared.compute(_tensors(values)) is None
    out = torch.empty(2, 20, 9, 10)
    prepared.run(_tensors(values), [out])
    expected = _steps(prepared, values, ("x", "weight"))
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
    assert not bool(out.isfinite().all())


def _with_norm(activation: str, **more: Any) -> tuple[KernelSpec, dict[str, Any]]:
    """With a batch norm, a residual and an activation behind it."""
    return _convolution(
        norm_weight=torch.randn(20), norm_bias=torch.randn(20), mean=torch.randn(20),
        variance=torch.rand(20) + 0.1, eps=1e-5, residual=torch.randn(2, 20, 9, 10),
        activation=activation, **more,
    )  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_an_activation_hides_no_infinity(activation: str) -> None:
    """Of what is -inf before, relu and sigmoid make 0: the steps run all the same."""
    spec, values = _with_norm(activation)
    values["residual"][1, 3, 2, 2] = -math.inf
    prepared = _prepared(spec, values)
    assert prepared.compute is not None
    assert prepared.compute(_tensors(values)) is None
    values["residual"][1, 3, 2, 2] = 1.0
    results = prepared.compute(_tensors(values))
    assert results is not None
    names = spec.launch(_bindings(values), hardware("trn2")).tensor_names
    torch.testing.assert_close(results[0], _steps(prepared, values, names), rtol=1e-5, atol=1e-5)


def test_another_norm_is_not_proven() -> None:
    spec, values = _with_norm("relu")
    assert _prepared(spec, values).compute is not None
    for change in (
        lambda given: {**given, "eps": 2e-5},
        lambda given: {**given, "mean": given["mean"] * 2},
        lambda given: {**given, "norm_bias": None},
        lambda given: {**given, "activation": "sigmoid"},
    ):

        def other(**given: Any) -> torch.Tensor:
            found: torch.Tensor = spec.reference(**change(given))  # noqa: B023
            return found

        assert _prepared(replace(spec, reference=other), values).compute is None


def test_gradients_look_at_the_smaller_tensors() -> None:
    spec = kernels()["convolution_weight_gradient"]
    values = dict(next(s for s in _samples(spec) if _is_sum_of_products(dict(s.values))).values)
    values.update(
        grad=torch.randn(1, 64, 3, 3), x=torch.randn(1, 64, 3, 3),
        weight=torch.full((64, 64, 3, 3), math.nan), stride=[1, 1], padding=[1, 1],
        dilation=[1, 1], transposed=False, output_padding=[0, 0], groups=1, bias_sizes=None,
    )  # fmt: skip
    prepared = _prepared(spec, values)
    assert prepared.compute is not None
    # Of the weight the gradient needs the sizes alone.
    results = prepared.compute(_tensors(values))
    assert results is not None
    assert bool(results[0].isfinite().all())
    values["x"][0, 0, 1, 1] = math.nan
    assert prepared.compute(_tensors(values)) is None


def test_a_kernel_that_differs_in_one_term_is_not_proven() -> None:
    """Where the recorded program is no convolution, its values are what a call gives."""
    spec, values = _convolution()

    def wrong(**given: Any) -> torch.Tensor:
        found: torch.Tensor = spec.reference(**given)
        found[0, 0, 0, 0] += given["x"][0, 0, 0, 0]
        return found

    assert _prepared(replace(spec, reference=wrong), values).compute is None
    assert _prepared(spec, values).compute is not None
    assert _prepared(replace(spec, builtin=False), values).compute is None


def test_settings_of_the_process_do_not_count() -> None:
    spec, values = _convolution()
    prepared = _prepared(spec, values)
    out = torch.empty(2, 20, 9, 10)
    expected = _steps(prepared, values, ("x", "weight"))
    assert prepared.compute is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert prepared.compute(_tensors(values)) is None
        prepared.run(_tensors(values), [out])
    assert torch.equal(out, expected)
    conv: Any = getattr(torch.backends.mkldnn, "conv")  # noqa: B009
    before = conv.fp32_precision
    conv.fp32_precision = "bf16"
    try:
        assert prepared.compute(_tensors(values)) is None
        prepared.run(_tensors(values), [out])
    finally:
        conv.fp32_precision = before
    assert torch.equal(out, expected)


def test_results_that_lie_otherwise_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As eager's, whatever torch's convolution gives: here of a result in another order."""
    calls: list[bool] = []
    real = ProvenOperator.compute

    def turned(self: ProvenOperator, inputs: Any) -> Any:
        calls.append(True)
        found = real(self, inputs)
        assert found is not None
        return tuple(one.contiguous(memory_format=torch.channels_last) for one in found)

    monkeypatch.setattr(ProvenOperator, "compute", turned)
    model = torch.nn.Conv2d(3, 24, 3, 2, 1)
    x = torch.randn(2, 3, 21, 23)
    with torch.no_grad():
        got = torch.compile(model, backend="trnx", options={"select": "legal"})(x)
        want = model(x)
    assert calls == [True]
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_training_runs_operators_in_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(24), torch.nn.ReLU(),
        torch.nn.Conv2d(24, 16, 3, 1, 1), torch.nn.MaxPool2d(2),
    )  # fmt: skip
    calls: list[bool] = []
    real = ProvenOperator.compute

    def counted(self: ProvenOperator, inputs: Any) -> Any:
        found = real(self, inputs)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(ProvenOperator, "compute", counted)
    x = torch.randn(2, 3, 21, 23)
    compiled = torch.compile(model, backend="trnx", options={"select": "legal"})
    found = []
    for function in (compiled, model):
        model.zero_grad()
        result = function(x)
        result.square().sum().backward()
        found.append([result, *(p.grad.clone() for p in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    # Two forward, one gradient of an input, two of weights.
    assert calls == [True] * 5
    before = [one.clone() for one in found[0]]
    model.zero_grad()
    compiled(torch.randn(2, 3, 21, 23)).sum().backward()
    assert all(torch.equal(one, other) for one, other in zip(found[0], before, strict=True))
