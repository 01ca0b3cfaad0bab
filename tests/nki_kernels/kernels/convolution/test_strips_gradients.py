"""Gradients of weights of many channels as products of strips of image rows: when, and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import launch_of, traced
from weight_gradients import (
    SPEC,
    assert_equal,
    assert_result,
    assert_spoils_its_channel,
    given,
    kernel_of,
    on_both_cores,
    run,
)

from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

# Sides of the array, a last strip of fewer rows, several blocks of channels of the gradient, which
# TensorE transposes, kernels without an overlap, and the window in place of the gradient.
FORMS: dict[str, dict[str, Any]] = {
    "sides": {"x": (4, 128, 30, 56), "kernel": (3, 3), "outs": 64},
    "four sides": {"x": (8, 96, 28, 40), "kernel": (3, 3), "outs": 32},
    "ragged": {"x": (8, 70, 26, 28), "kernel": (3, 3), "outs": 40},
    "ragged, transposed": {"x": (8, 40, 29, 14), "kernel": (3, 3), "outs": 257},
    "stride": {"x": (8, 129, 28, 28), "kernel": (3, 3), "outs": 127, "stride": 2},
    "no overlap": {"x": (8, 96, 28, 28), "kernel": (2, 2), "outs": 192, "stride": 2, "padding": 0},
    "dilation": {"x": (8, 96, 28, 28), "kernel": (3, 3), "outs": 128, "dilation": 2, "padding": 2},
    "window": {
        "x": (8, 96, 14, 14),
        "kernel": (3, 3),
        "outs": 128,
        "stride": 2,
        "transposed": True,
    },
}


def by_strips(values: dict[str, Any], target: str = "trn2") -> bool:
    return kernel_of(values, target) == "strips_gradient_kernel"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, target: str, dtype: torch.dtype) -> None:
    values = given(**FORMS[form], dtype=dtype)
    assert by_strips(values, target)
    assert_result(values, target)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_channel(form: str, value: float) -> None:
    values = given(**FORMS[form])
    assert_spoils_its_channel(values, values["x" if values["transposed"] else "grad"], value)


@pytest.mark.parametrize("channel", [0, 20, 39])
def test_a_corner_of_the_gradient_meets_no_padding(channel: int) -> None:
    """A zero of the padding, times an infinity, would be NaN where there is a number."""
    values = given(**FORMS["ragged"])
    values["grad"][1, channel, 0, 0] = torch.inf
    assert by_strips(values)
    got = run(values, "trn2")
    assert (got[channel].isfinite().flatten(1).sum(1) == 5).all()
    others = torch.arange(40) != channel
    assert_equal(got[others], SPEC.reference(**values)[others])


@pytest.mark.parametrize("form", ["ragged", "ragged, transposed", "stride"])
def test_neighbours_in_place_of_padding_do_not_count(form: str) -> None:
    """Rows above and below an image are loaded from the channels beside it."""
    values = given(**FORMS[form])
    expected = SPEC.reference(**values)
    values["x"][:, 1::2] = 2.0**100
    assert by_strips(values)
    assert_equal(run(values, "trn2")[:, ::2], expected[:, ::2])


def test_strips_are_for_types_of_two_bytes_and_kernels_of_two_dimensions() -> None:
    form = FORMS["ragged"]
    assert by_strips(given(**form))
    assert not by_strips(given(**form, dtype=torch.float32))
    assert not by_strips(given(**form), "trn1")
    assert not by_strips(given((8, 70, 26, 28), (1, 1), 40))
    assert not by_strips(given((8, 70, 260), (3,), 40))
    # Images of so many bytes are not in SBUF at once.
    assert not by_strips(given((8, 640, 64, 64), (3, 3), 320))
    # There are not as many rows above an image as the padding has.
    assert not by_strips(given((8, 70, 2, 28), (3, 3), 40, padding=3))
    assert not by_strips(given((129, 70, 3, 28), (3, 3), 40))


@pytest.mark.parametrize(
    ("shape", "outs", "kernel", "stride", "microseconds"),
    [
        ((8, 64, 56, 56), 64, 3, 1, 52.0),
        ((8, 128, 56, 56), 128, 3, 2, 52.0),
        ((8, 256, 28, 28), 256, 3, 2, 52.0),
        ((8, 192, 28, 28), 384, 2, 2, 26.0),
        ((8, 3, 224, 224), 64, 7, 2, 88.0),  # by rows of images
    ],
)
def test_layers_of_image_models_use_nearly_half_of_the_chip(
    shape: tuple[int, ...], outs: int, kernel: int, stride: int, microseconds: float
) -> None:
    """The first one was faster by XLA, the others took 59, 53, 28 and 101 us on trn2."""
    padding = 0 if kernel == stride else kernel // 2
    values = given(shape, (kernel, kernel), outs, stride, padding=padding)
    program = traced(SPEC, values)
    assert by_strips(values) == (launch_of(SPEC, values).unknown_trips == 0)
    assert predicted_seconds(program, hardware("trn2"), 0) < microseconds * 1e-6


@pytest.mark.parametrize("outs", [32, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_a_stem_side_by_side_keep_what_is_not_finite(outs: int, dtype: torch.dtype) -> None:
    values = given((4, 3, 40, 100), (5, 5), outs, 2, dtype=dtype)
    values["grad"][1, 3, 4, 7], values["grad"][2, 5, 0, 0] = torch.nan, torch.inf
    assert kernel_of(values, "trn2") == "weight_rows_kernel"
    expected = SPEC.reference(**values)
    assert expected[5].isfinite().flatten(1).sum(1).tolist() == [16] * 3
    assert_equal(run(values, "trn2"), expected)


@pytest.mark.parametrize("value", [torch.inf, 1.0])
@pytest.mark.parametrize("form", ["sides", "ragged", "stride"])
def test_cores_share_channels_of_the_window(form: str, value: float) -> None:
    """Each repairs what is its own."""
    values = given(**FORMS[form])
    values["x"][-1, -1, 5, 7] = value
    assert by_strips(values)
    assert_equal(on_both_cores(values), SPEC.reference(**values))
