"""Convolutions of one channel a group whose channels the cores of a logical one share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from trnx.backend.kernel_samples import difference, operands
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, Launch, Sample
from trnx.simulator import simulate
from trnx.simulator.hardware import TRN2
from trnx.simulator.memory.tensor_spec import TensorSpec

TWO = replace(TRN2, cores=2)
SPEC: Any = next(spec for spec in kernels() if spec.name == "convolution")


def _sample(channels: int, stride: int, value: float) -> Sample:
    """One channel of an image has the value, which must not reach other channels."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    out = (7 - 1) // stride + 1
    x = random(4, channels, 7, 7)
    x[1, channels - 2, 3, 4] = value
    tensors = {
        "x": x, "weight": random(channels, 1, 3, 3), "bias": random(channels),
        "residual": random(4, channels, out, out),
        **{name: random(channels) for name in ("norm_weight", "norm_bias", "mean")},
        "variance": random(channels).abs() + 1,
    }  # fmt: skip
    how = {
        "eps": 1e-5, "sizes": None, "activation": "relu", "stride": [stride] * 2,
        "padding": [1, 1], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0],
        "groups": channels,
    }  # fmt: skip
    return Sample(tensors | how)


def _launch(sample: Sample) -> Launch:
    def spec(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return TensorSpec.dense(value.shape, value.dtype) if is_tensor else value

    b = Bindings({name: spec(value) for name, value in sample.values.items()})
    assert SPEC.supports(b, TWO) is None
    found: Launch = SPEC.launch(b, TWO)
    return found


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(("channels", "stride"), [(129, 1), (160, 1), (200, 2), (257, 1)])
def test_each_core_has_some_channels(channels: int, stride: int, value: float) -> None:
    sample = _sample(channels, stride, value)
    launch = _launch(sample)
    assert launch.cores == 2
    assert launch.arguments[-2] is True
    found = simulate(launch.kernel, grid=2)(*operands(launch, sample))
    expected = SPEC.reference(**sample.values)
    assert difference(found, expected, sample).problem == ""
