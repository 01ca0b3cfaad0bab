"""Products of groups: through torch.compile, and what one group has that others must not get."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import trnx
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers torch.ops.trnx


def test_a_grouped_product_is_one_kernel_and_eagers() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(130, 64, generator=generator).bfloat16()
    w = torch.randn(3, 64, 48, generator=generator).bfloat16()
    offsets = torch.tensor([5, 5, 130], dtype=torch.int32)
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        actual = torch.compile(F.grouped_mm, backend="trnx", options={"select": "legal"})(
            x, w, offs=offsets
        )
    expected = F.grouped_mm(x, w, offs=offsets)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2, check_stride=True)
    assert [region.kernel for region in reports[-1].regions] == ["grouped_mm"]
    assert reports.flops_on_nki == 1.0


def test_nan_stays_in_its_group() -> None:
    x, w = torch.ones(6, 4), torch.ones(2, 4, 3)
    w[0] = math.nan
    x[5] = math.inf
    offsets = torch.tensor([2, 6])
    torch._dynamo.reset()
    compiled = torch.compile(torch.ops.trnx.grouped_mm, backend="trnx", options={"select": "legal"})
    actual = compiled(x, w, offsets)
    assert actual[:2].isnan().all()
    assert torch.equal(actual[2:5], torch.full((3, 3), 4.0))
    assert actual[5].isinf().all()
