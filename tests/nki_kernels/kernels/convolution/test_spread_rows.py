"""Convolutions of few channels, whose folded kernel rows are on DMA engines of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import launch_of, simulated

from trnx.nki_kernels import registry

SPEC = registry.kernels()["convolution"]
NO_EPILOGUE = dict.fromkeys(
    ("bias", "residual", "norm_weight", "norm_bias", "mean", "variance", "sizes")
)
# Input, weight, stride, padding, dilation, groups: those of image models, ragged channels, a last
# row of blocks that is lower, kernel rows that are two products, groups, and 1d and 3d.
SHAPES: dict[str, tuple[Any, ...]] = {
    "stem": ((2, 3, 224, 224), (32, 3, 3, 3), 2, 1, 1, 1),
    "patches": ((4, 3, 224, 224), (96, 3, 4, 4), 4, 0, 1, 1),
    "ragged": ((2, 2, 223, 225), (33, 2, 3, 3), 2, 1, 1, 1),
    "dilated": ((2, 3, 191, 190), (129, 3, 3, 3), 1, 2, 2, 1),
    "groups": ((2, 4, 221, 222), (66, 2, 3, 3), 1, 1, 1, 2),
    "volumes": ((2, 2, 5, 129, 128), (20, 2, 2, 3, 3), 1, 1, 1, 1),
}


def given(case: str, dtype: torch.dtype) -> dict[str, Any]:
    """Bindings, with numbers that are not finite: weights of the first and last kernel rows of one
    channel, and an input at a corner and one inside.
    """
    x_shape, w_shape, stride, padding, dilation, groups = SHAPES[case]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(x_shape, generator=generator).to(dtype)
    weight = torch.randn(w_shape, generator=generator).to(dtype)
    if groups == 1:  # eager's algorithm for groups multiplies weights with the zeros of the padding
        weight[1, 0, ..., 0, 1] = torch.inf
        weight[2, 1, ..., -1, 0] = torch.nan
    x[0, 1, ..., 0, 0] = torch.nan
    x[1, 0, ..., 77, 60] = -torch.inf
    dims = len(x_shape) - 2
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": 0}
    return (
        {"x": x, "weight": weight, "eps": 0.0, "activation": "none", "transposed": False}
        | {name: [value] * dims for name, value in numbers.items()}
        | {"groups": groups}
        | NO_EPILOGUE
    )


def is_spread(values: dict[str, Any], target: str) -> bool:
    """Whether partitions lie between the folded rows."""
    launch = launch_of(SPEC, values, target)
    numbers = next(a for a in launch.arguments if isinstance(a, tuple) and len(a) > 10)
    fold, pitch = numbers[3:5]  # as `_plan.plan_of` reads them
    return fold > 1 and pitch > values["weight"].shape[1]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", SHAPES)
def test_values(case: str, dtype: torch.dtype, target: str) -> None:
    values = given(case, dtype)
    if case in ("stem", "patches") and target == "trn2":
        assert is_spread(values, target)
    (got,) = simulated(SPEC, values, target)
    expected = SPEC.reference(**values)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=1e-4, equal_nan=True)
