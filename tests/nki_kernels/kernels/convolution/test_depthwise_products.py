"""Convolutions of one channel a group as products with diagonals: when, and what is not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launched import bindings, launch_of, simulated, traced

import trnx
from trnx import simulator
from trnx.nki_kernels import registry
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

SPEC = registry.kernels()["convolution"]
AHEAD = 18  # the place of the kernel's argument
# Whole images in a bank, or half as many as fit; two kernel rows a product, also of full banks, the
# smallest first and last, and of several banks a block; sides with banks of their own, also of the
# last channels; products that follow the loads; phases; one dimension.
FORMS: dict[str, dict[str, Any]] = {
    "images": {"x": (2, 160, 14, 14), "kernel": (3, 3)},
    "half of the images": {"x": (8, 128, 14, 14), "kernel": (3, 3), "stride": 2},
    "sides in turn": {"x": (8, 240, 14, 14), "kernel": (3, 3), "stride": 2},
    "full banks": {"x": (4, 128, 30, 28), "kernel": (3, 3)},
    "pairs": {"x": (2, 144, 30, 28), "kernel": (3, 3)},
    "several banks": {"x": (4, 96, 112, 112), "kernel": (3, 1)},
    "side after side": {"x": (2, 150, 60, 60), "kernel": (3, 3), "stride": 2},
    "phases": {"x": (2, 160, 28, 28), "kernel": (3, 3), "stride": 2, "transposed": True},
    "1d": {"x": (2, 96, 600), "kernel": (4,)},
}


def given(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: int = 1,
    transposed: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    activation: str = "none",
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    dims = len(kernel)
    weight = torch.randn((x[1], 1, *kernel), generator=generator).to(dtype)
    names = ("bias", "residual", "norm_weight", "norm_bias", "mean", "variance", "sizes")
    return {
        "x": torch.randn(x, generator=generator).to(dtype), "weight": weight, "eps": 0.0,
        "activation": activation, "stride": [stride] * dims,
        "padding": [size // 2 for size in kernel], "dilation": [1] * dims,
        "transposed": transposed, "groups": x[1],
        "output_padding": [stride - 1 if transposed else 0] * dims,
    } | dict.fromkeys(names)  # fmt: skip


def run(values: dict[str, Any], target: str) -> torch.Tensor:
    (result,) = simulated(SPEC, values, target)
    return result


def by_products(values: dict[str, Any], target: str) -> bool:
    return launch_of(SPEC, values, target).kernel.__name__ == "depthwise_product_kernel"


def are_in_turn(values: dict[str, Any], cores: int) -> bool:
    """Whether sides have banks of their own, as the kernel is told."""
    launch = SPEC.launch(bindings(values), replace(hardware("trn2"), cores=cores))
    return bool(launch.arguments[AHEAD] > 0)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["x", "weight", "nowhere"])
def test_what_is_not_finite_stays_in_its_channel(form: str, target: str, where: str) -> None:
    values = given(**FORMS[form])
    assert by_products(values, target)
    if where == "x":
        values["x"][0, 3, 5], values["x"][1, 40, 0] = torch.inf, torch.nan
    elif where == "weight":
        # In the middle of the kernel, as eager lets others meet zeros of the padding.
        values["weight"][70].view(-1)[values["weight"][70].numel() // 2] = -torch.inf
    expected = SPEC.reference(**values)
    finite = expected.isfinite().flatten(2).all(-1).any(0)
    assert finite.sum() >= finite.numel() - 2
    got = run(values, target)
    torch.testing.assert_close(got, expected, rtol=1.6e-2, atol=1e-2, equal_nan=True)


def test_an_infinity_that_the_activation_hides_is_found() -> None:
    """Relu makes 0 of it, and of NaN in other channels what the chip pleases."""
    values = given(**FORMS["pairs"], activation="relu")
    values["x"][0, 3, 5] = -torch.inf
    torch.testing.assert_close(
        run(values, "trn2"), SPEC.reference(**values), rtol=1.6e-2, atol=1e-2, equal_nan=True
    )


@pytest.mark.parametrize(("activation", "adds"), [("relu", False), ("none", True), ("silu", True)])
def test_sides_in_turn_have_residuals_and_activations(activation: str, adds: bool) -> None:
    values = given((8, 192, 14, 14), (3, 3), 2, activation=activation)
    if adds:
        generator = torch.Generator().manual_seed(1)
        values["residual"] = torch.randn((8, 192, 7, 7), generator=generator).bfloat16()
    assert are_in_turn(values, 1)
    torch.testing.assert_close(
        run(values, "trn2"), SPEC.reference(**values), rtol=1.6e-2, atol=1e-2
    )


def test_small_banks_let_no_tile_idle() -> None:
    """The distance of sides was divided by the time in which tiles idle."""
    values = given((8, 256, 15, 13), (3, 3), 3)
    assert are_in_turn(values, 1)
    torch.testing.assert_close(
        run(values, "trn2"), SPEC.reference(**values), rtol=1.6e-2, atol=1e-2
    )


def test_sums_that_overflow_as_a_total_are_as_they_are() -> None:
    values = given(**FORMS["images"])
    values["x"].fill_(2.0**120)
    torch.testing.assert_close(
        run(values, "trn2"), SPEC.reference(**values), rtol=1.6e-2, atol=1e-2
    )


def test_products_are_for_types_of_two_bytes_and_many_outputs() -> None:
    assert not by_products(given((2, 160, 14, 14), (3, 3), dtype=torch.float32), "trn2")
    assert not by_products(given((1, 160, 2, 2), (3, 3)), "trn2")
    assert not by_products(given((2, 31, 14, 14), (3, 3)), "trn2")
    assert not by_products(given((2, 160, 14, 14), (3, 3)), "trn1")


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "microseconds"),
    [(112, 3, 2, 75.0), (56, 3, 1, 75.0), (56, 7, 1, 160.0)],
)
def test_tensor_engine_bounds_layers_of_image_models(
    size: int, kernel: int, stride: int, microseconds: float
) -> None:
    """VectorE took 145, 171 and 634 us on trn2."""
    values = given((8, 96, size, size), (kernel, kernel), stride)
    program = traced(SPEC, values)
    assert launch_of(SPEC, values).unknown_trips == 0
    assert predicted_seconds(program, hardware("trn2"), 0) < microseconds * 1e-6


@pytest.mark.parametrize("value", [torch.inf, 1.0])
@pytest.mark.parametrize("images", [1, 3, 4])
def test_cores_share_images(images: int, value: float) -> None:
    """Each repairs what is its own."""
    values = given((images, 160, 28, 28), (3, 3))
    x, weight = values["x"], values["weight"]
    x[-1, 3, 5, 7] = value

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1, groups=160)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", options={"select": "legal", "lnc": 2})
    with trnx.collect_reports() as reports:
        got = compiled(x, weight)
    assert [r.kernel for report in reports for r in report.regions] == ["convolution"]
    expected = SPEC.reference(**values)
    torch.testing.assert_close(got, expected, rtol=1.6e-2, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "microseconds"),
    [((8, 144, 56, 56), 32.4), ((8, 32, 112, 112), 27.1), ((8, 192, 28, 28), 13.7)],
)
def test_rounds_of_a_core_leave_few_tiles_idle(x: tuple[int, ...], microseconds: float) -> None:
    """Blocks are cut for the images of a core, which had a third round for half of the tiles; and
    VectorE copies few of the inputs: they took 35.2, 28.9 and 15.6 us when it copied nearly all.
    """
    hw = replace(hardware("trn2"), cores=2)
    launch = SPEC.launch(bindings(given(x, (3, 3))), hw)
    assert launch.kernel.__name__ == "depthwise_product_kernel"
    assert launch.cores == launch.grid == 2
    program = simulator.trace(
        launch.kernel, launch.arguments, target="trn2", values=False, grid=launch.grid
    )
    assert predicted_seconds(program, hw, 0) < microseconds * 1e-6


@pytest.mark.parametrize(
    ("channels", "size", "stride", "most"), [(144, 56, 2, 29.0), (384, 14, 1, 13.7)]
)
def test_products_follow_the_loads_where_these_take_longer(
    channels: int, size: int, stride: int, most: float
) -> None:
    """They took 30.1 us when all sides of a round waited for the last one's input; and take 14.5
    where products, which take longer, do not use as much of the array as they can.
    """
    program = traced(SPEC, given((8, channels, size, size), (3, 3), stride))
    assert predicted_seconds(program, hardware("trn2"), 0) < most * 1e-6


@pytest.mark.parametrize(
    ("channels", "size", "microseconds"),
    [(192, 28, 20.86), (144, 56, 59.2), (576, 14, 17.72), (384, 14, 13.7)],
)
def test_copies_and_last_stores_take_little_time(
    channels: int, size: int, microseconds: float
) -> None:
    """They took 23.3, 61.9, 17.8 and 13.8 us: with larger blocks, nearly all of which VectorE
    copied, and with all of the last results stored together; the first two 21.5 and 59.5 when the
    first inputs came behind all filters and zeros; the first 21.1 with banks of one size.
    """
    program = traced(SPEC, given((8, channels, size, size), (3, 3)))
    assert predicted_seconds(program, hardware("trn2"), 0) < microseconds * 1e-6


@pytest.mark.parametrize(("cores", "microseconds"), [(1, 9.82), (2, 8.7)])
def test_products_of_strided_images_follow_the_loads(cores: int, microseconds: float) -> None:
    """They took 11.5 and 9.3 us in banks of as many images as fit; one core 10.4 when the sides
    of a round had banks together.
    """
    hw = replace(hardware("trn2"), cores=cores)
    launch = SPEC.launch(bindings(given((8, 576, 14, 14), (3, 3), 2)), hw)
    grid = launch.grid if launch.grid > 1 else None
    program = simulator.trace(
        launch.kernel, launch.arguments, target="trn2", values=False, grid=grid
    )
    assert predicted_seconds(program, hw, 0) < microseconds * 1e-6


@pytest.mark.parametrize(
    ("images", "channels", "size", "microseconds"),
    [(8, 256, 28, 26.8), (3, 128, 112, 68.0), (8, 960, 14, 26.2)],
)
def test_few_descriptors_are_made_before_the_run(
    images: int, channels: int, size: int, microseconds: float
) -> None:
    """Each image was counted once for each image, so that triggers took 116.7, 144.0 and 47.0 us:
    the ones of what is done again where sums are not finite, whose blocks are of some images."""
    program = traced(SPEC, given((images, channels, size, size), (3, 3)))
    assert predicted_seconds(program, hardware("trn2"), 0) < microseconds * 1e-6


def test_sides_are_in_turn_where_loads_take_longer_than_products() -> None:
    """And where cores do not share HBM, and diagonals are not there before the first inputs."""
    assert are_in_turn(given(**FORMS["sides in turn"]), 1)
    assert are_in_turn(given(**FORMS["half of the images"]), 1)
    assert are_in_turn(given((8, 576, 14, 14), (3, 3), 2), 1)
    assert not are_in_turn(given((8, 576, 14, 14), (3, 3), 2), 2)
    assert not are_in_turn(given((8, 576, 14, 14), (3, 3)), 1)
    assert not are_in_turn(given((8, 256, 28, 28), (3, 3), 2), 1)
    assert not are_in_turn(given((8, 144, 56, 56), (3, 3), 2), 1)


def test_blocks_are_chosen_for_channels_that_do_not_fill_the_array() -> None:
    """It took 12.8 us while sides of the last channels were taken off the others'."""
    program = traced(SPEC, given((1, 160, 56, 56), (3, 3)))
    assert predicted_seconds(program, hardware("trn2"), 0) < 12.2e-6
