"""`convolution` in compiled functions: which forms it takes, and what it refuses by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx

OPTIONS = {"select": "legal"}


def on_nki(function: Any, *inputs: torch.Tensor) -> list[str | None]:
    """Kernels of the compiled function, whose result is compared with eager's."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", options=OPTIONS)
    with trnx.collect_reports() as reports:
        got = compiled(*inputs)
    expected = function(*inputs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert got.stride() == expected.stride()
    return [region.kernel for report in reports for region in report.regions]


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


FORMS = {
    "2d": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), (2, 5, 9, 8), (6, 5, 3, 3)),
    "same": (lambda x, w: F.conv2d(x, w, padding="same"), (2, 5, 9, 8), (6, 5, 3, 3)),
    "one image": (lambda x, w: F.conv2d(x, w), (5, 9, 8), (6, 5, 3, 3)),
    "1d": (lambda x, w: F.conv1d(x, w, stride=3), (2, 5, 30), (6, 5, 4)),
    "3d": (lambda x, w: F.conv3d(x, w, dilation=2), (1, 5, 6, 7, 8), (6, 5, 3, 2, 2)),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        (2, 5, 4, 3),
        (5, 6, 3, 3),
    ),
    "fused": (
        lambda x, w: F.relu(F.conv2d(x, w, w[:, 0, 0, 0], padding=1) + x),
        (2, 5, 4, 3),
        (5, 5, 3, 3),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_convolution_is_one_kernel(form: str) -> None:
    function, x, weight = FORMS[form]
    assert on_nki(function, images(*x), images(*weight)) == ["convolution"]


def test_channels_last_gives_channels_last() -> None:
    x = images(2, 5, 9, 8).to(memory_format=torch.channels_last)
    weight = images(6, 5, 3, 3)
    assert on_nki(lambda x, w: F.conv2d(x, w), x, weight) == ["convolution"]


def test_values_that_are_not_finite_stay_where_they_are() -> None:
    x = images(1, 70, 9, 8)
    x[0, 3, 4, 5], x[0, 4, 0, 0] = torch.inf, torch.nan
    got = torch.compile(F.conv2d, backend="trnx", options=OPTIONS)(x, images(6, 70, 3, 3))
    expected = F.conv2d(x, images(6, 70, 3, 3))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_residual_and_activation_are_part_of_the_kernel(dtype: torch.dtype) -> None:
    first, second = torch.nn.Conv2d(6, 6, 3, padding=1), torch.nn.Conv2d(6, 6, 1, bias=False)
    norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(6) for _ in range(2))
    with torch.no_grad():
        for norm in norms:
            for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                tensor.uniform_(0.5, 1.5)
    model = torch.nn.ModuleList((first, second, *norms)).to(dtype).eval()

    def block(x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(model[2](model[0](x)))
        return F.relu(model[3](model[1](hidden)) + x)

    x = images(2, 6, 7, 5).to(dtype)
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        got = torch.compile(block, backend="trnx", options=OPTIONS)(x)
        expected = block(x)
    kernels = [region.kernel for report in reports for region in report.regions]
    assert kernels == ["convolution", "convolution"]
    exact = block_in_float64(model, x)
    error = (got.double() - exact).abs().max()
    assert error <= 2 * (expected.double() - exact).abs().max() + 1e-6


def block_in_float64(model: torch.nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    first, second, *norms = (module.double() for module in copy.deepcopy(model))
    with torch.no_grad():
        hidden = F.relu(norms[0](first(x.double())))
        return F.relu(norms[1](second(hidden)) + x.double())


@pytest.mark.parametrize("groups", [6, 3])
def test_values_that_are_not_finite_stay_in_their_group(groups: int) -> None:
    x, weight = images(2, 6, 9, 8), images(6, 6 // groups, 3, 3)
    x[0, 3, 4, 5], x[1, 0, 0, 0], weight[5, 0, 1, 1] = torch.inf, torch.nan, -torch.inf

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, None, 2, 1, 1, groups)

    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        got = torch.compile(function, backend="trnx", options=OPTIONS)(x, weight)
    assert [r.kernel for report in reports for r in report.regions] == ["convolution"]
    torch.testing.assert_close(got, function(x, weight), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("lnc", [1, 2])
def test_depthwise_layers_of_image_models_are_on_nki_by_default(lnc: int) -> None:
    for kernel, channels, size in ((3, 144, 28), (7, 96, 28), (7, 384, 14), (3, 192, 28)):
        torch._dynamo.reset()
        layer = torch.nn.Conv2d(channels, channels, kernel, padding="same", groups=channels)
        x = images(8, channels, size, size).bfloat16()
        with torch.no_grad():
            found = trnx.explain(layer.bfloat16(), x, options={"lnc": lnc})
        assert [region.engine for region in found.reports[0].regions] == ["nki"]


# Few channels, so that kernel rows share the partitions.
BORDERS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "stem": (lambda x, w: F.conv2d(x, w, None, 2, 3), (2, 3, 21, 20), (8, 3, 7, 7)),
    "3x3": (lambda x, w: F.conv2d(x, w, None, 1, 1), (1, 40, 8, 7), (130, 40, 3, 3)),
    "dilation": (lambda x, w: F.conv2d(x, w, None, 1, 4, 3), (1, 9, 13, 12), (4, 9, 3, 2)),
    "wide padding": (lambda x, w: F.conv2d(x, w, None, 1, 3), (1, 5, 2, 3), (4, 5, 3, 2)),
    "1d": (lambda x, w: F.conv1d(x, w, None, 2, 2), (3, 20, 70), (9, 20, 5)),
    "3d": (lambda x, w: F.conv3d(x, w, None, 1, 1), (1, 6, 5, 6, 7), (4, 6, 3, 3, 3)),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, None, (2, 3), (2, 1)),
        (2, 5, 20, 24),
        (5, 9, 5, 3),
    ),
    "transposed, dilation": (
        lambda x, w: F.conv_transpose2d(x, w, None, (2, 3), (3, 1), dilation=(3, 2)),
        (1, 8, 28, 30),
        (8, 6, 4, 3),
    ),
    "transposed 3d": (
        lambda x, w: F.conv_transpose3d(x, w, None, 2, 1),
        (2, 4, 3, 12, 10),
        (4, 5, 3, 4, 3),
    ),
}


@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize("case", BORDERS)
def test_weights_that_are_not_finite_do_not_meet_the_padding(case: str, row: int) -> None:
    function, size, kernel = BORDERS[case]
    x, weight = images(*size).abs() + 1, images(*kernel)
    weight.transpose(0, -2)[row, 2, 1].fill_(torch.inf)
    is_infinite = weight.isinf()
    # Eager itself pads in some of its algorithms, so that an infinity meets zeros.
    reached = function(torch.ones_like(x), is_infinite.float()) > 0.5
    finite = function(x, weight.masked_fill(is_infinite, 0))
    expected = finite.masked_fill(reached, torch.inf)
    assert 0 < reached.sum() < reached.numel()
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        got = torch.compile(function, backend="trnx", options=OPTIONS)(x, weight)
    assert [r.kernel for report in reports for r in report.regions] == ["convolution"]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("images_of_7", "waits"), [(8, False), (80, True)])
def test_triggers_of_few_descriptors_take_no_time(images_of_7: int, waits: bool) -> None:
    """They are made before the run; DGE makes many of them, 600 ns a transfer (nki-dge.rst)."""
    x, weight = images(images_of_7, 256, 7, 7), images(256, 256, 3, 3)
    compiled = torch.compile(lambda x, w: F.conv2d(x, w, padding=1), backend="trnx")
    (region,) = trnx.profile(compiled, x, weight, target="trn2").regions
    assert region.kernel == "convolution"
    assert region.profile is not None
    busy = sum(queue.busy_seconds for queue in region.profile.queues if "dma" in queue.name)
    assert (busy > 2 * 600e-9) == waits


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_rows_that_a_row_makes_by_itself_are_channels(value: float) -> None:
    """Where the kernel is the stride of a transposed one; what is not finite stays in its place."""
    x, weight = images(2, 20, 6, 40), images(20, 3, 4, 4)
    x[1, 7, 2, 9] = value

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, w, w[0, :, 0, 0], stride=4)

    got = torch.compile(function, backend="trnx", options=OPTIONS)(x, weight)
    expected = function(x, weight)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert expected.isfinite().sum() == expected.numel() - 3 * 16


def test_few_channels_of_patches_have_their_gradient_on_nki() -> None:
    """Of the patches of a model for images: bounded by its transfers, not by copies out of PSUM."""
    grad, weight = images(8, 96, 28, 28).bfloat16(), images(96, 3, 4, 4).bfloat16()
    compiled = torch.compile(lambda g, w: F.conv_transpose2d(g, w, stride=4), backend="trnx")
    (region,) = trnx.profile(compiled, grad, weight, target="trn2").regions
    assert region.kernel == "convolution"
    nbytes = 2 * (grad.numel() + 3 * 8 * 112 * 112)
    assert region.seconds < 4 * nbytes / 368e9


def test_tensor_engine_is_at_its_full_rate_when_the_first_operands_are_there() -> None:
    """It works at half rate for the first 3 us: at 60 % of the DMA bound, 58 % without that."""
    x, weight = images(8, 512, 7, 7).bfloat16(), images(2048, 512, 1, 1).bfloat16()
    compiled = torch.compile(F.conv2d, backend="trnx", options={"lnc": 1})
    (region,) = trnx.profile(compiled, x, weight, target="trn2").regions
    assert region.kernel == "convolution"
    nbytes = 2 * (x.numel() + weight.numel() + 8 * 2048 * 49)
    assert region.seconds < nbytes / 385e9 / 0.6


def test_cores_share_output_channels_where_blocks_are_few() -> None:
    """Sharing two blocks, both cores would load and transpose all weights, and store rows between
    each other's."""
    x, weight = images(1, 256, 1024).bfloat16(), images(256, 256, 3).bfloat16()

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, weight, padding=1)

    seconds = []
    for lnc in (1, 2):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="trnx", options={**OPTIONS, "lnc": lnc})
        torch.testing.assert_close(compiled(x, weight), function(x, weight))
        profile = trnx.profile(compiled, x, weight, target="trn2")
        seconds.append(sum(region.seconds for region in profile.regions))
    assert seconds[1] < 0.75 * seconds[0]


@pytest.mark.parametrize("channel", [5, 88, 127])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_depthwise_value_that_is_not_finite_stays_in_its_channel(
    value: float, channel: int
) -> None:
    """Of products, by whichever engine their sums are added up to see it."""
    x, weight = images(2, 128, 28, 28).bfloat16(), images(128, 1, 3, 3).bfloat16()
    x[1, channel, 27, 26] = value

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1, groups=128)

    torch._dynamo.reset()
    got = torch.compile(function, backend="trnx", options=OPTIONS)(x, weight)
    expected = function(x.float(), weight.float()).bfloat16()
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=5e-2, equal_nan=True)
    assert not expected[1, channel].isfinite().all()
