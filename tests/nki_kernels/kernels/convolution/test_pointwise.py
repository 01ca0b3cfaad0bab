"""Convolutions of images so small that two adjacent channels lie on a partition, and of kernels of
two columns that do not overlap.
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
# Images, channels and output channels: whole pairs of 128 partitions, pairs of fewer, last ones
# that have a partition each; all sums in PSUM at once, or those of 256 channels.
FORMS: dict[str, tuple[tuple[int, ...], int, tuple[int, int]]] = {
    "image models": ((8, 2048, 7, 7), 512, (1, 1)),
    "pairs of few partitions": ((2, 450, 8, 8), 130, (1, 1)),
    "few left": ((5, 258, 3, 20), 1026, (1, 1)),
    "one image": ((1, 128, 1, 9), 384, (1, 1)),
    "patches": ((8, 384, 14, 14), 768, (2, 2)),
    "ragged patches": ((3, 130, 9, 15), 642, (2, 2)),
    "patches of one row": ((32, 200, 5, 6), 514, (1, 2)),
    "patches of four rows": ((8, 130, 9, 9), 1282, (4, 2)),
}


def given(
    x: tuple[int, ...],
    outs: int,
    kernel: tuple[int, int] = (1, 1),
    dtype: torch.dtype = torch.bfloat16,
    norm: bool = False,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    numbers = {"padding": 0, "dilation": 1, "output_padding": 0}
    values: dict[str, Any] = {
        "x": torch.randn(x, generator=generator).to(dtype),
        "weight": torch.randn((outs, x[1], *kernel), generator=generator).to(dtype),
        "stride": list(kernel),
        "residual": None, "sizes": None, "eps": 0.0, "activation": "none", "transposed": False,
        "groups": 1,
    }  # fmt: skip
    values |= dict.fromkeys(VECTORS) | {name: [value] * 2 for name, value in numbers.items()}
    if norm:
        some = {name: torch.rand(outs, generator=generator).to(dtype) + 0.5 for name in VECTORS}
        values |= some | {"eps": 1e-5, "sizes": [1, outs, 1, 1], "activation": "relu"}
    return values


def is_pointwise(values: dict[str, Any], target: str = "trn2") -> bool:
    return "pointwise" in launch_of(SPEC, values, target).kernel.__name__


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, target: str, dtype: torch.dtype, norm: bool) -> None:
    values = given(*FORMS[form], dtype=dtype, norm=norm)
    values["x"][0, 7, 0, -1] = torch.inf
    values["x"][-1, -1, -1, 0] = torch.nan
    assert is_pointwise(values, target)
    (got,) = simulated(SPEC, values, target)
    expected = SPEC.reference(**values)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "outs", "dtype", "target"),
    [
        ((8, 512, 7, 7), 256, torch.float32, "trn2"),  # pairs are no elements of 4 bytes
        ((8, 512, 7, 7), 256, torch.bfloat16, "trn1"),  # whose DMA transposes slowly
        ((8, 512, 9, 9), 256, torch.bfloat16, "trn2"),  # a channel is a long run
        ((12, 512, 7, 7), 256, torch.bfloat16, "trn2"),  # images do not share a bank
        ((8, 511, 7, 7), 256, torch.bfloat16, "trn2"),  # channels are no pairs
        ((8, 512, 7, 7), 257, torch.bfloat16, "trn2"),
        ((8, 126, 7, 7), 256, torch.bfloat16, "trn2"),  # and fewer than partitions
    ],
)
def test_others(x: tuple[int, ...], outs: int, dtype: torch.dtype, target: str) -> None:
    assert not is_pointwise(given(x, outs, dtype=dtype), target)


def test_a_residual_is_added_the_other_way() -> None:
    values = given((2, 256, 7, 7), 128)
    assert is_pointwise(values)
    assert not is_pointwise(values | {"residual": torch.ones(2, 128, 7, 7, dtype=torch.bfloat16)})


@pytest.mark.parametrize(
    ("channels", "outs", "most"),
    [(2048, 512, 17.0), (512, 2048, 16.8), (960, 320, 10.1), (320, 1280, 11.2), (576, 160, 7.7)],
)
def test_adjacent_channels_are_one_run(channels: int, outs: int, most: float) -> None:
    """They took 22.1, 17.5, 12.1, 12.8 and 8.5 us with channels apart."""
    program = traced(SPEC, given((8, channels, 7, 7), outs))
    assert 1e6 * predicted_seconds(program, hardware("trn2"), 0) < most


def test_dma_transposes_the_weights_of_patches() -> None:
    """They took 23.0 us where TensorE does, which bounds them."""
    program = traced(SPEC, given((8, 384, 14, 14), 768, (2, 2)))
    assert 1e6 * predicted_seconds(program, hardware("trn2"), 0) < 19.5
    # Few output channels have few weights to transpose, and the input would come twice.
    assert not is_pointwise(given((8, 384, 14, 14), 128, (2, 2)))
