"""Convolutions whose last chunk of channels has a half of the array, two banks at once; and what
the last block of a convolution does by itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import launch_of, simulated, traced

from trnx.nki_kernels import registry
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

SPEC = registry.kernels()["convolution"]
VECTORS = ("bias", "norm_weight", "norm_bias", "mean", "variance")
# Input, outputs, kernel and geometry; those of a convolution, or of a gradient of its input.
FORMS: dict[str, dict[str, Any]] = {
    "padding": {"x": (2, 192, 17, 15), "outs": 130},
    "one channel more": {"x": (2, 129, 19, 33), "outs": 129},
    "one bank": {"x": (1, 160, 9, 11), "outs": 128},
    "odd banks": {"x": (1, 192, 45, 33), "outs": 65},
    "few outputs": {"x": (2, 320, 40, 32), "outs": 4},
    "stride": {"x": (3, 192, 28, 26), "outs": 260, "kernel": 2, "stride": 2, "padding": 0},
    "small images": {"x": (8, 320, 7, 7), "outs": 128},
    "dilation": {"x": (1, 192, 20, 18), "outs": 128, "dilation": 2, "padding": 2},
    "transposed": {"x": (2, 192, 14, 15), "outs": 129, "transposed": True},
    "phases": {"x": (2, 192, 12, 13), "outs": 260, "stride": 2, "transposed": True},
    "groups": {"x": (1, 384, 15, 14), "outs": 256, "groups": 2},
    "1d": {"x": (2, 150, 700), "outs": 128, "kernel": 5, "padding": 2},
    "3d": {"x": (1, 192, 4, 9, 10), "outs": 128},
}
# Whose last bank is copied in halves: planes, rows, one output alone, sides of the array.
ENDS: dict[str, dict[str, Any]] = {
    "planes": {"x": (8, 130, 7, 7), "outs": 128, "kernel": 1, "padding": 0},
    "rows": {"x": (3, 128, 13, 17), "outs": 128},
    "one": {"x": (1, 70, 3, 3), "outs": 64, "padding": 0},
    "sides": {"x": (8, 144, 28, 28), "outs": 32, "kernel": 1, "padding": 0},
    "several chunks": {"x": (8, 256, 7, 7), "outs": 257},
}
# Short rows of weights that are there before the inputs, for several chunks of outputs.
SHORT_ROWS: dict[str, dict[str, Any]] = {
    "32": {"x": (8, 32, 28, 28), "outs": 192, "kernel": 1, "padding": 0},
    "24": {"x": (3, 24, 19, 17), "outs": 300, "kernel": 1, "padding": 0},
    "64": {"x": (2, 64, 14, 15), "outs": 257, "kernel": 1, "padding": 0},
}


def given(
    x: tuple[int, ...],
    outs: int,
    kernel: int = 3,
    stride: int = 1,
    padding: int = 1,
    dilation: int = 1,
    groups: int = 1,
    transposed: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    has_epilogue: bool = False,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    dims = len(x) - 2
    shape = (x[1], outs) if transposed else (outs, x[1] // groups)
    weight = torch.randn((*shape, *[kernel] * dims), generator=generator) / 30
    vectors = dict.fromkeys(VECTORS)
    if has_epilogue:
        vectors = {name: torch.rand(outs, generator=generator).to(dtype) for name in VECTORS}
    values = {
        "x": torch.randn(x, generator=generator).to(dtype),
        "weight": weight.to(dtype),
        "residual": None,
        "eps": 0.1 if has_epilogue else 0.0,
        "sizes": [1, outs] + [1] * dims if has_epilogue else None,
        "activation": "relu" if has_epilogue else "none",
        "stride": [stride] * dims,
        "padding": [padding] * dims,
        "dilation": [dilation] * dims,
        "output_padding": [0] * dims,
        "transposed": transposed,
        "groups": groups,
    } | vectors
    if has_epilogue:
        result = SPEC.reference(**values)
        values["residual"] = torch.randn(result.shape, generator=generator).to(dtype)
    return values


def is_paired(values: dict[str, Any], target: str = "trn2") -> bool:
    """As `_plan.plan_of` reads the plan."""
    arguments = launch_of(SPEC, values, target).arguments
    numbers = next(a for a in arguments if isinstance(a, tuple) and len(a) > 10)
    return bool(numbers[21])


def check(values: dict[str, Any], target: str) -> None:
    (got,) = simulated(SPEC, values, target)
    step = torch.finfo(values["x"].dtype).eps
    expected = SPEC.reference(**values)
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=2e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("form", FORMS)
def test_values_of_pairs(form: str, target: str, dtype: torch.dtype) -> None:
    """Infinities and NaN in the last chunk, in the first one and at the border."""
    values = given(**FORMS[form], dtype=dtype)
    values["x"][0, -1, ..., -1] = torch.inf
    values["x"][-1, 0, ..., 0] = torch.nan
    assert target == "trn1" or is_paired(values, target)
    check(values, target)


@pytest.mark.parametrize("form", ["padding", "stride", "transposed", "small images"])
def test_epilogue_of_pairs(form: str) -> None:
    values = given(**FORMS[form], has_epilogue=True)
    assert is_paired(values)
    check(values, "trn2")


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("form", ENDS)
def test_values_of_the_last_block(form: str, target: str) -> None:
    values = given(**ENDS[form])
    values["x"][-1, -1, ..., -1] = torch.inf
    check(values, target)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", SHORT_ROWS)
def test_values_of_weights_before_inputs(form: str, dtype: torch.dtype) -> None:
    check(given(**SHORT_ROWS[form], dtype=dtype), "trn2")


@pytest.mark.parametrize(
    ("x", "outs", "kernel"),
    [
        ((8, 192, 28, 28), 384, 1),  # one kernel position
        ((8, 224, 28, 28), 384, 3),  # a last chunk of more than half of the rows
        ((8, 96, 28, 28), 384, 3),  # one chunk
        ((8, 192, 56, 56), 2, 1),  # bounded by loads
    ],
)
def test_no_pairs_otherwise(x: tuple[int, ...], outs: int, kernel: int) -> None:
    assert not is_paired(given(x, outs, kernel, padding=kernel // 2))


@pytest.mark.parametrize(
    ("form", "most"),
    [
        ({"x": (8, 192, 28, 28), "outs": 384, "kernel": 2, "stride": 2, "padding": 0}, 19.6),
        ({"x": (8, 320, 64, 64), "outs": 4}, 86.5),
        ({"x": (8, 32, 28, 28), "outs": 192, "kernel": 1, "padding": 0}, 11.6),
    ],
)
def test_predicted_time(form: dict[str, Any], most: float) -> None:
    """With even chunks, and with the second weights behind the inputs, they took 23.1, 101.1 and
    12.4 us.
    """
    program = traced(SPEC, given(**form))
    assert 1e6 * predicted_seconds(program, hardware("trn2"), 0) < most
