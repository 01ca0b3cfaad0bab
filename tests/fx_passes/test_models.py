"""Whole modules through every pass: values, dtypes, strides and gradients are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

aten = torch.ops.aten


class Mlp(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x))) + x


class Attention(nn.Module):
    """A GPT block with causal attention and dropout."""

    def __init__(self, width: int = 16, dropout: float = 0.25) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, -1)
        q, k, v = (t.view(batch, length, 2, width // 2).transpose(1, 2) for t in parts)
        p = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        flat = mixed.transpose(1, 2).reshape(batch, length, width)
        return self.mlp(x + F.dropout(self.out(flat), self.dropout, self.training))


class BertLayer(nn.Module):
    """Attention with a padding mask, and the norm after the residual."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.mlp = Mlp(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            f(x).view(batch, length, 4, width // 4).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        seen = mask[:, None, None, :].expand(batch, 1, length, length)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.mlp(self.norm(mixed.transpose(1, 2).reshape(batch, length, width) + x))


class Conv1D(nn.Module):
    """GPT-2's linear layer: a [K, N] weight, flattened around `addmm`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 32))
        self.bias = nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return F.gelu(flat.view(*x.shape[:-1], 32), approximate="tanh")


class T5Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(self.weight.dtype)


class ModernNorm(nn.Module):
    """RMSNorm and SiLU, as Llama has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.gate = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return F.silu(self.gate(y)) * y


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "mlp": (Mlp, (torch.randn(3, 5, 16),)),
    "attention": (Attention, (torch.randn(2, 7, 16),)),
    "bert": (BertLayer, (torch.randn(2, 7, 16), torch.arange(14).view(2, 7) % 7 < 5)),
    "conv1d": (Conv1D, (torch.randn(2, 7, 16),)),
    "t5": (T5Norm, (torch.randn(2, 7, 16),)),
    "modern": (ModernNorm, (torch.randn(2, 7, 16),)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_model_equals_eager(check: Any, name: str, train: bool, dynamic: bool) -> None:
    make, args = MODELS[name]
    torch.manual_seed(0)
    model = make().train(train)

    seen = check(model, *args, grad=train, dynamic=dynamic)

    assert len(seen.plans) == (2 if train else 1)


def test_products_become_linear_and_take_their_epilogue(check: Any, coverage: Any) -> None:
    seen = check(Mlp(), torch.randn(3, 5, 16))

    assert seen.targets() == [
        aten.linear.default,
        aten.gelu.default,
        aten.linear.default,
        aten.add.Tensor,
    ]
    assert [r.match.kernel.name for r in seen.plans[0].regions] == [
        "linear_gelu",
        "linear",
        "generated",
    ]
    assert coverage(seen.plans[0]).share == 1.0


def test_a_matrix_stored_the_other_way_is_a_transposed_weight(check: Any) -> None:
    seen = check(Conv1D(), torch.randn(2, 7, 16))

    assert seen.targets() == [aten.transpose.int, aten.linear.default, aten.gelu.default]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes(check: Any, dtype: torch.dtype) -> None:
    seen = check(BertLayer().to(dtype).eval(), *(
        a.to(dtype) if a.is_floating_point() else a for a in MODELS["bert"][1]
    ))  # fmt: skip

    assert torch.ops.trnx.sdpa.default in seen.targets()


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 513])
def test_edge_sizes(check: Any, rows: int, coverage: Any) -> None:
    seen = check(Mlp(), torch.randn(rows, 16))

    assert coverage(seen.plans[0]).share == 1.0


def test_empty_batch(check: Any) -> None:
    seen = check(Mlp(), torch.randn(0, 5, 16))

    assert aten.linear.default in seen.targets()


def test_one_graph_serves_other_sizes(trnx: Any) -> None:
    torch._dynamo.reset()
    seen = trnx.Compiled()
    model = Attention().eval()
    compiled = torch.compile(model, backend=seen.backend, dynamic=True, fullgraph=True)

    with torch.no_grad():
        for batch, length in ((2, 7), (3, 9), (5, 128)):
            x = torch.randn(batch, length, 16)
            trnx.compare(compiled(x), model(x))

    assert len(seen.plans) == 1
