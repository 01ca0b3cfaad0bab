"""An MLP, its residual and a layer norm as one kernel: chosen by torch.compile, in both kinds of
blocks, and values that are odd."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trnx


class PostNorm(nn.Module):
    """The second half of a block of BERT."""

    def __init__(self, hidden: int, inner: int, approximate: str = "none") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.gelu, self.norm = nn.GELU(approximate), nn.LayerNorm(hidden)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.norm(self.down(self.gelu(self.up(x))) + residual),)


class PreNorm(PostNorm):
    """Between two blocks of GPT-2: the sum is the next residual too."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = residual + self.down(self.gelu(self.up(x)))
        return total, self.norm(total)


def check(model: nn.Module, x: torch.Tensor, residual: torch.Tensor, lnc: int = 2) -> None:
    """One region of the kernel, whose error is at most twice eager's."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options={"lnc": lnc})(x, residual)
        wanted = model(x, residual)
        exact = copy.deepcopy(model).double()(x.double(), residual.double())
    assert [r.kernel for report in reports for r in report.regions] == ["mlp_layer_norm"]
    for have, want, true in zip(found, wanted, exact, strict=True):
        assert (have.dtype, have.shape, have.stride()) == (want.dtype, want.shape, want.stride())
        assert torch.equal(have.isnan(), want.isnan())
        rows = want.isfinite().all(-1)
        ours, eagers = ((value.double() - true)[rows].abs().max() for value in (have, want))
        assert ours <= 2 * eagers + torch.finfo(have.dtype).eps


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_kernel(kind: type[PostNorm], dtype: torch.dtype, lnc: int) -> None:
    torch.manual_seed(0)
    model = kind(256, 1024, "tanh" if kind is PreNorm else "none").to(dtype)
    check(model, torch.randn(600, 256).to(dtype), torch.randn(600, 256).to(dtype), lnc)


def test_rows_that_are_not_finite_stay_apart() -> None:
    torch.manual_seed(0)
    model = PreNorm(128, 512).bfloat16()
    x, residual = torch.randn(300, 128).bfloat16(), torch.randn(300, 128).bfloat16()
    x[3, 5], residual[290, 0] = torch.nan, torch.inf
    check(model, x, residual)
