"""Projections and attention of short sequences as one kernel: chosen where it is faster, exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnx


class SelfAttention(nn.Module):
    """Attention of BERT: `hidden` columns in heads of `width`."""

    def __init__(self, hidden: int, width: int, bias: bool = True, **options: Any) -> None:
        super().__init__()
        self.width, self.options = width, options
        self.q, self.k, self.v = (nn.Linear(hidden, hidden, bias=bias) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        heads = (*x.shape[:2], x.shape[2] // self.width, self.width)
        q, k, v = (one(x).view(heads).transpose(1, 2) for one in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        return out.transpose(1, 2).reshape(x.shape)


def compiled(
    model: nn.Module, *inputs: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, list[str | None]]:
    """The result, which has eager's dtype, shape and strides, and the kernels of the plan."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options=options)(*inputs)
        wanted = model(*inputs)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.stride() == wanted.stride()
    return found, [region.kernel for report in reports for region in report.regions]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The root of the mean square of the differences."""
    return float((found.double() - exact).square().mean().sqrt())


def check(model: nn.Module, *inputs: torch.Tensor | None, **options: Any) -> None:
    """One kernel, whose error against float64 is at most twice that of eager."""
    found, kernels = compiled(model, *inputs, **options)
    assert kernels == ["self_attention"]
    with torch.no_grad():
        eager = model(*inputs)
        x, *others = inputs
        assert x is not None
        exact = model.double()(x.double(), *others)
    assert error(found, exact) <= 2 * error(eager, exact)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("sizes", [(1, 128), (3, 127), (8, 128), (7, 33)])
def test_projections_and_attention_are_one_kernel(sizes: tuple[int, int], lnc: int) -> None:
    torch.manual_seed(0)
    model = SelfAttention(256, 64).bfloat16().eval()
    check(model, torch.randn(*sizes, 256).bfloat16(), lnc=lnc, select="legal")


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_generation_and_dtype(target: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = SelfAttention(128, 64).to(dtype).eval()
    check(model, torch.randn(3, 70, 128).to(dtype), target=target, select="legal")


@pytest.mark.parametrize("width", [32, 64, 128])
def test_masked_keys(width: int) -> None:
    """Of one entry all but one, of another none: the last entry's rows see nothing at all."""
    torch.manual_seed(0)
    model = SelfAttention(256, width).bfloat16().eval()
    mask = torch.rand(4, 1, 1, 60) > 0.5
    mask[0] = True
    mask[1], mask[1, ..., 7] = False, True
    mask[3] = False
    x = torch.randn(4, 60, 256).bfloat16()
    found, kernels = compiled(model, x, mask, lnc=2, select="legal")
    assert kernels == ["self_attention"]
    with torch.no_grad():
        wanted = model(x, mask)
    assert (found[3] == 0).all()
    torch.testing.assert_close(found[:3], wanted[:3], rtol=2e-2, atol=2e-2)


def test_large_logits() -> None:
    torch.manual_seed(0)
    model = SelfAttention(128, 64).bfloat16().eval()
    check(model, 60 * torch.randn(4, 100, 128).bfloat16(), lnc=2, select="legal")


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("masked", [False, True])
def test_scores_that_lie_further_apart_than_an_exponential_takes(width: int, masked: bool) -> None:
    """Of 1e11 and more, so that each row attends to one key: a scale that is no power of two
    rounds them by thousands."""
    torch.manual_seed(0)
    model = SelfAttention(128, width).eval()
    mask = torch.rand(3, 1, 1, 40) > 0.3 if masked else None
    check(model, 1e6 * torch.randn(3, 40, 128), mask, select="legal")


def test_what_is_not_finite_stays_in_its_entry() -> None:
    torch.manual_seed(0)
    model = SelfAttention(128, 64, bias=False).bfloat16().eval()
    x = torch.randn(5, 40, 128).bfloat16()
    x[1, 3, 5], x[4, 0, 0] = torch.nan, torch.inf
    found, kernels = compiled(model, x, lnc=2, select="legal")
    assert kernels == ["self_attention"]
    whole = [0, 2, 3]
    with torch.no_grad():
        wanted = model(x)
    torch.testing.assert_close(found[whole], wanted[whole], rtol=2e-2, atol=2e-2)
    assert found[1].isnan().any()
    assert found[4].isnan().any()


@pytest.mark.parametrize(
    ("length", "options"), [(129, {}), (40, {"is_causal": True}), (40, {"scale": 100.0})]
)
def test_other_attention_has_kernels_of_its_own(length: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = SelfAttention(128, 64, **options).bfloat16().eval()
    _, kernels = compiled(model, torch.randn(2, length, 128).bfloat16(), select="legal")
    assert "self_attention" not in kernels
    assert "sdpa" in kernels


def test_a_query_that_is_read_elsewhere_is_not_hidden() -> None:
    class Both(SelfAttention):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(x, mask) + self.q(x)

    torch.manual_seed(0)
    model = Both(128, 64).bfloat16().eval()
    x = torch.randn(2, 64, 128).bfloat16()
    found, kernels = compiled(model, x, select="legal")
    assert "self_attention" not in kernels
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=2e-2, atol=2e-2)


def test_bert_takes_it() -> None:
    """By profit, at the sizes of BERT-base."""
    model = SelfAttention(768, 64).bfloat16().eval()
    _, kernels = compiled(model, torch.randn(8, 128, 768).bfloat16(), lnc=2)
    assert kernels == ["self_attention"]
