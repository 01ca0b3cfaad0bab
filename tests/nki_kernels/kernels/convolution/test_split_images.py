"""Gradients of weights of 1x1 kernels where TensorE transposes the last positions of images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import traced
from weight_gradients import (
    SPEC,
    assert_equal,
    assert_result,
    given,
    on_both_cores,
    run,
)

from trnx.simulator.hardware import hardware
from trnx.simulator.program.program import Program
from trnx.simulator.timing.profile import predicted_seconds

# Few channels in a last chunk; half of one, with an odd number of images; one image; more channels
# than a bank has columns.
FORMS: dict[str, dict[str, Any]] = {
    "few": {"x": (8, 257, 12, 11), "kernel": (1, 1), "outs": 3},
    "half": {"x": (7, 64, 14, 14), "kernel": (1, 1), "outs": 384},
    "one image": {"x": (1, 1030, 20, 21), "kernel": (1, 1), "outs": 5},
    "beyond a bank": {"x": (4, 900, 13, 11), "kernel": (1, 1), "outs": 129},
}


def opcodes(program: Program) -> set[str]:
    return set(program.rows.opcodes())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, target: str, dtype: torch.dtype) -> None:
    values = given(**FORMS[form], dtype=dtype)
    assert_result(values, target)
    both = {"dma_transpose", "nc_transpose"} <= opcodes(traced(SPEC, values, target))
    assert both == (target != "trn1")


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("place", [0, -1])
def test_what_is_not_finite_stays_in_its_channel(place: int, value: float) -> None:
    """Of a position that DMA transposes, and of one that TensorE does."""
    values = given(**FORMS["half"])
    values["grad"][2, 7, place, place] = value
    expected = SPEC.reference(**values)
    assert expected.isfinite().flatten(1).all(1).sum() == 383
    assert_equal(run(values, "trn2"), expected)


def test_dma_transposes_all_of_few_bytes_and_of_many() -> None:
    for channels in (192, 640):
        values = given((8, channels, 14, 14), (1, 1), 64)
        assert "nc_transpose" not in opcodes(traced(SPEC, values))


@pytest.mark.parametrize(
    ("channels", "outs", "microseconds"), [(64, 384, 8.5), (384, 64, 9.5), (384, 96, 9.7)]
)
def test_all_dma_engines_are_busy(channels: int, outs: int, microseconds: float) -> None:
    """DMA took 9.7, 10.0 and 10.5 us by itself, nine of its engines for the last positions."""
    values = given((8, channels, 14, 14), (1, 1), outs)
    program = traced(SPEC, values)
    assert predicted_seconds(program, hardware("trn2"), 0) < microseconds * 1e-6


def test_cores_share_channels() -> None:
    values = given((8, 257, 12, 11), (1, 1), 300)
    assert_equal(on_both_cores(values), SPEC.reference(**values))
