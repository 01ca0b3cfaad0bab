"""nn.TransformerEncoderLayer at inference, which torch runs as one op, runs on NKI and equals
eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trnx

ALL_ON_NKI = {"fallback": "error", "select": "legal"}


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def layer(**more: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(48, 4, 100, batch_first=True, **more).eval()


def masks(name: str) -> dict[str, torch.Tensor]:
    causal = torch.ones(17, 17).triu(1).bool()
    padded = torch.arange(17) >= torch.tensor([[17], [9], [1]])
    return {
        "none": {},
        "causal": {"src_mask": causal},
        "padded": {"src_key_padding_mask": padded},
        "both": {"src_mask": causal, "src_key_padding_mask": padded},
        "nothing to attend to": {"src_key_padding_mask": padded | (padded.sum(1) == 16)[:, None]},
    }[name]


@pytest.mark.parametrize("mask", ["none", "causal", "padded", "both", "nothing to attend to"])
@pytest.mark.parametrize("more", [{}, {"norm_first": True, "activation": "gelu"}])
def test_a_layer_equals_eager(more: dict[str, Any], mask: str) -> None:
    encoder = layer(**more)
    x, given = draw(3, 17, 48), masks(mask)
    with torch.no_grad(), trnx.collect_reports() as reports:
        ours = torch.compile(encoder, backend="trnx", options={"select": "legal"})(x, **given)
        theirs = encoder(x, **given)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert ours.stride() == theirs.stride()
    kernels = [region.kernel for report in reports for region in report.regions]
    assert kernels.count("sdpa") == 1
    assert reports.flops_on_nki == 1.0


def test_all_of_a_stack_is_on_nki() -> None:
    encoder = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False).eval()
    x = draw(2, 33, 48)
    with torch.no_grad():
        ours = torch.compile(encoder, backend="trnx", options=ALL_ON_NKI)(x)
        torch.testing.assert_close(ours, encoder(x), rtol=1e-4, atol=1e-5)


def test_half_precision() -> None:
    encoder = layer().bfloat16()
    x = draw(2, 20, 48).bfloat16()
    with torch.no_grad():
        ours = torch.compile(encoder, backend="trnx", options=ALL_ON_NKI)(x)
        exact = layer().bfloat16().float()(x.float())
        theirs = (encoder(x) - exact).abs().max()
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).abs().max() <= 2 * theirs


def test_float64_stays_one_op() -> None:
    encoder = layer().double()
    x = draw(2, 5, 48).double()
    with torch.no_grad():
        ours = torch.compile(encoder, backend="trnx")(x)
        torch.testing.assert_close(ours, encoder(x))
