"""The `trnx::` ops: equal to torch's composites, one node each under AOTAutograd, right layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.library import opcheck

from trnx.nki_kernels import canonical_ops

sdpa = torch.ops.trnx.sdpa.default
sdpa_backward = torch.ops.trnx.sdpa_backward.default
rms_norm = torch.ops.trnx.rms_norm.default
cross_entropy = torch.ops.trnx.cross_entropy.default
cross_entropy_backward = torch.ops.trnx.cross_entropy_backward.default

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-5, 1e-6),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
}


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def heads(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`[B, H, N, D]` in `[B, N, H, D]` storage."""
    batch, count, rows, width = shape
    return rand(batch, rows, count, width, dtype=dtype).transpose(1, 2)


def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> torch.Tensor:
    """`trnx::sdpa` as torch spells it."""
    scale = more.get("scale") or 1.0 / math.sqrt(q.shape[-1])
    out, _ = sdpa(q, k, v, more.get("attn_mask"), None, 0.0, more.get("is_causal", False), scale)
    return out  # type: ignore[no-any-return]


def masks(kind: str, length: int, depth: int, dtype: torch.dtype) -> torch.Tensor | None:
    if kind == "none":
        return None
    seen = torch.rand(length, depth) > 0.4
    seen[1::3] = False
    if kind == "bool":
        return seen
    if kind == "hidden":
        return torch.zeros(length, depth, dtype=dtype).masked_fill(~seen, -torch.inf)
    return rand(2, 1, length, depth, dtype=dtype)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["none", "bool", "hidden", "bias"])
@pytest.mark.parametrize("values", [16, 12])
def test_sdpa_equals_torch(kind: str, values: int, dtype: torch.dtype) -> None:
    q, k = heads(2, 3, 9, 16, dtype=dtype), heads(2, 3, 13, 16, dtype=dtype)
    v = heads(2, 3, 13, values, dtype=dtype)
    mask = masks(kind, 9, 13, dtype)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    result = whole(q, k, v, attn_mask=mask)
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(result, expected, rtol=rtol, atol=atol, check_stride=True)


@pytest.mark.parametrize("lengths", [(5, 9), (9, 5), (1, 7), (7, 1), (0, 3), (3, 0)])
def test_causal_starts_at_the_first_key(lengths: tuple[int, int]) -> None:
    q, k, v = rand(2, 2, lengths[0], 8), rand(2, 2, lengths[1], 8), rand(2, 2, lengths[1], 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(whole(q, k, v, is_causal=True), expected, check_stride=True)


def test_causal_and_a_mask_apply_together() -> None:
    q, k, v = rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 8)
    mask = torch.rand(6, 6) > 0.3
    both = mask & torch.ones(6, 6, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=both)
    torch.testing.assert_close(whole(q, k, v, attn_mask=mask, is_causal=True), expected)


def test_grouped_heads() -> None:
    q, k, v = heads(2, 6, 5, 8), heads(2, 2, 7, 8), heads(2, 2, 7, 8)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(whole(q, k, v), expected, check_stride=True)


def test_lse_is_the_logarithm_of_the_row_sums() -> None:
    q, k, v = rand(1, 2, 4, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 5)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2] = False
    scores = (q @ k.mT * 0.5).masked_fill(~mask, -torch.inf)
    expected = scores.logsumexp(-1).masked_fill(~mask.any(-1), 0.0)
    for values in (v, rand(1, 2, 6, 8)):  # the general way and torch's kernel
        _, lse = sdpa(q, k, values, mask, None, 0.0, False, 0.5)
        torch.testing.assert_close(lse, expected)
        assert lse.is_contiguous()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_masks_are_added_where_dropout_drops(sign: float) -> None:
    """A hidden key whose score is infinite makes NaN of its rows, as in eager; not below zero."""
    q, k, v = rand(1, 2, 5, 8), rand(1, 2, 7, 8), rand(1, 2, 7, 8)
    q[..., 0] = q[..., 0].abs() * sign
    k[:, :, 3, 0] = math.inf
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 3] = False
    torch.manual_seed(0)
    expected = F.scaled_dot_product_attention(q, k, v, mask, 0.5)
    torch.manual_seed(0)
    kept = torch.ones(1, 2, 5, 7).bernoulli_(0.5).bool()
    found, _ = sdpa(q, k, v, mask, kept, 0.5, False, 8**-0.5)
    assert bool(expected.isnan().all()) == (sign > 0)
    torch.testing.assert_close(found.isnan(), expected.isnan())


@pytest.mark.parametrize("p", [0.25, 1.0])
def test_dropout_scales_what_is_kept(p: float) -> None:
    q, k, v = rand(2, 2, 5, 8), rand(2, 2, 6, 8), rand(2, 2, 6, 8)
    keep = torch.rand(2, 2, 5, 6) >= p
    weights = torch.softmax(q @ k.mT * 0.3, -1) * keep * (0.0 if p == 1.0 else 1 / (1 - p))
    out, _ = sdpa(q, k, v, None, keep, p, False, 0.3)
    torch.testing.assert_close(out, weights @ v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["none", "bool", "hidden", "bias"])
@pytest.mark.parametrize("values", [16, 12])
def test_gradients_equal_torch(kind: str, values: int, dtype: torch.dtype) -> None:
    q, k = heads(2, 3, 9, 16, dtype=dtype), heads(2, 3, 13, 16, dtype=dtype)
    v, grad = heads(2, 3, 13, values, dtype=dtype), rand(2, 3, 9, values, dtype=dtype)
    mask = masks(kind, 9, 13, dtype)
    leaves = [q, k, v] if kind != "bias" else [q, k, v, mask]
    for leaf in leaves:
        assert leaf is not None
        leaf.requires_grad_()
    inputs = [leaf for leaf in leaves if leaf is not None]
    expected = torch.autograd.grad(
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask), inputs, grad
    )
    results = torch.autograd.grad(whole(q, k, v, attn_mask=mask), inputs, grad)
    rtol, atol = TOLERANCES[dtype]
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=rtol, atol=4 * atol, check_stride=True)


@pytest.mark.parametrize("sources", [4, 2])
@pytest.mark.parametrize(("values", "p"), [(16, 0.0), (12, 0.0), (16, 0.5), (12, 0.5)])
def test_layouts_of_gradients_follow_torch(sources: int, values: int, p: float) -> None:
    """Torch computes the gradients of dropout, and of values of another width, by products."""
    q, k, v = rand(2, 4, 9, 16), rand(2, sources, 13, 16), rand(2, sources, 13, values)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    expected = F.scaled_dot_product_attention(q, k, v, dropout_p=p, enable_gqa=sources < 4)
    keep = torch.rand(2, 4, 9, 13) > p if p else None
    result = sdpa(q, k, v, None, keep, p, False, 0.25)[0]
    grads = [torch.autograd.grad(out.sum(), leaves) for out in (result, expected)]
    assert [g.stride() for g in grads[0]] == [g.stride() for g in grads[1]]


def test_gradients_are_exact_to_second_order_of_differences() -> None:
    q, k = rand(1, 4, 3, 5, dtype=torch.float64), rand(1, 2, 4, 5, dtype=torch.float64)
    v, mask = rand(1, 2, 4, 3, dtype=torch.float64), rand(4, 3, 4, dtype=torch.float64)
    keep = torch.rand(1, 4, 3, 4) > 0.3
    for tensor in (q, k, v, mask):
        tensor.requires_grad_()

    def attend(*tensors: torch.Tensor) -> Any:
        return sdpa(*tensors, keep, 0.3, True, 0.4)[0]

    assert torch.autograd.gradcheck(attend, (q, k, v, mask))


def test_layouts_follow_torch() -> None:
    fused = torch.randn(2, 5, 3 * 32)
    q, k, v = (part.view(2, 5, 4, 8).transpose(1, 2) for part in fused.chunk(3, -1))
    for operands in ((q, k, v), (q, k, v[..., :6]), (q.contiguous(), k, v)):
        expected = F.scaled_dot_product_attention(*operands)
        assert whole(*operands).stride() == expected.stride()
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    grads = torch.autograd.grad(whole(*leaves).sum(), leaves)
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*leaves).sum(), leaves)
    assert [g.stride() for g in grads] == [g.stride() for g in wanted]


# Torch 2.15's own check reads it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("case", ["plain", "bool", "bias", "general", "no queries", "no keys"])
def test_sdpa_passes_the_checks_of_torch_library(case: str) -> None:
    length, depth = (0, 5) if case == "no queries" else (6, 0) if case == "no keys" else (6, 5)
    q, k = heads(2, 4, length, 8).requires_grad_(), rand(2, 2, depth, 8).requires_grad_()
    v = rand(2, 2, depth, 6 if case == "general" else 8).requires_grad_()
    mask = rand(2, 1, 6, 5).requires_grad_() if case == "bias" else None
    mask = torch.rand(6, 5) > 0.3 if case == "bool" else mask
    keep = torch.rand(2, 4, 6, 5) > 0.3 if case == "general" else None
    checks = opcheck(sdpa, (q, k, v, mask, keep, 0.3, False, 0.35))
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8), (0, 8), (129, 3)])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_equals_torch(shape: tuple[int, ...], weighted: bool, dtype: torch.dtype) -> None:
    x, weight = rand(*shape, dtype=dtype), rand(shape[-1], dtype=dtype) if weighted else None
    x.requires_grad_()
    result, expected = rms_norm(x, weight, 1e-5), F.rms_norm(x, shape[-1:], weight, 1e-5)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, check_stride=True)
    grad = rand(*shape, dtype=dtype)
    (dx,) = torch.autograd.grad(result, x, grad)
    (wanted,) = torch.autograd.grad(expected, x, grad)
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(dx, wanted, rtol=rtol, atol=atol)


def test_rms_norm_of_mixed_dtypes_and_strides() -> None:
    x, weight = rand(8, 6).bfloat16().t(), rand(8)
    result = rms_norm(x, weight, 1e-5)
    wide = F.rms_norm(x.float(), (8,), weight, 1e-5)
    torch.testing.assert_close(result, wide.bfloat16(), rtol=0, atol=0)
    assert result.is_contiguous()
    assert set(opcheck(rms_norm, (x, weight, 1e-5)).values()) == {"SUCCESS"}


def test_rms_norm_rounds_what_the_weight_multiplies() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 40).bfloat16(), torch.randn(40).bfloat16()
    normal = F.rms_norm(x, (40,), None, 1e-5)
    assert torch.equal(rms_norm(x, weight, 1e-5, 0.0, True), normal * weight)
    once = F.rms_norm(x.float(), (40,), weight.float() + 1.0, 1e-5).bfloat16()
    assert torch.equal(rms_norm(x, weight, 1e-5, 1.0), once)
    assert set(opcheck(rms_norm, (x, weight, 1e-5, 0.0, True)).values()) == {"SUCCESS"}


def test_rms_norm_gradients() -> None:
    x = rand(3, 5, dtype=torch.float64).requires_grad_()
    weight = rand(5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *t: rms_norm(*t, 1e-5), (x, weight))
    assert torch.autograd.gradcheck(lambda *t: rms_norm(*t, 1e-5, 1.0), (x, weight))


def graphs_of(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool) -> list[fx.Graph]:
    """The graphs that AOTAutograd makes of `function` and its backward."""
    graphs = []

    def keep(module: fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    out = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)
    out.sum().backward()
    return graphs


def targets(graph: fx.Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_ops_stay_whole_in_aot_graphs(dynamic: bool) -> None:
    q, k, v = (rand(2, 4, 6, 8).requires_grad_() for _ in range(3))
    forward, backward = graphs_of(
        lambda q, k, v: sdpa(q, k, v, None, None, 0.0, True, 0.3)[0], q, k, v, dynamic=dynamic
    )
    assert targets(forward).count(sdpa) == 1
    assert targets(backward).count(sdpa_backward) == 1
    for leaf, wanted in zip((q, k, v), reference_grads(q, k, v), strict=True):
        torch.testing.assert_close(leaf.grad, wanted)


def reference_grads(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.3)
    return torch.autograd.grad(out.sum(), leaves)


def test_rms_norm_is_whole_forward_and_plain_aten_backward() -> None:
    x, weight = rand(3, 8).requires_grad_(), rand(8).requires_grad_()
    forward, backward = graphs_of(lambda x, w: rms_norm(x, w, 1e-5), x, weight, dynamic=True)
    assert targets(forward).count(rms_norm) == 1
    names = {target.namespace for target in targets(backward) if hasattr(target, "namespace")}
    assert names == {"aten"}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_equals_torch(reduction: str, dtype: torch.dtype) -> None:
    x, target = rand(6, 9, dtype=dtype), torch.tensor([0, 8, -7, 3, -7, 1])
    pair = [x.clone().requires_grad_() for _ in range(2)]
    how = ("none", "mean", "sum").index(reduction)
    loss, weight, top, total = cross_entropy(pair[0], target, how, -7)
    expected = F.cross_entropy(pair[1], target, ignore_index=-7, reduction=reduction)
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(loss, expected.reshape(-1), rtol=rtol, atol=atol)
    assert weight.item() == 4
    exact = x.double()
    torch.testing.assert_close((total.log() + top).double(), exact.logsumexp(1), rtol=1e-5, atol=0)
    for result in (loss, expected):
        (result * 3).sum().backward()
    assert pair[0].grad is not None
    torch.testing.assert_close(pair[0].grad, pair[1].grad, rtol=4 * rtol, atol=4 * atol)


# Torch 2.15's own check reads it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_cross_entropy_passes_the_checks_of_torch_library(reduction: int) -> None:
    x, target = rand(6, 9).requires_grad_(), torch.tensor([0, 8, -7, 3, -7, 1])
    checks = opcheck(cross_entropy, (x, target, reduction, -7))
    assert set(checks.values()) == {"SUCCESS"}
    loss, *saved = cross_entropy(x.detach(), target, reduction, -7)
    values = (loss, x.detach(), target, *saved, reduction, -7)
    checks = opcheck(cross_entropy_backward, values)
    assert set(checks.values()) == {"SUCCESS"}


def test_importing_registers_every_op_once() -> None:
    ops = (canonical_ops.sdpa, canonical_ops.sdpa_backward, canonical_ops.rms_norm)
    for op in (*ops, canonical_ops.quick_gelu):
        assert op._qualname.startswith("trnx::")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_quick_gelu_rounds_once_and_keeps_the_layout(dtype: torch.dtype) -> None:
    x = torch.randn(5, 3).to(dtype).t()
    result = torch.ops.trnx.quick_gelu(x)
    exact = x.double() * torch.sigmoid(1.702 * x.double())

    torch.testing.assert_close(result, exact.to(dtype), check_stride=True)
    torch.library.opcheck(torch.ops.trnx.quick_gelu.default, (x,))
