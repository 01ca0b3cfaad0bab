"""Attention through `torch.compile`: every form of it is one NKI kernel, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx

# batch, heads, queries, keys, width: less than a tile, and ragged over two
SHAPES = [(2, 4, 7, 19, 16), (1, 2, 130, 129, 8)]
FORMS = ["plain", "causal", "mask", "bias", "bias with grad", "grouped", "wider values"]
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (1.6e-2, 2e-2)}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def make_case(
    form: str, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Leaves `q, k, v[, bias]` and the call's options. Heads are split as models do it: q, k and v
    are transposed views."""
    batch, heads, length, depth, width = shape
    sources = heads // 2 if form == "grouped" else heads
    values = width + 5 if form == "wider values" else width
    make = torch.Generator().manual_seed(5)

    def of_heads(rows: int, count: int, size: int) -> torch.Tensor:
        return torch.randn(batch, rows, count, size, generator=make).to(dtype).transpose(1, 2)

    leaves = [
        of_heads(length, heads, width),
        of_heads(depth, sources, width),
        of_heads(depth, sources, values),
    ]
    options: dict[str, Any] = {}
    if form == "causal":
        options["is_causal"] = True
    elif form == "mask":
        options["attn_mask"] = torch.rand(batch, 1, length, depth, generator=make) > 0.3
        options["attn_mask"][..., 0] = True
    elif form == "bias":
        options["attn_mask"] = torch.randn(1, heads, length, depth, generator=make).to(dtype)
    elif form == "bias with grad":
        leaves.append(torch.randn(1, heads, length, depth, generator=make).to(dtype))
    elif form == "grouped":
        options["enable_gqa"] = True
    return leaves, options


def attend(leaves: Sequence[torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
    q, k, v, *bias = leaves
    return F.scaled_dot_product_attention(q, k, v, *bias, **options)


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    rtol, atol = TOLERANCES[want.dtype]
    largest = max(1.0, want.abs().max().item())
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol * largest, check_stride=True)


def gradients_of(
    result: torch.Tensor, leaves: Sequence[torch.Tensor], grad: torch.Tensor
) -> list[torch.Tensor]:
    """What `backward` leaves in `.grad`, which is then None again. Autograd gives it the layout of
    the leaf, whatever layout the backward produced."""
    result.backward(grad)
    gradients = []
    for leaf in leaves:
        assert leaf.grad is not None
        gradients.append(leaf.grad)
        leaf.grad = None
    return gradients


def attention_regions(reports: Sequence[trnx.GraphReport]) -> list[tuple[str, str | None, str]]:
    """`(engine, kernel, op)` of every attention node, and of what is left of a decomposed one."""
    found = []
    for report in reports:
        for region in report.regions:
            for op in region.ops:
                if any(word in op for word in ("sdpa", "attention", "softmax", "bmm")):
                    found.append((region.engine, region.kernel, op))
    return found


FORWARD = ("nki", "sdpa", "trnx.sdpa.default")
BACKWARD = ("nki", "sdpa_backward", "trnx.sdpa_backward.default")


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=["small", "ragged"])
@pytest.mark.parametrize("form", FORMS)
def test_inference_is_one_kernel(form: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    leaves, options = make_case(form, shape, dtype)
    compiled = torch.compile(attend, backend="trnx", fullgraph=True)
    with trnx.collect_reports() as reports:
        got = compiled(leaves, options)
    assert_same(got, attend(leaves, options))
    assert attention_regions(reports) == [FORWARD]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=["small", "ragged"])
@pytest.mark.parametrize("form", FORMS)
def test_training_is_one_kernel_each_way(
    form: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    leaves, options = make_case(form, shape, dtype)
    for leaf in leaves:
        leaf.requires_grad_()
    want = attend(leaves, options)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = gradients_of(want, leaves, grad)
    compiled = torch.compile(attend, backend="trnx", fullgraph=True)
    with trnx.collect_reports() as reports:
        got = compiled(leaves, options)
        gradients = gradients_of(got, leaves, grad)
    assert_same(got.detach(), want.detach())
    for have, wish in zip(gradients, wanted, strict=True):
        assert_same(have, wish)
    assert attention_regions(reports) == [FORWARD, BACKWARD]


def weights_with_dropout(leaves: Sequence[torch.Tensor], p: float) -> torch.Tensor:
    """With unit vectors as values, the result is the matrix of weights that were kept."""
    q, k, v = leaves
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [24, 130])
def test_dropout_keeps_and_scales_alike_in_both_directions(size: int, dtype: torch.dtype) -> None:
    p = 0.25
    torch.manual_seed(0)
    q, k = (torch.randn(2, 3, size, size).div(4).to(dtype).requires_grad_() for _ in range(2))
    v = torch.eye(size, dtype=dtype).expand(2, 3, size, size).clone().requires_grad_()
    grad = torch.randn(2, 3, size, size).to(dtype)
    compiled = torch.compile(weights_with_dropout, backend="trnx", fullgraph=True)
    with trnx.collect_reports() as reports:
        got = compiled((q, k, v), p)
        gradients = gradients_of(got, (q, k, v), grad)
    kept = got.detach() != 0
    deviation = (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(kept.double().mean() - (1 - p)) < 5 * deviation

    q2, k2, v2 = (leaf.detach().float().requires_grad_() for leaf in (q, k, v))
    weights = (q2 @ k2.mT / size**0.5).softmax(-1) * kept / (1 - p)
    want = weights @ v2
    wanted = gradients_of(want, (q2, k2, v2), grad.float())
    assert_same(got.detach(), want.detach().to(dtype))
    for have, wish in zip(gradients, wanted, strict=True):
        assert_same(have, wish.to(dtype))
    assert attention_regions(reports) == [FORWARD, BACKWARD]


def test_dropout_draws_anew_and_repeats_with_the_seed() -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(1, 2, 16, 16) for _ in range(3)]
    compiled = torch.compile(weights_with_dropout, backend="trnx", fullgraph=True)
    torch.manual_seed(7)
    first, second = compiled(leaves, 0.5), compiled(leaves, 0.5)
    torch.manual_seed(7)
    assert not torch.equal(first, second)
    assert torch.equal(first, compiled(leaves, 0.5))


def test_the_mean_over_draws_is_attention_without_dropout() -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(1, 2, 8, 8) for _ in range(3)]
    compiled = torch.compile(weights_with_dropout, backend="trnx", fullgraph=True)
    draws = torch.stack([compiled(leaves, 0.5) for _ in range(200)])
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - attend(leaves, {})).abs() < 6 * error).all()


@pytest.mark.parametrize("lnc", [1, 2])
def test_long_attention_whose_scores_leave_the_range_and_return(lnc: int) -> None:
    """One compiled function: weighed as they are, repaired, and weighed as they are again."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 512, 32, generator=make).to(torch.bfloat16) for _ in range(3))
    compiled = torch.compile(function, backend="trnx", options={"target": "trn2", "lnc": lnc})
    for factor in (1, 300, 1):
        wanted = function(*(x.double() for x in (q * factor, k, v)))
        error = (compiled(q * factor, k, v).double() - wanted).abs().max()
        assert error <= 2 * (function(q * factor, k, v).double() - wanted).abs().max()
