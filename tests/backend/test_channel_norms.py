"""Norms over channels run on NKI, and equal eager in values, dtypes, strides and statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trnx

ALL_ON_NKI = {"fallback": "error", "select": "legal"}


def randomised(norm: nn.Module) -> nn.Module:
    """`norm` with parameters and statistics that are not 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in norm.state_dict().items():
        if tensor.is_floating_point():
            lowest = 0.1 if "var" in name else -1.0
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 2 + lowest)
    return norm


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
    assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 129, 3, 4), (1, 1, 1, 1), (4, 127, 6)])
def test_batch_norm_at_inference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    norm = randomised(kind(shape[1])).eval().to(dtype)
    compiled = torch.compile(lambda x: torch.relu(norm(x)), backend="trnx", options=ALL_ON_NKI)
    x = draw(*shape).to(dtype)
    with torch.no_grad():
        assert_same(compiled(x), torch.relu(norm(x)))


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "special"])
def test_batch_norm_at_inference_of_other_layouts(layout: str) -> None:
    norm = randomised(nn.BatchNorm2d(6)).eval()
    x = draw(2, 6, 5, 8)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "transposed":
        x = x.transpose(2, 3)
    else:
        x[0, 0, 0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    compiled = torch.compile(norm, backend="trnx", options=ALL_ON_NKI)
    with torch.no_grad():
        assert_same(compiled(x), norm(x))


@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm_at_inference_with_gradients(affine: bool) -> None:
    ours = randomised(nn.BatchNorm2d(6, affine=affine)).eval()
    theirs = copy.deepcopy(ours)
    inputs = [draw(2, 6, 5, 8).requires_grad_() for _ in range(2)]
    torch.compile(ours, backend="trnx", options=ALL_ON_NKI)(inputs[0]).square().sum().backward()
    theirs(inputs[1]).square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.GroupNorm(4, 12), (2, 12, 9, 7)),
        (nn.GroupNorm(12, 12, affine=False), (3, 12, 40)),
        (nn.InstanceNorm2d(5), (2, 5, 9, 8)),
        (nn.InstanceNorm2d(5, affine=True), (2, 5, 9, 8)),
        (nn.BatchNorm2d(5), (4, 5, 9, 8)),
        (nn.BatchNorm1d(5), (40, 5)),
        (nn.BatchNorm2d(5, track_running_stats=False), (4, 5, 9, 8)),
    ],
    ids=str,
)
def test_norms_with_statistics_of_their_own(norm: nn.Module, shape: tuple[int, ...]) -> None:
    """Forward on NKI, with running statistics; and a step of training."""
    options = {"select": "legal"}
    theirs = randomised(norm)
    ours = copy.deepcopy(theirs)
    with torch.no_grad():
        compiled = torch.compile(ours, backend="trnx", options=options)
        assert_same(compiled(draw(*shape)), theirs(draw(*shape)), rtol=1e-5, atol=1e-5)
    inputs = [draw(*shape).requires_grad_() for _ in range(2)]
    weights = torch.linspace(-1, 1, shape[-1])
    for module, x in ((compiled, inputs[0]), (theirs, inputs[1])):
        (module(x) * weights).square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-4, atol=1e-4)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-3)
    for (name, mine), other in zip(
        ours.state_dict().items(), theirs.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, other, msg=name)


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The greatest error, relative to the greatest magnitude."""
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(5),
        nn.BatchNorm2d(129),
        nn.BatchNorm2d(5, affine=False),
        nn.BatchNorm2d(5, track_running_stats=False),
        nn.InstanceNorm2d(5, affine=True),
        nn.GroupNorm(2, 6),
        nn.LayerNorm(7),
        nn.LayerNorm([9, 7], bias=False),
    ],
    ids=str,
)
def test_half_precision_with_parameters_in_float32(
    norm: nn.Module, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    """As under autocast: forward and backward on NKI, statistics in float32 as eager has them."""
    theirs = randomised(norm)
    ours, wide = copy.deepcopy(theirs), copy.deepcopy(theirs).double()
    compiled = torch.compile(ours, backend="trnx", options=ALL_ON_NKI)
    channels = getattr(norm, "num_features", 6)
    # A mean of ten standard deviations: statistics of half precision would show.
    x = (draw(3, channels, 9, 7) + 10).to(dtype, memory_format=layout)
    weights = torch.linspace(-1, 1, 7)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_(), x.double().requires_grad_()]
    results = [module(y) for module, y in zip((compiled, theirs, wide), inputs, strict=True)]
    for result in results:
        (result * weights.to(result.dtype)).sum().backward()

    assert results[0].dtype is dtype
    assert results[0].stride() == results[1].stride()
    torch.testing.assert_close(results[0], results[1], rtol=2e-2, atol=2e-2)
    gradients = [
        [y.grad, *(v.grad for v in module.parameters())]
        for module, y in zip((ours, theirs, wide), inputs, strict=True)
    ]
    for mine, other, exact in zip(*gradients, strict=True):
        assert mine.dtype is other.dtype
        assert off(mine, exact) <= 2 * off(other, exact) + 1e-6
    for (name, mine), other in zip(
        ours.state_dict().items(), theirs.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, other, msg=name)


@pytest.mark.parametrize("order", [(3, 0, 1, 2), (0, 3, 2, 1), (0, 2, 3, 1)], ids=str)
def test_batch_norm_in_training_of_other_layouts(order: tuple[int, ...]) -> None:
    """Eager's result is contiguous or channels_last, whatever the strides of its input are."""
    theirs = randomised(nn.BatchNorm2d(5))
    ours = copy.deepcopy(theirs)
    shape = (4, 5, 9, 8)
    x = draw(*(shape[d] for d in order)).permute([order.index(d) for d in range(4)])
    with torch.no_grad():
        compiled = torch.compile(lambda x: torch.relu(ours(x)), backend="trnx")
        assert_same(compiled(x), torch.relu(theirs(x)), rtol=1e-5, atol=1e-5)


def test_nan_stays_in_its_group() -> None:
    x = draw(2, 8, 6, 6)
    x[0, 3, 2, 2], x[1, 0, 0, 0] = float("nan"), float("inf")
    norm = nn.GroupNorm(4, 8)
    compiled = torch.compile(norm, backend="trnx", options=ALL_ON_NKI)
    with torch.no_grad():
        result, expected = compiled(x), norm(x)
    assert expected.isnan().any()
    assert_same(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("norm", "kernel"),
    [(nn.GroupNorm(8, 64), "group_norm"), (nn.InstanceNorm2d(64), "batch_norm_training")],
)
def test_the_forward_pass_is_one_kernel(norm: nn.Module, kernel: str) -> None:
    with torch.no_grad():
        text = str(trnx.explain(norm, draw(4, 64, 56, 56)))
    assert kernel in text
    assert "not on NKI" not in text


@pytest.mark.parametrize("has_parameters", [True, False])
@pytest.mark.parametrize("shape", [(3, 64, 30, 16), (130, 12352), (1, 40000)])
def test_layer_norm_of_rows_that_no_partition_holds(
    shape: tuple[int, ...], has_parameters: bool
) -> None:
    norm = randomised(nn.LayerNorm(shape[1:], elementwise_affine=has_parameters))
    x = draw(*shape) + 3
    x.view(shape[0], -1)[-1, 0] = float("inf")
    compiled = torch.compile(norm, backend="trnx", options=ALL_ON_NKI)
    with torch.no_grad():
        assert_same(compiled(x), norm(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("shape", "groups"), [((3, 12), 4), ((129, 1024), 16), ((5, 6, 1, 1), 6)])
def test_group_norm_of_rows(shape: tuple[int, ...], groups: int, affine: bool) -> None:
    norm = randomised(nn.GroupNorm(groups, shape[1], affine=affine))
    x = draw(*shape) + 2
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    compiled = torch.compile(norm, backend="trnx", options=ALL_ON_NKI)
    with torch.no_grad():
        ours, expected = compiled(x), copy.deepcopy(norm).double()(x.double())
        assert ours.stride() == norm(x).stride()
    # Of one value in a group eager loses its products with a large rstd.
    assert_same(ours, expected.float(), rtol=1e-5, atol=1e-5)


def test_gradients_of_layer_norm_of_long_rows() -> None:
    norm = randomised(nn.LayerNorm(12352))
    x, grad = draw(3, 12352), draw(3, 12352) * 2
    results = []
    for run in (norm, torch.compile(norm, backend="trnx")):
        given = x.clone().requires_grad_()
        inputs = (given, norm.weight, norm.bias)
        results.append(torch.autograd.grad(run(given), inputs, grad))
    for theirs, ours in zip(*results, strict=True):
        assert_same(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("affine", "bias", "frozen", "shape", "dims"),
    [
        (True, False, (), (2, 65, 70), 1),
        (False, False, (), (3, 5, 6, 7), 2),
        (True, True, ("weight", "bias"), (129, 20), 1),
        (True, True, ("weight",), (1, 20), 1),
        (True, True, ("bias",), (4, 127), 1),
        (True, False, (), (33,), 1),
    ],
)
def test_fewer_gradients_of_layer_norm(
    affine: bool,
    bias: bool,
    frozen: tuple[str, ...],
    shape: tuple[int, ...],
    dims: int,
    dtype: torch.dtype,
) -> None:
    norm = randomised(nn.LayerNorm(shape[-dims:], 1e-5, affine, bias)).to(dtype)
    for name in frozen:
        norm.get_parameter(name).requires_grad_(False)
    found = []
    exact = copy.deepcopy(norm).double()
    compiled = torch.compile(norm, backend="trnx", options=ALL_ON_NKI)
    for call, module in ((norm, norm), (compiled, norm), (exact, exact)):
        wide = torch.float64 if module is exact else dtype
        x = (draw(*shape) * 3 + 1).to(dtype).to(wide).requires_grad_()
        call(x).backward(draw(*shape).sin().to(dtype).to(wide))
        found.append([x.grad, *(p.grad for p in module.parameters() if p.requires_grad)])
        module.zero_grad()
    for theirs, ours, true in zip(*found, strict=True):
        assert ours.dtype is theirs.dtype
        assert ours.stride() == theirs.stride()
        # Eager adds rows up in bfloat16.
        eager_error = float((theirs - true).abs().max())
        least = torch.finfo(dtype).eps * float(true.abs().max())
        assert float((ours - true).abs().max()) <= max(2 * eager_error, least)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 2])
def test_gradients_of_weight_norm(dim: int, dtype: torch.dtype) -> None:
    v, g, grad = draw(5, 6, 7), draw(5, 1, 1) if dim == 0 else draw(1, 1, 7), draw(5, 7, 6)
    v[1, 2, 3], grad[3, 1, 2] = float("inf"), float("nan")
    grad = grad.transpose(1, 2)
    results = []
    compiled = torch.compile(torch._weight_norm, backend="trnx", options=ALL_ON_NKI)
    for run in (torch._weight_norm, compiled):
        inputs = [t.to(dtype).requires_grad_() for t in (v, g)]
        results.append(torch.autograd.grad(run(*inputs, dim), inputs, grad.to(dtype)))
    for theirs, ours in zip(*results, strict=True):
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        assert_same(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 129), (127, 300), (128, 5, 3)])
def test_weight_norm_in_half_precision_is_rounded_once(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    # Norms beyond float16's largest number, too: eager's are float32.
    v = (draw(*shape) * 10_000).clamp(-60_000, 60_000).to(dtype)
    g, grad = draw(shape[0], *[1] * (len(shape) - 1)).to(dtype), draw(*shape).cos().to(dtype)
    compiled = torch.compile(torch._weight_norm, backend="trnx", options=ALL_ON_NKI)
    results = []
    exact = torch.float64
    for run, to in ((torch._weight_norm, dtype), (compiled, dtype), (torch._weight_norm, exact)):
        inputs = [t.to(to).requires_grad_() for t in (v, g)]
        out = run(*inputs, 0)
        results.append([out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))])
    for theirs, ours, true in zip(*results, strict=True):
        assert ours.dtype is theirs.dtype
        # A last digit, where the sums of eager's, in another order, round to the other side.
        worst = float((theirs - true).abs().max())
        digit = torch.finfo(dtype).eps * float(true.abs().max())
        assert float((ours - true).abs().mean()) <= 1.05 * float((theirs - true).abs().mean())
        assert float((ours - true).abs().max()) <= worst + digit
