"""Forward 1x1 convolutions of small images, whose loads take most of the time."""

from __future__ import annotations

import math
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
# Input, outputs and stride: ragged rows of a block, images that share blocks unevenly, 1d and 3d.
FORMS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "image models": ((8, 576, 14, 14), 96, 1),
    "ragged": ((3, 300, 19, 19), 70, 1),
    "images": ((29, 290, 7, 6), 65, 1),
    "stride": ((5, 260, 31, 30), 129, 2),
    "1d": ((1, 261, 1100), 130, 1),
    "3d": ((2, 300, 5, 17, 13), 67, 1),
}


def given(
    x: tuple[int, ...], outs: int, stride: int = 1, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    dims = len(x) - 2
    numbers = {"stride": stride, "padding": 0, "dilation": 1, "output_padding": 0}
    return (
        {
            "x": torch.randn(x, generator=generator).to(dtype),
            "weight": torch.randn((outs, x[1], *[1] * dims), generator=generator).to(dtype),
            "eps": 0.0,
            "activation": "none",
            "transposed": False,
            "groups": 1,
        }
        | {name: [value] * dims for name, value in numbers.items()}
        | NO_EPILOGUE
    )


def blocks(values: dict[str, Any], target: str = "trn2") -> int:
    """Of a volume: how many blocks it is cut into."""
    arguments = launch_of(SPEC, values, target).arguments
    numbers = next(a for a in arguments if isinstance(a, tuple) and len(a) > 10)
    # Outputs and those of a block, as `_plan.plan_of` reads them.
    return math.prod(-(-axis[3] // axis[5]) for axis in numbers[:2])


def microseconds(channels: int, outs: int, size: int = 14) -> float:
    program = traced(SPEC, given((8, channels, size, size), outs))
    return 1e6 * predicted_seconds(program, hardware("trn2"), 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, target: str, dtype: torch.dtype) -> None:
    values = given(*FORMS[form], dtype=dtype)
    values["x"][0, 7, ..., -1] = torch.inf
    values["x"][-1, -1, ..., 0] = torch.nan
    assert 5 <= blocks(values, target) <= 12
    (got,) = simulated(SPEC, values, target)
    expected = SPEC.reference(**values)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("channels", "outs", "most"), [(576, 96, 9.6), (384, 96, 7.8), (1024, 256, 17.5)]
)
def test_more_blocks_where_loads_take_most_of_the_time(
    channels: int, outs: int, most: float
) -> None:
    """They took 10.3, 7.9 and 17.8 us in four blocks, whose last products waited for loads."""
    assert microseconds(channels, outs) < most


@pytest.mark.parametrize(
    ("x", "outs"),
    [
        ((8, 1024, 14, 14), 512),  # products take longer than loads
        ((8, 96, 14, 14), 576),  # stores do
        ((8, 2048, 9, 9), 512),  # products of few columns
    ],
)
def test_at_most_four_blocks_otherwise(x: tuple[int, ...], outs: int) -> None:
    assert blocks(given(x, outs)) <= 4


def test_triggers_take_no_time_where_tensor_engine_transposes_the_weights() -> None:
    """DMA does not, where blocks are computed side by side: its triggers wait for nothing. They
    took 10.3 us with descriptors that DGE makes.
    """
    values = given((8, 64, 14, 14), 384)
    assert "dma_transpose" not in traced(SPEC, values).rows.opcodes()
    assert microseconds(64, 384) < 9.9


# Input and outputs, of which the weights of some chunks come first: even, ragged, and one chunk.
WIDE: dict[str, tuple[tuple[int, ...], int]] = {
    "image models": ((8, 96, 14, 14), 576),
    "ragged": ((3, 140, 19, 19), 395),
    "one chunk": ((4, 96, 14, 14), 128),
    "one row": ((9, 128, 1, 160), 300),
    "odd rows": ((3, 250, 7, 61), 260),
}


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("form", WIDE)
def test_values_of_more_outputs_than_inputs(form: str, target: str) -> None:
    values = given(*WIDE[form])
    values["x"][0, 7, ..., -1] = torch.inf
    values["weight"][-1, 5] = torch.nan
    (got,) = simulated(SPEC, values, target)
    step = torch.finfo(torch.bfloat16).eps
    expected = SPEC.reference(**values)
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("form", WIDE)
def test_values_with_an_epilogue(form: str, activation: str) -> None:
    x, outs = WIDE[form]
    vector = torch.linspace(-2, 2, outs, dtype=torch.bfloat16)
    values = given(x, outs) | {"bias": vector, "activation": activation}
    (got,) = simulated(SPEC, values, "trn2")
    step = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(got, SPEC.reference(**values), rtol=4 * step, atol=1e-3)


def test_two_engines_copy_the_first_bank_of_each_block() -> None:
    """Unless VectorE would need several instructions."""
    values = given((8, 96, 14, 14), 576)
    plain, other = (traced(SPEC, values | {"activation": name}).rows for name in ("none", "silu"))
    copies = [row.opcode for row in plain if "_epilogue" in str(row.location)]
    assert copies[:4] == ["activation", "tensor_copy"] * 2
    others = [row.opcode for row in other if "_epilogue" in str(row.location)]
    # Four blocks of four whole chunks of outputs; the last ones have columns of their own.
    assert len(copies) == len(others) + 4 * 4
    assert set(others) == {"activation"}


@pytest.mark.parametrize(("channels", "rows"), [(96, 128), (112, 112)])
def test_rows_of_the_array_without_channels_have_zeros(channels: int, rows: int) -> None:
    """Where they are more than half of them, and instructions may begin behind them."""
    products = [
        row
        for row in traced(SPEC, given((8, channels, 14, 14), 576)).rows
        if row.opcode == "nc_matmul" and "warm_up" not in str(row.location)
    ]
    assert {product.operands[1].partitions for product in products} == {rows}


@pytest.mark.parametrize(("channels", "outs", "most"), [(96, 576, 9.6), (256, 1024, 16.1)])
def test_stores_of_more_outputs_than_inputs_start_early(
    channels: int, outs: int, most: float
) -> None:
    """They took 10.7 and 17.1 us with descriptors that DGE makes, and when the first products
    waited for all weights; 10.1 and 16.2 when one engine copied the first bank of a block.
    """
    assert microseconds(channels, outs) < most


def test_products_of_no_use_end_when_the_first_operands_are_there() -> None:
    """One more would delay the first product, fewer leave TensorE idle before it."""
    rows = traced(SPEC, given((8, 96, 14, 14), 576)).rows
    products = [row for row in rows if row.opcode == "nc_matmul"]
    unused = [row for row in products if "warm_up" in str(row.location)]
    assert len(unused) == 17


# Few outputs, so that blocks share the columns of the array: a whole chunk of channels and a last
# one, whole chunks, and last blocks that are fewer than the others.
SIDES: dict[str, tuple[tuple[int, ...], int]] = {
    "image models": ((8, 144, 28, 28), 32),
    "two chunks": ((8, 192, 28, 28), 27),
    "fewer blocks": ((7, 140, 26, 21), 64),
    "one row": ((12, 130, 1, 300), 20),
}


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("form", SIDES)
def test_values_of_few_outputs(form: str, target: str) -> None:
    values = given(*SIDES[form])
    values["x"][0, 7, ..., -1] = torch.inf
    values["x"][-1, -1, ..., 0] = torch.nan
    (got,) = simulated(SPEC, values, target)
    step = torch.finfo(torch.bfloat16).eps
    expected = SPEC.reference(**values)
    torch.testing.assert_close(got, expected, rtol=4 * step, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("channels", "most"), [(144, 9.5), (192, 10.5)])
def test_few_products_are_left_behind_the_last_inputs(channels: int, most: float) -> None:
    """They took 9.6 and 10.7 us when products of the others waited for the last block's inputs."""
    assert microseconds(channels, 32, 28) < most
    last = [
        row.operands[-1].start_partition
        for row in traced(SPEC, given((8, channels, 28, 28), 32)).rows
        if row.opcode == "nc_matmul"
    ][-16:]
    # Two halves of two chunks of channels for each of four sides.
    assert last == sorted(last)
    assert len(set(last)) == 4
