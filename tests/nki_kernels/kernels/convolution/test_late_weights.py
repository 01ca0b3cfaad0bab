"""Convolutions whose weights come later than TensorE could start products with those before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import simulated, traced

from trnx.nki_kernels import registry
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

SPEC = registry.kernels()["convolution"]
NO_EPILOGUE = dict.fromkeys(
    ("bias", "residual", "norm_weight", "norm_bias", "mean", "variance", "sizes")
)


def given(x: tuple[int, ...], outs: int, stride: int) -> dict[str, Any]:
    """Of a 3x3 kernel."""
    generator = torch.Generator().manual_seed(0)
    numbers = {"stride": stride, "padding": 1, "dilation": 1, "output_padding": 0}
    weight = torch.randn((outs, x[1], 3, 3), generator=generator) / 30
    return (
        {
            "x": torch.randn(x, generator=generator).to(torch.bfloat16),
            "weight": weight.to(torch.bfloat16),
            "eps": 0.0,
            "activation": "none",
            "transposed": False,
            "groups": 1,
        }
        | {name: [value] * 2 for name, value in numbers.items()}
        | NO_EPILOGUE
    )


def test_products_do_not_wait_for_weights_of_very_long_rows() -> None:
    """It took 36.2 us when those of three chunks of output channels came before the second."""
    program = traced(SPEC, given((8, 512, 14, 14), 512, 2))
    assert 1e6 * predicted_seconds(program, hardware("trn2"), 0) < 36.0


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_values(target: str) -> None:
    """Rows of more than 4,096 elements, and four chunks of outputs."""
    values = given((1, 460, 5, 6), 390, 1)
    values["weight"][7, 3, 1, 1] = torch.inf
    values["x"][0, 5, -1, -1] = torch.nan
    (got,) = simulated(SPEC, values, target)
    expected = SPEC.reference(**values)
    step = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=1e-2, equal_nan=True)
