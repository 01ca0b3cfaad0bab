"""What nki-library's suite computes in parts has the values of the whole."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "conformance"


@pytest.fixture
def lean(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import nki_library_lean

    monkeypatch.setattr(nki_library_lean, "_PART", 500)
    module: ModuleType = nki_library_lean
    return module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [1, 7, 513])
def test_gradient_of_cross_entropy(
    lean: ModuleType, dtype: torch.dtype, reduction: str, rows: int
) -> None:
    logits = torch.randn(rows, 130).to(dtype)
    targets = torch.randint(0, 130, (rows,))
    whole = logits.clone().requires_grad_()
    F.cross_entropy(whole, targets, reduction=reduction).backward()
    got = lean.cross_entropy_gradient(logits, targets, reduction)
    assert torch.equal(got, whole.grad)
    sums = lean.by_rows(lambda x: torch.logsumexp(x, dim=1), logits)
    assert torch.equal(sums, torch.logsumexp(logits, dim=1))


def _forward(q: Any, k: Any, v: Any, bound_min: Any = None) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.softmax(q.transpose(2, 3) @ k, dim=-1)
    if bound_min is not None:
        scores = scores.masked_fill(torch.arange(k.shape[3]) < bound_min[:, None], 0)
    return (v @ scores.transpose(2, 3)), scores.sum(3), scores


def _summed(x: Any, heads: int, *_: Any) -> Any:
    return x.unflatten(1, (heads, -1)).sum(dim=2)


def _backward(q_ref: Any, k_ref: Any, sinks_ref: Any = None, **_: Any) -> Any:
    heads = k_ref.shape[1]
    k = k_ref.repeat_interleave(q_ref.shape[1] // heads, dim=1)
    found = {"out_dq_ref": k * 2, "out_dk_ref": _summed(q_ref * 3, heads)}
    found["out_dv_ref"] = found["out_dk_ref"] + 1.0
    return found if sinks_ref is None else found | {"out_dsinks_ref": sinks_ref + 1}


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (4, 2), (3, 3), (4, 1)])
def test_attention_by_heads(lean: ModuleType, heads: int, shared: int) -> None:
    q, k, v = (torch.randn(2, n, 8, 16) for n in (heads, shared, shared))
    starts = torch.arange(16) // 4
    out, sums, _ = lean.forward_by_heads(_forward)(q, k, v, bound_min=starts)
    want = _forward(q, k, v, starts)
    torch.testing.assert_close(out, want[0])
    torch.testing.assert_close(sums, want[1])
    sinks = torch.randn(2, heads)
    backward = lean.backward_by_heads(_backward, _summed)
    assert backward.__wrapped__ is _backward
    got = backward(q_ref=q, k_ref=k, sinks_ref=sinks)
    whole = _backward(q, k, sinks)
    assert set(got) == set(whole)
    assert torch.equal(got["out_dq_ref"], whole["out_dq_ref"])
    assert torch.equal(got["out_dk_ref"], whole["out_dk_ref"])
    assert torch.equal(got["out_dsinks_ref"], whole["out_dsinks_ref"])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("what", ["", "nan", "inf", "both inf", "far"])
def test_comparison(lean: ModuleType, dtype: Any, what: str) -> None:
    generator = np.random.default_rng(3)
    x = (generator.normal(size=(7, 300)) * 50).astype(dtype)
    y = (x.astype(np.float32) * (1 + 1e-3 * generator.normal(size=x.shape))).astype(dtype)
    special = {"nan": np.nan, "inf": np.inf, "both inf": np.inf, "far": 100}.get(what)
    if special is not None and (dtype is not np.int32 or what == "far"):
        x[5, 5] = special
        y[5, 5] = special if what == "both inf" else y[5, 5]
    a, b = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(invalid="ignore"):
        difference = np.where(np.isinf(a) & np.isinf(b), 0, abs(a.astype(float) - b))
    for rtol in (1e-4, 1e-2, 0.2):
        limit = 1e-5 + rtol * np.abs(b[np.isfinite(b)]).max()
        want = bool((difference <= limit).all() and (np.isfinite(a) == np.isfinite(b)).all())
        assert lean.all_close(lean.comparable(x), lean.comparable(y), rtol, 1e-5) == want
    error = (difference.max() - 1e-5) / float(np.abs(b).max())
    np.testing.assert_equal(lean.largest_error(x, y, 1e-5), error if np.isfinite(b).all() else 0)


def test_what_cannot_be_compared(lean: ModuleType) -> None:
    assert lean.comparable(np.ones(3, ml_dtypes.bfloat16)).dtype == np.float32
    large = np.ones(501, ml_dtypes.bfloat16)
    assert lean.is_large(large)
    assert lean.comparable(large) is large
    for size in (3, 501):
        with pytest.raises((TypeError, ValueError)):
            lean.comparable(np.zeros(size, "V4"))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_arrays_and_tensors_share_memory(lean: ModuleType, dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = lean.as_torch(array)
    tensor[0, 0] = 7
    assert array[0, 0] == 7
    assert lean.as_numpy(tensor).dtype == dtype
    assert np.shares_memory(lean.as_numpy(tensor), array)


def _queries(
    q: Any,
    k: Any,
    v: Any,
    k_prior: Any = None,
    prior_used_len: Any = None,
    tp_q: bool = True,
    tp_k: bool = False,
    tp_out: bool = False,
    cache_softmax: bool = False,
    sink: Any = None,
    v_prior: Any = None,
    cp_offset: Any = None,
    global_cp_deg: Any = None,
    cp_strided_q_slicing: bool = False,
    bound_min: Any = None,
    bound_max: Any = None,
) -> Any:
    """Attention over the keys up to a query's position, as the suite's reference has it."""
    q = q if tp_q else q.transpose(1, 2)
    k = k.transpose(1, 2) if tp_k else k
    prior = 0
    if k_prior is not None:
        prior = int(prior_used_len)
        k = torch.cat([k_prior[:, :, :prior], k], dim=2)
        v = torch.cat([v_prior[:, :prior], v], dim=1)
    k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], dim=0) for x in (k, v))
    step = global_cp_deg if cp_offset is not None and cp_strided_q_slicing else 1
    at = torch.arange(q.shape[1]) * step + (0 if cp_offset is None else int(cp_offset))
    scores = q @ k
    scores = scores.masked_fill(torch.arange(k.shape[2]) - prior > at[:, None], -torch.inf)
    if bound_min is not None:
        low, high = (torch.as_tensor(x).reshape(-1, 1) for x in (bound_min, bound_max))
        keys = torch.arange(k.shape[2])
        scores = scores.masked_fill((keys < low) | (keys >= high), -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink[:, None].expand(-1, q.shape[1], -1)], dim=2)
    out = (torch.softmax(scores, 2)[..., : k.shape[2]] @ v).transpose(1, 2 if tp_out else 1)
    if not cache_softmax:
        return out
    largest = scores.amax(2).reshape(q.shape[0], -1, 128).transpose(1, 2)
    return out, largest, largest + 1


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_softmax": True, "sink": torch.ones(4, 1)},
        {"cp_offset": torch.tensor([[3]]), "global_cp_deg": 4, "cp_strided_q_slicing": True},
        {"cp_offset": torch.tensor(3), "global_cp_deg": 4},
        {"cp_strided_q_slicing": True, "global_cp_deg": 4},
        {"bound_min": np.zeros(300), "bound_max": np.full((300, 1), 70.0)},
        {"k_prior": torch.ones(2, 8, 20), "v_prior": torch.ones(2, 20, 8), "prior_used_len": 9},
    ],
)
def test_attention_by_queries(lean: ModuleType, transposed: bool, options: Any) -> None:
    count = 256 if "cache_softmax" in options else 300
    q, k, v = torch.randn(4, count, 8), torch.randn(2, 8, 310), torch.randn(2, 310, 8)
    if transposed:
        q = q.transpose(1, 2)
        if "k_prior" not in options:
            k = k.transpose(1, 2)
            options = options | {"tp_k": True}
    options = options | {"tp_q": not transposed, "tp_out": transposed}
    got = lean.forward_by_queries(_queries)(q, k, v, **options)
    torch.testing.assert_close(got, _queries(q, k, v, **options))


def test_rows_of_a_sequence(lean: ModuleType) -> None:
    def sums(rows: Any, factor: int) -> Any:
        return rows * factor, rows.sum(axis=-1, keepdims=True), None

    rows = np.random.default_rng(0).normal(size=(2, 70, 30))
    got = lean.by_sequence(sums)(rows, 3)
    assert np.array_equal(got[0], rows * 3)
    assert np.array_equal(got[1], rows.sum(axis=-1, keepdims=True))
    assert got[2] is None
