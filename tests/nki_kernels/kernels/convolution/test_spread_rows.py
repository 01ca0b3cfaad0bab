"""Convolutions of few channels, whose folded kernel rows are on DMA engines of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import launch_of, simulated, traced

from trnx.nki_kernels import registry
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

SPEC = registry.kernels()["convolution"]
NO_EPILOGUE = dict.fromkeys(
    ("bias", "residual", "norm_weight", "norm_bias", "mean", "variance", "sizes")
)
# Input, weight, stride, padding, dilation, groups: those of image models, ragged channels, a last
# row of blocks that is lower, kernel rows that are two products, groups, and 1d and 3d.
SHAPES: dict[str, tuple[Any, ...]] = {
    "stem": ((2, 3, 224, 224), (32, 3, 3, 3), 2, 1, 1, 1),
    "seven rows": ((5, 3, 224, 224), (20, 3, 7, 7), 2, 3, 1, 1),
    "patches": ((4, 3, 224, 224), (96, 3, 4, 4), 4, 0, 1, 1),
    "ragged": ((2, 2, 223, 225), (33, 2, 3, 3), 2, 1, 1, 1),
    "seven ragged rows": ((3, 2, 223, 225), (33, 2, 7, 7), 2, 3, 1, 1),
    "dilated": ((2, 3, 191, 190), (129, 3, 3, 3), 1, 2, 2, 1),
    "groups": ((2, 4, 221, 222), (66, 2, 3, 3), 1, 1, 1, 2),
    "volumes": ((2, 2, 5, 129, 128), (20, 2, 2, 3, 3), 1, 1, 1, 1),
}


def bound(shapes: tuple[Any, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Bindings of finite numbers."""
    x_shape, w_shape, stride, padding, dilation, groups = shapes
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(x_shape, generator=generator).to(dtype)
    weight = torch.randn(w_shape, generator=generator).to(dtype)
    dims = len(x_shape) - 2
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": 0}
    return (
        {"x": x, "weight": weight, "eps": 0.0, "activation": "none", "transposed": False}
        | {name: [value] * dims for name, value in numbers.items()}
        | {"groups": groups}
        | NO_EPILOGUE
    )


def given(case: str, dtype: torch.dtype) -> dict[str, Any]:
    """The same with numbers that are not finite: weights of the first and last kernel rows of one
    channel, and an input at a corner and one inside.
    """
    values = bound(SHAPES[case], dtype)
    x, weight = values["x"], values["weight"]
    # Eager's algorithm for groups multiplies weights with the zeros of the padding.
    if values["groups"] == 1:
        weight[1, 0, ..., 0, 1] = torch.inf
        weight[2, 1, ..., -1, 0] = torch.nan
    x[0, 1, ..., 0, 0] = torch.nan
    x[1, 0, ..., 77, 60] = -torch.inf
    return values


def numbers_of(values: dict[str, Any], target: str) -> tuple[Any, ...]:
    """The plan."""
    launch = launch_of(SPEC, values, target)
    return next(a for a in launch.arguments if isinstance(a, tuple) and len(a) > 10)


def is_spread(values: dict[str, Any], target: str) -> bool:
    """Whether partitions lie between the folded rows."""
    fold, pitch = numbers_of(values, target)[3:5]  # as `_plan.plan_of` reads them
    return fold > 1 and pitch > values["weight"].shape[1]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", SHAPES)
def test_values(case: str, dtype: torch.dtype, target: str) -> None:
    values = given(case, dtype)
    if case in ("stem", "seven rows", "patches") and target == "trn2":
        assert is_spread(values, target)
    (got,) = simulated(SPEC, values, target)
    expected = SPEC.reference(**values)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("outs", "kernel", "stride", "padding", "most"),
    [(64, 7, 2, 3, 66.1), (32, 3, 2, 1, 34.5), (96, 4, 4, 0, 28.5)],
)
def test_time(outs: int, kernel: int, stride: int, padding: int, most: float) -> None:
    """They took 71.2, 36.3 and 29.2 us: engines waited for each other's zeros, and those of DMA for
    the one that serves most of the partitions.
    """
    shapes = ((8, 3, 224, 224), (outs, 3, kernel, kernel), stride, padding, 1, 1)
    program = traced(SPEC, bound(shapes, torch.bfloat16))
    assert 1e6 * predicted_seconds(program, hardware("trn2")) < most


def test_blocks_side_by_side_are_even() -> None:
    """Of 112 rows; in blocks of 12 the last of each image had 4."""
    values = bound(((8, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1, 1), torch.bfloat16)
    rows = numbers_of(values, "trn2")[1]
    assert rows[5] == 8  # as `_plan._axis_of` reads it
