"""Composites become `trnx::` ops before AOTAutograd, and keep what they mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trnx.fx_passes.rewrite import REWRITE_COMPOSITES

SDPA = torch.ops.trnx.sdpa.default


def _qkv(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(*shape, dtype=dtype, requires_grad=True) for _ in range(3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8)])
def test_attention_of_every_rank(check: Any, shape: tuple[int, ...], causal: bool) -> None:
    q, k, v = _qkv(*shape)

    seen = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        q, k, v, grad=True,
    )  # fmt: skip

    assert SDPA in seen.targets()
    assert torch.ops.trnx.sdpa_backward.default in seen.targets(1)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(5, 5).tril().bool(),
        torch.randn(3, 5, 5),
        torch.randn(2, 1, 1, 5),
        torch.zeros(2, 3, 5, 5, dtype=torch.bool),
    ],
    ids=["causal", "per head", "per key", "nothing"],
)
def test_masks(check: Any, mask: torch.Tensor) -> None:
    q, k, v = _qkv(2, 3, 5, 8)

    seen = check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, mask, grad=True
    )

    assert SDPA in seen.targets()


def test_a_bias_that_learns(check: Any) -> None:
    q, k, v = _qkv(2, 3, 5, 8)
    bias = torch.randn(1, 3, 5, 5, requires_grad=True)

    seen = check(
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b), q, k, v, bias, grad=True
    )

    assert SDPA in seen.targets()


def test_grouped_queries(check: Any) -> None:
    q = torch.randn(2, 6, 5, 8)
    k, v = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)

    seen = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3), q, k, v
    )

    assert SDPA in seen.targets()


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_drops_what_eager_drops(check: Any, dynamic: bool) -> None:
    q, k, v = _qkv(2, 3, 5, 8)

    seen = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        q, k, v, grad=True, dynamic=dynamic,
    )  # fmt: skip

    assert SDPA in seen.targets()
    assert torch.ops.aten.bernoulli.p in seen.targets()


def test_float64_is_left_to_torch(check: Any) -> None:
    q, k, v = _qkv(2, 3, 5, 8, dtype=torch.float64)

    seen = check(F.scaled_dot_product_attention, q, k, v)

    assert SDPA not in seen.targets()


def test_heads_that_differ_raise_torchs_error(trnx: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(F.scaled_dot_product_attention, backend=trnx.Compiled().backend)

    with pytest.raises(RuntimeError):
        compiled(torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_under_vmap_torch_batches_first(check: Any) -> None:
    def each(q: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda t: F.scaled_dot_product_attention(t, t, t))(q)

    seen = check(each, torch.randn(4, 2, 3, 5, 8))

    assert seen.targets().count(SDPA) == 4


def test_autocast_computes_in_its_dtype(check: Any) -> None:
    def cast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v)

    seen = check(cast, *(t.detach() for t in _qkv(2, 3, 5, 8)))

    assert SDPA in seen.targets()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_rms_norm(check: Any, dtype: torch.dtype, eps: float | None) -> None:
    x = torch.randn(3, 16, dtype=dtype) * 1e-3
    weight = torch.randn(16, dtype=dtype)

    seen = check(lambda x, w: F.rms_norm(x, (16,), w, eps), x, weight)

    assert seen.targets() == [torch.ops.trnx.rms_norm.default]


def test_rms_norm_over_two_dimensions_is_left_to_torch(check: Any) -> None:
    seen = check(lambda x: F.rms_norm(x, (4, 16)), torch.randn(3, 4, 16))

    assert torch.ops.trnx.rms_norm.default not in seen.targets()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(check: Any, reduction: str) -> None:
    x, target = torch.randn(5, 7), torch.tensor([0, 6, 2, 2, 1])

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, ignore_index=2, reduction=reduction)

    seen = check(loss, x, target)

    assert torch.ops.trnx.cross_entropy.default in seen.targets()


@pytest.mark.parametrize(
    ("shape", "target", "options"),
    [
        ((5, 7), torch.tensor([0, 6, 2, 2, 1]), {"weight": torch.ones(7)}),
        ((5, 7), torch.tensor([0, 6, 2, 2, 1]), {"label_smoothing": 0.1}),
        ((5, 7), torch.full((5, 7), 1 / 7), {}),
        ((7,), torch.tensor(3), {}),
        ((2, 7, 3), torch.zeros(2, 3, dtype=torch.int64), {}),
        ((0, 7), torch.zeros(0, dtype=torch.int64), {"reduction": "sum"}),
    ],
)
def test_other_forms_of_cross_entropy_are_left_to_torch(
    check: Any, shape: tuple[int, ...], target: torch.Tensor, options: dict[str, Any]
) -> None:
    seen = check(lambda x, t: F.cross_entropy(x, t, **options), torch.randn(shape), target)

    assert torch.ops.trnx.cross_entropy.default not in seen.targets()


def test_new_nodes_know_the_users_line() -> None:
    torch._dynamo.reset()
    traces: list[str] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        REWRITE_COMPOSITES.run(gm)
        traces.extend(n.meta["stack_trace"] for n in gm.graph.nodes if n.target is SDPA)
        return gm

    q, k, v = _qkv(2, 3, 5, 8)
    torch.compile(lambda: F.scaled_dot_product_attention(q, k, v), backend=backend)()

    assert len(traces) == 1
    assert "test_rewrite.py" in traces[0]


def test_other_sizes_need_no_new_graph(trnx: Any) -> None:
    torch._dynamo.reset()
    seen = trnx.Compiled()
    compiled = torch.compile(F.scaled_dot_product_attention, backend=seen.backend, dynamic=True)

    for batch, heads, length in ((2, 3, 5), (3, 4, 9), (2, 5, 130)):
        q, k, v = (t.detach() for t in _qkv(batch, heads, length, 8))
        trnx.compare(compiled(q, k, v), F.scaled_dot_product_attention(q, k, v))

    assert len(seen.plans) == 1


def test_dropout_outside_of_training_is_its_argument(check: Any) -> None:
    x = torch.randn(4, 6)

    def identity(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        F.dropout(y, 0.4, training=False).add_(1)  # writes to y
        return F.dropout(y, training=False, inplace=True)

    seen = check(identity, x)
    assert not any("dropout" in str(target) for target in seen.targets())


def test_dropout_of_an_input_is_that_input() -> None:
    x = torch.randn(4, 6)
    got = torch.compile(lambda x: F.dropout(x, 0.1, False), backend="trnx")(x)
    assert got.data_ptr() == x.data_ptr()
    with pytest.raises(Exception, match="dropout probability"):
        torch.compile(lambda x: F.dropout(x, 1.5, False), backend="trnx")(x)
