"""Gradients of weights of one channel a group as products of strips: when, and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from launched import bindings, launch_of, traced
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

from trnx import simulator
from trnx.nki_kernels.spec import Launch
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

# One chunk of channels and several, whole strips and a last one of fewer rows, several columns of
# the gradient in a tile, strides, and the window in place of the gradient.
FORMS: dict[str, dict[str, Any]] = {
    "one strip": {"x": (2, 32, 5, 6), "kernel": (3, 3)},
    "strips": {"x": (3, 144, 28, 28), "kernel": (3, 3)},
    "ragged": {"x": (8, 70, 26, 27), "kernel": (3, 3)},
    "large kernel": {"x": (2, 40, 30, 28), "kernel": (7, 7)},
    "small images": {"x": (8, 70, 14, 13), "kernel": (7, 7)},
    "smallest images": {"x": (4, 45, 7, 7), "kernel": (5, 5)},
    "stride": {"x": (2, 64, 45, 46), "kernel": (3, 3), "stride": 2},
    "transposed": {"x": (2, 64, 14, 15), "kernel": (3, 3), "stride": 2, "transposed": True},
}


def by_strips(values: dict[str, Any], target: str) -> bool:
    return kernel_of(values, target) == "depthwise_gradient_kernel"


def of_two_cores(values: dict[str, Any]) -> Launch:
    return SPEC.launch(bindings(values), replace(hardware("trn2"), cores=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, target: str, dtype: torch.dtype) -> None:
    values = given(**FORMS[form], dtype=dtype)
    assert by_strips(values, target)
    assert_result(values, target)


class Strips(NamedTuple):
    """The argument of the kernel that says how strips are multiplied."""

    number: int
    rows: int
    parts: int
    lanes: int
    shift: int
    tiles: int
    channels: int
    is_static: int

    @property
    def round(self) -> int:
        """Channels of a part that all tiles of the array have at once."""
        return 128 // (self.lanes * self.shift * self.tiles) * self.lanes


def strips_of(values: dict[str, Any]) -> Strips:
    assert by_strips(values, "trn2")
    return Strips(*launch_of(SPEC, values).arguments[5])


def test_tiles_of_the_array_have_other_channels_or_other_places() -> None:
    """A round takes VectorE the same time, whatever the number of places: images of few have as
    many channels in one as there are tiles."""
    shapes = [(8, 70, 14, 13), (8, 96, 56, 56), (8, 40, 56, 56)]
    chosen = [strips_of(given(shape, (7, 7))) for shape in shapes]
    assert [strips.tiles for strips in chosen] == [1, 2, 4]
    assert 70 % chosen[0].round > 0  # the last one has tiles without a channel


@pytest.mark.parametrize("tiles", [1, 2, 4])
@pytest.mark.parametrize("channels", [36, 37, 64])
def test_values_of_all_ways_to_have_tiles(tiles: int, channels: int) -> None:
    values = given((3, channels, 14, 13), (5, 5))
    how = strips_of(values)._replace(tiles=tiles)
    how = how._replace(channels=how.round)
    launch = launch_of(SPEC, values)
    tensors = (values["grad"], values["x"])
    arguments = (*tensors, *launch.arguments[2:5], tuple(how), *launch.arguments[6:])
    got = simulator.simulate(launch.kernel, target="trn2")(*arguments)
    assert_equal(got, SPEC.reference(**values))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_channel(form: str, value: float) -> None:
    values = given(**FORMS[form])
    assert_spoils_its_channel(values, values["x"], value)


@pytest.mark.parametrize("channel", [0, 20, 39])
def test_a_corner_of_the_gradient_meets_no_padding(channel: int) -> None:
    """A zero of the padding, times an infinity, would be NaN where there is a number."""
    values = given((2, 40, 18, 16), (3, 3))
    values["grad"][1, channel, 0, 0] = torch.inf
    assert by_strips(values, "trn2")
    got = run(values, "trn2")
    assert got[channel, 0].isfinite().sum() == 5
    others = torch.arange(40) != channel
    assert_equal(got[others], SPEC.reference(**values)[others])


def test_neighbours_in_place_of_padding_do_not_count() -> None:
    """Rows above and below an image are loaded from the channels beside it."""
    values = given((2, 64, 12, 9), (5, 5))
    expected = SPEC.reference(**values)
    values["x"][:, 1::2], values["grad"][:, 1::2] = 2.0**100, 0.0
    assert by_strips(values, "trn2")
    assert_equal(run(values, "trn2")[::2], expected[::2])


def test_strips_are_for_types_of_two_bytes_and_many_channels() -> None:
    assert by_strips(given((2, 40, 18, 16), (3, 3)), "trn2")
    assert not by_strips(given((2, 40, 18, 16), (3, 3), dtype=torch.float32), "trn2")
    assert not by_strips(given((2, 31, 18, 16), (3, 3)), "trn2")
    assert not by_strips(given((2, 40, 18, 16), (3, 3)), "trn1")
    assert not by_strips(given((2, 40, 90), (3,)), "trn2")
    # There are not as many rows above an image as the padding has.
    assert not by_strips(given((2, 40, 2, 2), (3, 3), padding=3), "trn2")
    assert not by_strips(given((129, 40, 3, 3), (3, 3)), "trn2")


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "microseconds"),
    [
        (32, 112, 3, 1, 60.0),
        (96, 112, 3, 2, 100.0),
        (192, 28, 3, 1, 30.0),
        (96, 56, 7, 1, 58.0),
        (192, 28, 7, 1, 43.0),
        (384, 14, 7, 1, 53.0),
        (768, 7, 7, 1, 75.0),
    ],
)
def test_layers_of_image_models_take_little_more_than_their_loads(
    channels: int, size: int, kernel: int, stride: int, microseconds: float
) -> None:
    """Transposed position by position they took 377, 162, 83 and 649 us on trn2; where all tiles of
    the array had other places, the last three took 63, 298 and 523."""
    values = given((8, channels, size, size), (kernel, kernel), stride=stride)
    program = traced(SPEC, values)
    assert launch_of(SPEC, values).unknown_trips == 0
    assert predicted_seconds(program, hardware("trn2"), 0) < microseconds * 1e-6


@pytest.mark.parametrize("value", [torch.inf, 1.0])
@pytest.mark.parametrize("channels", [32, 33, 70])
def test_cores_share_channels(channels: int, value: float) -> None:
    """Each repairs what is its own."""
    values = given((2, channels, 28, 28), (3, 3))
    assert by_strips(values, "trn2")
    values["x"][-1, channels - 1, 5, 7] = value
    assert_equal(on_both_cores(values), SPEC.reference(**values))


@pytest.mark.parametrize(
    ("channels", "size", "stride", "microseconds"),
    [(384, 14, 1, 25.0), (192, 28, 2, 19.0), (960, 7, 1, 34.0)],
)
def test_strips_are_planned_for_the_channels_of_a_core(
    channels: int, size: int, stride: int, microseconds: float
) -> None:
    """Planned for all channels, they took 28.1 and 21.8 us on both cores of trn2; 960 channels were
    transposed position by position, in 41.9."""
    launch = of_two_cores(given((8, channels, size, size), (3, 3), stride=stride))
    assert launch.kernel.__name__ == "depthwise_gradient_kernel"
    assert launch.cores == launch.grid == 2
    program = simulator.trace(
        launch.kernel, launch.arguments, target="trn2", values=False, grid=launch.grid
    )
    chip = replace(hardware("trn2"), cores=2)
    assert predicted_seconds(program, chip, 0) < microseconds * 1e-6


@pytest.mark.parametrize(("channels", "products"), [(384, [96] * 4), (290, [73, 73, 73, 71])])
def test_cores_have_even_products(channels: int, products: list[int]) -> None:
    """Of three products one core had two."""
    values = given((2, channels, 5, 4), (5, 5), dtype=torch.float32)
    launch = of_two_cores(values)
    assert launch.kernel.__name__ == "convolution_weight_gradient_kernel"
    together = launch.arguments[5]
    assert [min(together, channels - n) for n in range(0, channels, together)] == products
    assert_equal(on_both_cores(values), SPEC.reference(**values))
