"""Gradients of weights whose images the cores of a logical one share: values of one core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from trnx.backend.kernel_samples import difference, operands, samples_of
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, Launch, Sample
from trnx.simulator import simulate
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import TRN2
from trnx.simulator.memory.tensor_spec import TensorSpec

TWO = replace(TRN2, cores=2)
SPEC: Any = next(spec for spec in kernels() if spec.name == "convolution_weight_gradient")


def _host() -> dict[str, Any]:
    """The module that chooses between images and channels."""
    launch: Any = getattr(SPEC.launch, "given", SPEC.launch)
    found: dict[str, Any] = launch.__globals__["shares_images"].__globals__
    return found


def _results(launch: Launch, sample: Sample) -> torch.Tensor:
    grid = launch.grid if launch.grid > 1 else None
    found: torch.Tensor = simulate(launch.kernel, grid=grid)(*operands(launch, sample))
    return found


def _shares_images(launch: Launch) -> bool:
    return launch.cores == 2 and launch.arguments[-2] is True


_NUMBERS = range(len(list(samples_of(SPEC, TRN2))))


@pytest.mark.parametrize("number", _NUMBERS)
def test_a_sample_by_images(number: int) -> None:
    # Samples are small, so that channels would be shared.
    with mock.patch.dict(_host(), _by_images=lambda *_: 0.0):
        sample, launch = list(samples_of(SPEC, TWO))[number]
    assert not isinstance(launch, Reject)
    if not _shares_images(launch):
        pytest.skip("strips, rows, groups or one image: channels are shared")
    expected = SPEC.reference(**sample.values)
    assert difference(_results(launch, sample), expected, sample).problem == ""


def _bindings(images: int, channels: int, out_channels: int, size: int) -> Bindings:
    dtype = torch.bfloat16
    tensors = {
        "grad": TensorSpec.dense((images, out_channels, size, size), dtype),
        "x": TensorSpec.dense((images, channels, size, size), dtype),
        "weight": TensorSpec.dense((out_channels, channels, 1, 1), dtype),
    }
    how = {
        "bias_sizes": None, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1],
        "transposed": False, "output_padding": [0, 0], "groups": 1,
    }  # fmt: skip
    return Bindings(tensors | how)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 72, 200, 60), True),  # much to read, few results
        ((7, 72, 72, 60), True),
        ((1, 72, 200, 60), False),
        ((8, 2000, 500, 7), False),  # many results
        ((2, 8, 8, 8), False),
    ],
)
def test_images_are_shared_where_sums_are_few(
    shape: tuple[int, int, int, int], expected: bool
) -> None:
    assert _shares_images(SPEC.launch(_bindings(*shape), TWO)) is expected
    assert not _shares_images(SPEC.launch(_bindings(*shape), TRN2))
