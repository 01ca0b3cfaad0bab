"""`max` and `min` along a dimension, with and without their indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.canonicalise import canonicalise
from trnx.fx_passes.verify import verify_graph

aten = torch.ops.aten

X = torch.tensor([[1.0, float("nan"), 2.0], [-0.0, 0.0, float("-inf")]])


def targets(function: Any, x: torch.Tensor) -> list[Any]:
    """The ops of the canonical graph, whose results are eager's."""
    gm = canonicalise(make_fx(function, tracing_mode="fake")(x))
    verify_graph(gm, "canonicalise")
    torch.testing.assert_close(gm(x), function(x), equal_nan=True, check_stride=True)
    return [n.target for n in gm.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_values_alone(dtype: torch.dtype, dim: int, keepdim: bool) -> None:
    x = X.nan_to_num(0).to(dtype) if dtype is torch.int64 else X.to(dtype)
    assert targets(lambda x: x.max(dim, keepdim).values, x) == [aten.amax.default]
    assert targets(lambda x: x.min(dim, keepdim)[0], x) == [aten.amin.default]


def test_indices_that_are_read_stay() -> None:
    assert aten.max.dim in targets(lambda x: x.max(1), X)
    assert aten.max.dim in targets(lambda x: x.max(1).indices, X)
    assert aten.min.dim in targets(lambda x: (x.min(1).values, x.min(1).indices + 1), X)
