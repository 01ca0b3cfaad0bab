"""Training steps of convolutions: every gradient is on NKI and equals eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx

OPTIONS = {"select": "legal"}

# How, the shape of x, the shape of the weight.
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "3x3": ({"padding": 1}, (2, 7, 9, 8), (6, 7, 3, 3)),
    "1x1": ({}, (2, 129, 5, 4), (127, 129, 1, 1)),
    "1x1, large images": ({}, (3, 144, 12, 13), (130, 144, 1, 1)),
    "1x1, stride": ({"stride": 2}, (2, 5, 9, 8), (6, 5, 1, 1)),
    "stem": ({"stride": 2, "padding": 3}, (2, 3, 17, 16), (8, 3, 7, 7)),
    "stride leaves rows": ({"stride": 3}, (1, 4, 12, 13), (5, 4, 3, 2)),
    "dilation": ({"dilation": 2, "padding": (2, 1)}, (1, 4, 11, 10), (5, 4, 3, 2)),
    "stem, wide images": ({"stride": 2, "padding": 3}, (2, 3, 30, 60), (8, 3, 7, 7)),
    "few out channels, wide images": ({"padding": 1}, (2, 8, 7, 50), (3, 8, 3, 3)),
    "patches": ({"stride": 4}, (2, 3, 16, 12), (9, 3, 4, 4)),
    "1d": ({"stride": 2, "padding": 2}, (2, 5, 131), (6, 5, 5)),
    "3d": ({"padding": 1}, (2, 3, 4, 5, 6), (4, 3, 3, 3, 3)),
    "groups": ({"groups": 3, "padding": 1}, (2, 12, 6, 5), (6, 4, 3, 3)),
    "depthwise": ({"groups": 7, "padding": 1, "stride": 2}, (2, 7, 9, 8), (7, 1, 3, 3)),
    "two for each channel": ({"groups": 5, "padding": 1}, (2, 5, 6, 7), (10, 1, 3, 3)),
}


def gradients(
    function: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> list[Any]:
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    result = function(*leaves)
    tangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    (result * tangent.to(result.dtype)).sum().backward()
    return [leaf.grad for leaf in leaves]


def check(
    function: Any, x: tuple[int, ...], weight: tuple[int, ...], bias: int, dtype: Any
) -> None:
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(s, generator=generator).to(dtype) for s in (x, weight, (bias,))]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", options=OPTIONS)
    with trnx.collect_reports() as reports:
        got = gradients(compiled, *given)
    kernels = [region.kernel for report in reports for region in report.regions]
    assert kernels.count("convolution") == 2
    assert kernels.count("convolution_weight_gradient") == 1
    expected = gradients(function, *given)
    exact = gradients(function, *(t.double() for t in given))
    for mine, eager, true in zip(got, expected, exact, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (eager.dtype, eager.shape, eager.stride())
        allowed = 1e-4 if dtype is torch.float32 else 2 * float((eager - true).abs().max())
        assert (mine - true).abs().max() <= allowed + 1e-5 * true.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_those_of_eager(case: str, dtype: torch.dtype) -> None:
    how, x, weight = CASES[case]
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(x)]
    check(lambda a, w, b: convolve(a, w, b, **how), x, weight, weight[0], dtype)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_gradients_of_a_transposed_convolution(groups: int) -> None:
    def function(a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(a, w, b, 2, 1, 1, groups)

    check(function, (2, 6, 5, 4), (6, 4, 3, 3), 4 * groups, torch.float32)


# How the borders of the window are reached: x, the weight, groups.
INFINITE: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], int]] = {
    "3x3": ({"padding": [1, 1]}, (2, 16, 16, 15), (32, 16, 3, 3), 1),
    "odd channels": ({"padding": [1, 1]}, (2, 5, 9, 8), (131, 5, 3, 3), 1),
    "stride": ({"padding": [1, 1], "stride": [2, 2]}, (2, 66, 9, 10), (6, 66, 3, 3), 1),
    "dilation": ({"padding": [2, 1], "dilation": [2, 3]}, (1, 7, 13, 12), (4, 7, 3, 2), 1),
    "stem": ({"padding": [3, 3], "stride": [2, 2]}, (2, 3, 21, 20), (8, 3, 7, 7), 1),
    "wide images": ({"padding": [1, 1]}, (2, 3, 5, 52), (6, 3, 3, 3), 1),
    "wide images, few out": ({"padding": [1, 1]}, (2, 6, 5, 52), (3, 6, 3, 3), 1),
    "beyond the kernel": ({"padding": [2, 2]}, (1, 6, 1, 2), (4, 6, 3, 3), 1),
    "groups": ({"padding": [1, 1]}, (2, 12, 7, 6), (6, 4, 3, 3), 3),
    "depthwise": ({"padding": [1, 1]}, (2, 9, 6, 5), (9, 1, 3, 3), 9),
    "wide": ({"padding": [0, 1]}, (1, 3, 2, 300), (4, 3, 1, 3), 1),
    "1d": ({"padding": [2], "stride": [2]}, (3, 20, 70), (9, 20, 5), 1),
    "3d": ({"padding": [1, 1, 1]}, (2, 6, 4, 5, 6), (4, 6, 3, 3, 3), 1),
}


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", INFINITE)
def test_gradients_that_are_not_finite_do_not_meet_the_padding(
    case: str, dtype: torch.dtype, value: float
) -> None:
    more, size, kernel, groups = INFINITE[case]
    dims = len(size) - 2
    how = {"padding": [0] * dims, "stride": [1] * dims, "dilation": [1] * dims} | more

    def weight_gradient(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution_backward(
            grad, x, w, None, how["stride"], how["padding"], how["dilation"], False, [0] * dims,
            groups, [False, True, False],
        )[1]  # fmt: skip

    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.rand(shape, generator=generator) + 0.5 for shape in (size, kernel))
    shaped = torch.ops.aten.convolution(
        x, weight, None, how["stride"], how["padding"], how["dilation"], False, [0] * dims, groups
    )
    is_bad = torch.zeros_like(shaped, dtype=torch.bool)
    # The corners; positions next to them where those reach padding alone.
    inside = 1 if case == "beyond the kernel" else 0
    is_bad[(0, 0, *[inside] * dims)] = True
    is_bad[(-1, -1, *[-1 - inside] * dims)] = True
    grad = torch.rand(shaped.shape, generator=generator).to(dtype)
    x, weight = x.to(dtype), weight.to(dtype)
    # Eager itself pads in some of its algorithms, so that an infinity meets zeros.
    reached = weight_gradient(is_bad.float(), torch.ones(size), weight.float()) > 0.5
    finite = weight_gradient(grad.masked_fill(is_bad, 0).float(), x.float(), weight.float())
    expected = finite.masked_fill(reached, value).to(dtype)
    assert 0 < reached.sum() < reached.numel()
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        got = torch.compile(weight_gradient, backend="trnx", options=OPTIONS)(
            grad.masked_fill(is_bad, value), x, weight
        )
    kernels = [region.kernel for report in reports for region in report.regions]
    assert kernels == ["convolution_weight_gradient"]
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["grad", "x", "weight"])
def test_gradients_of_a_1x1_kernel_with_numbers_that_are_not_finite(
    name: str, dtype: torch.dtype, value: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"grad": (3, 130, 12, 13), "x": (3, 144, 12, 13), "weight": (130, 144, 1, 1)}
    given = {n: (torch.rand(s, generator=generator) + 0.5).to(dtype) for n, s in shapes.items()}
    # In the last chunk of channels, and in the last chunk of positions.
    given[name][-1, -1, -1, -1] = value
    given[name][0, 1, 0, 0] = value

    def backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        forward = F.conv2d(x, weight)
        how = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
        return forward, *torch.ops.aten.convolution_backward(grad, x, weight, None, *how)[:2]

    expected = backward(*(t.double() for t in given.values()))
    assert any(not wanted.isfinite().all() for wanted in expected)
    torch._dynamo.reset()
    got = torch.compile(backward, backend="trnx", options=OPTIONS)(*given.values())
    for mine, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-2, atol=1e-2, equal_nan=True)


def test_the_phases_of_a_depthwise_gradient_keep_what_is_not_finite() -> None:
    """Each phase of outputs begins with a kernel position of its own, no output with zeros."""
    grad = torch.randn((2, 5, 20, 24), generator=torch.Generator().manual_seed(1))
    weight = torch.randn((5, 1, 3, 3), generator=torch.Generator().manual_seed(2))
    grad[0, 1, 3, 4], grad[1, 4, 0, 0], weight[2, 0, 1, 1] = torch.inf, torch.nan, -torch.inf

    def function(g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv_transpose2d(g, w, None, 2, 1, 1, 5)

    got = torch.compile(function, backend="trnx", options={"select": "legal"})(grad, weight)
    expected = function(grad.double(), weight.double()).float()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert 0 < expected.isnan().sum() < expected.numel()
    assert expected.isinf().any()
