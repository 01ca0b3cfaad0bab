"""What is special to `rope_depth_first`: eager's bits, one region, values that are not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec


def by_chunks(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin))


def by_slices(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[0] // 2
    low, high = x[:half], x[half:]
    cos, sin = cos[:, :, None], sin[:, :, None]
    return torch.cat((low * cos - high * sin, low * sin + cos * high), 0)


@pytest.mark.parametrize("function", [by_chunks, by_slices])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("lnc", [1, 2])
def test_is_one_region_with_eagers_bits(function: Any, target: str, lnc: int) -> None:
    if target == "trn1" and lnc == 2:
        pytest.skip("a logical core of trn1 is one core")
    generator = torch.Generator().manual_seed(1)
    x, cos, sin = (
        torch.randn(shape, generator=generator).bfloat16()
        for shape in ((64, 2, 6, 129), (32, 2, 129), (32, 2, 129))
    )
    x[3, 0, 1, 5], x[40, 1, 2, 100] = float("nan"), float("inf")
    torch._dynamo.reset()
    options = {"target": target, "lnc": lnc}
    with trnx.collect_reports() as reports:
        result = torch.compile(function, backend="trnx", options=options)(x, cos, sin)
    kernels = [region.kernel for report in reports for region in report.regions]
    assert kernels == ["rope_depth_first"]
    torch.testing.assert_close(result, function(x, cos, sin), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("shape", "table", "parts", "reason"),
    [
        ((64, 2, 3, 8), (32, 1, 3, 8), [32, 32], "not one angle"),
        ((64, 2, 3, 8), (32, 1, 1, 8), [16, 48], "not cut at half"),
        ((258, 1, 3, 8), (129, 1, 1, 8), [129, 129], "above 256"),
        ((64, 2, 3, 8), (32, 8), [32, 32], "not the dimensions"),
    ],
)
def test_refusals(
    shape: tuple[int, ...], table: tuple[int, ...], parts: list[int], reason: str
) -> None:
    tables = dict.fromkeys(("cos", "sin"), TensorSpec.dense(table, torch.float32))
    given = {"x": TensorSpec.dense(shape, torch.float32), **tables, "parts": parts}
    b = Bindings({**given, "dim": 0, "cat_dim": 0, "half": None, "end": None})
    refusal = registry.kernels()["rope_depth_first"].supports(b, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
