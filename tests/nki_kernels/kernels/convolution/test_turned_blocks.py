"""Gradients of weights of 1x1 kernels of which DMA transposes several blocks of images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import launch_of, traced
from weight_gradients import SPEC, assert_equal, assert_result, given, on_both_cores, run

from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

# Last positions that fit a quarter of the partitions, a half and neither; one image in a block, of
# which two transfers bring the last one; small images, of which several share the partitions.
FORMS: dict[str, dict[str, Any]] = {
    "quarter": {"x": (4, 600, 16, 18), "kernel": (1, 1), "outs": 5},
    "half": {"x": (5, 600, 16, 20), "kernel": (1, 1), "outs": 130},
    "more": {"x": (4, 1100, 15, 15), "kernel": (1, 1), "outs": 3},
    "one image": {"x": (3, 1100, 16, 18), "kernel": (1, 1), "outs": 4},
    "no rest": {"x": (3, 1100, 16, 24), "kernel": (1, 1), "outs": 4},
    "few positions": {"x": (8, 700, 7, 7), "kernel": (1, 1), "outs": 400},
}


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, target: str) -> None:
    assert_result(given(**FORMS[form]), target)


@pytest.mark.parametrize("form", ["quarter", "one image", "few positions"])
def test_values_on_both_cores(form: str) -> None:
    values = given(**FORMS[form])
    assert_equal(on_both_cores(values), SPEC.reference(**values))


@pytest.mark.parametrize("place", [0, -1])
def test_what_is_not_finite_stays_in_its_channel(place: int) -> None:
    """In the last image, of a position in a whole chunk, and of one of the last positions."""
    values = given(**FORMS["quarter"])
    values["grad"][3, 2, place, place] = torch.nan
    expected = SPEC.reference(**values)
    assert expected.isfinite().flatten(1).all(1).sum() == 4
    assert_equal(run(values, "trn2"), expected)


@pytest.mark.parametrize(
    ("x", "outs", "microseconds"),
    [
        # Took 38.5 us: two of the DMA engines moved all last positions.
        ((8, 512, 28, 28), 256, 36.0),
        # 24.8: products of two images behind the last load.
        ((8, 64, 56, 56), 64, 23.0),
        # 16.4 and 19.4: transfers of four images, less than their triggers.
        ((8, 160, 7, 7), 960, 10.5),
        ((8, 320, 7, 7), 1280, 13.0),
    ],
)
def test_time(x: tuple[int, ...], outs: int, microseconds: float) -> None:
    program = traced(SPEC, given(x, (1, 1), outs))
    assert predicted_seconds(program, hardware("trn2")) < microseconds * 1e-6


def test_tensor_engine_is_warm_when_operands_are_there() -> None:
    """More products in front of operands that come late; none more where it transposes at once."""
    late, early = (given((8, c, n, n), (1, 1), 512) for c, n in ((2048, 7), (256, 14)))
    numbers = [launch_of(SPEC, values, "trn2").arguments[-2] for values in (late, early)]
    assert numbers[0] > 28 > numbers[1]
