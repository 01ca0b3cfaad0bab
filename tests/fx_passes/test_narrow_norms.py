"""A layer norm between casts from half precision and back is one of half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.canonicalise import canonicalise

BF16, F32 = torch.bfloat16, torch.float32


def canonical(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    return canonicalise(make_fx(function, tracing_mode="fake")(*inputs))


def drawn(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 9, 6, generator=generator) + 3
    return [x.to(dtype), *(torch.randn(6, generator=generator) for _ in range(2))]


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.float(), (6,), w, b)


def with_statistics(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    out, mean, _ = torch.ops.aten.native_layer_norm(x.float(), [6], w, b, 1e-5)
    return out.to(x.dtype), mean


def twice(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x.to(dtype)


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: norm(x, w, b).to(x.dtype),
        lambda x, w, b: F.layer_norm(x.float(), (9, 6)).to(x.dtype) * w.to(b.dtype).to(x.dtype),
    ],
)
def test_casts_around_a_norm_are_dropped(function: Any, dtype: torch.dtype) -> None:
    inputs = drawn(dtype)
    gm = canonical(function, *inputs)
    widened = [n for n in gm.graph.nodes if n.meta.get("val") is not None and n.op != "placeholder"]
    assert not any(
        getattr(n.meta["val"], "dtype", None) is F32 and n.meta["val"].ndim == 3 for n in widened
    )
    torch.testing.assert_close(gm(*inputs), function(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        pytest.param(lambda x, w, b: norm(x, w, b).to(torch.float16), BF16, id="to another dtype"),
        pytest.param(norm, BF16, id="no cast back"),
        pytest.param(lambda x, w, b: twice(norm(x, w, b), x.dtype), BF16, id="read in float32"),
        pytest.param(
            with_statistics,
            BF16,
            id="statistics are read",
        ),
    ],
)
def test_other_norms_stay(function: Any, dtype: torch.dtype) -> None:
    inputs = drawn(dtype)
    gm = canonical(function, *inputs)
    wide = [n for n in gm.graph.nodes if n.target is torch.ops.aten.native_layer_norm.default]
    assert {n.args[0].meta["val"].dtype for n in wide} == {F32}
    torch.testing.assert_close(gm(*inputs), function(*inputs), rtol=0, atol=0)
