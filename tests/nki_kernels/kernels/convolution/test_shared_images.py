"""Gradients of weights whose images or channels the cores of a logical one share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from trnx.backend.cores import launches_of
from trnx.backend.kernel_samples import difference, operands, samples_of
from trnx.backend.prediction import PREDICTIONS
from trnx.backend.programs import traced
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, Launch, Sample
from trnx.simulator import simulate
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import TRN2, Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import predicted_seconds

TWO = replace(TRN2, cores=2)
SPEC: Any = next(spec for spec in kernels() if spec.name == "convolution_weight_gradient")


def _host() -> dict[str, Any]:
    """The module that asks what is shared."""
    launch: Any = getattr(SPEC.launch, "given", SPEC.launch)
    found: dict[str, Any] = launch.__globals__
    return found


def _results(launch: Launch, sample: Sample) -> torch.Tensor:
    grid = launch.grid if launch.grid > 1 else None
    found: torch.Tensor = simulate(launch.kernel, grid=grid)(*operands(launch, sample))
    return found


def _shared(launch: Launch) -> str:
    """What it is, of the kernel that has a choice."""
    given = launch.arguments[-2] if launch.cores == 2 else ""
    return given if isinstance(given, str) else ""


_NUMBERS = range(len(list(samples_of(SPEC, TRN2))))


@pytest.mark.parametrize("way", ["images", "window", "gradient"])
@pytest.mark.parametrize("number", _NUMBERS)
def test_a_sample(number: int, way: str) -> None:
    chosen = _host()["what_may_be_shared"]

    def what(b: Bindings, hw: Hardware) -> list[str]:
        is_one = b.x.shape[0] < hw.cores and way == "images"
        found: list[str] = chosen(b, hw)
        return found if found == ["passes"] or is_one else [way]

    with mock.patch.dict(_host(), what_may_be_shared=what):
        sample, launch = list(samples_of(SPEC, TWO))[number]
    assert not isinstance(launch, Reject)
    if _shared(launch) != way:
        pytest.skip("strips, rows, groups or one image")
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
        ((8, 72, 200, 60), "images"),  # much to read, few results
        ((7, 72, 72, 60), "images"),
        ((1, 72, 200, 60), "gradient"),
        ((8, 2000, 500, 7), "window"),  # many results
        ((8, 320, 1280, 7), "gradient"),
    ],
)
def test_what_is_shared(shape: tuple[int, int, int, int], expected: str) -> None:
    assert _shared(SPEC.launch(_bindings(*shape), TWO)) == expected
    assert SPEC.launch(_bindings(*shape), TRN2).arguments[-1] == "passes"


def test_what_is_near_is_scheduled_too() -> None:
    """The kernel's own estimate takes the fewest bytes, and a core is done first with others."""
    b = _bindings(8, 512, 2048, 7)
    launches = launches_of(SPEC, b, TWO)
    assert [_shared(launch) for launch in launches] == ["gradient", "window", ""]
    assert [launch.cores for launch in launches] == [2, 2, 1]
    assert _shared(PREDICTIONS.launch(SPEC, b, TWO)) == "window"


def test_what_takes_much_longer_is_not_scheduled() -> None:
    launches = launches_of(SPEC, _bindings(8, 72, 200, 60), TWO)
    assert [launch.cores for launch in launches] == [2, 1]


@pytest.mark.parametrize(
    ("shape", "most"), [((8, 320, 1280, 7), 14.0), ((8, 960, 160, 7), 9.5), ((8, 96, 576, 14), 9.0)]
)
def test_both_cores_read_less(shape: tuple[int, int, int, int], most: float) -> None:
    """By passes over all channels they took 15.8, 14.6 and 10.5 us."""
    launch = SPEC.launch(_bindings(*shape), TWO)
    assert 1e6 * predicted_seconds(traced(launch, "trn2"), TRN2, launch.unknown_trips) < most
