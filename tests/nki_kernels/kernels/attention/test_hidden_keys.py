"""Keys and values that are infinite or NaN where a query does not see them: torch's kernel leaves
out what causal attention hides, adds masks, and multiplies all values of a block by their weights.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from launched import simulated

from trnx.nki_kernels import canonical_ops, registry
from trnx.nki_kernels.kernels.attention._host import make_inputs

FORWARD, BACKWARD = (registry.kernels()[name] for name in ("sdpa", "sdpa_backward"))
F32, BF16 = torch.float32, torch.bfloat16
TOLERANCES = {F32: (2e-5, 1e-5), BF16: (1.6e-2, 3e-2)}
NUMBERS = [math.inf, -math.inf, math.nan]
Results = tuple[torch.Tensor, ...]


def inputs(length: int, dtype: torch.dtype, width: int = 16, **options: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    sizes = (1, options.pop("heads", 2), length, length, width)
    return make_inputs(generator, *sizes, dtype=dtype, **{"causal": True} | options)


def assert_as_eager(values: dict[str, Any], target: str = "trn2", backward: bool = True) -> Results:
    """Both passes; gives the results of the forward one."""
    wanted = canonical_ops.sdpa(**values)
    results = simulated(FORWARD, values, target)
    compare(results, wanted)
    if backward:
        gradients_as_eager(values, wanted, target)
    return results


def gradients_as_eager(values: dict[str, Any], wanted: Results, target: str = "trn2") -> Results:
    """Those of query, key and value; `wanted` is what the forward pass gives."""
    grad = torch.randn(wanted[0].shape, generator=torch.Generator().manual_seed(6))
    more = {"grad_out": grad.to(wanted[0].dtype), "out": wanted[0], "lse": wanted[1]}
    more = {**values, **more, "mask_grad": False}
    gradients = simulated(BACKWARD, more, target)[:3]
    compare(gradients, eager_gradients(more))
    return gradients


def eager_gradients(values: dict[str, Any]) -> Results:
    """Computed in float32: on processors with AMX (but not with ONEDNN_MAX_CPU_ISA=AVX512_CORE)
    torch's bfloat16 gradient of the query before one that is NaN is NaN, too."""
    dtype = values["q"].dtype
    wide = {
        name: v.float() if isinstance(v, torch.Tensor) and v.dtype == dtype else v
        for name, v in values.items()
    }
    return tuple(g.to(dtype) for g in canonical_ops.sdpa_backward(**wide)[:3])


def compare(results: Results, wanted: Results) -> None:
    for own, other in zip(results, wanted, strict=True):
        rtol, atol = TOLERANCES[other.dtype]
        finite = other[other.isfinite()].abs()
        largest = max(1.0, finite.max().item() if finite.numel() else 0.0)
        torch.testing.assert_close(own, other, rtol=rtol, atol=atol * largest, equal_nan=True)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("length", [2, 100, 127, 128, 129, 200, 257])
def test_a_key_that_causal_attention_hides(length: int, dtype: torch.dtype, number: float) -> None:
    values = inputs(length, dtype)
    at = length * 3 // 4
    values["k"][0, 0, at] = number
    out, lse = assert_as_eager(values)
    assert out[0, 0, :at].isfinite().all()
    assert lse[0, 0, :at].isfinite().all()
    assert out[0, 0, at:].isnan().all()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("length", [2, 127, 128, 129, 200])
def test_a_query_that_does_not_see_a_key(length: int, dtype: torch.dtype, number: float) -> None:
    """Its logsumexp is NaN, and its weights of the keys after it are 0 all the same."""
    values = inputs(length, dtype)
    at = length // 2
    values["q"][0, 0, at - 1] = number
    _, _, dv = gradients_as_eager(values, canonical_ops.sdpa(**values))
    assert dv[0, 0, :at].isnan().all()
    assert dv[0, 0, at:].isfinite().all()


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_of_every_width_and_generation(target: str, width: int) -> None:
    values = inputs(130, BF16, width, heads=4, sources=2)
    values["k"][0, 1, 129] = math.nan
    out, _ = assert_as_eager(values, target)
    assert out[0, :, :129].isfinite().all()


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_with_several_tiles_of_keys(dtype: torch.dtype) -> None:
    values = inputs(650, dtype)
    values["k"][0, 0, 600] = math.inf
    out, _ = assert_as_eager(values)
    assert out[0, 0, :600].isfinite().all()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("length", [512, 640])
def test_long_attention(length: int, number: float) -> None:
    values = inputs(length, BF16, 64)
    values["k"][0, 0, length - 40] = number
    out, lse = simulated(FORWARD, values, "trn2")
    wanted, sums = canonical_ops.sdpa(**values)
    compare((out, lse.to(BF16)), (wanted, sums.to(BF16)))
    assert out[0, 0, : length - 40].isfinite().all()


def test_one_element_of_a_key() -> None:
    """Its scores are infinite, of either sign."""
    values = inputs(129, F32)
    values["k"][0, 0, 100, 3] = math.inf
    out, lse = simulated(FORWARD, values, "trn2")
    wanted, sums = canonical_ops.sdpa(**values)
    compare((out, lse[..., :100]), (wanted, sums[..., :100]))
    assert out[0, 0, :100].isfinite().all()


def test_a_scale_of_zero() -> None:
    """All keys that a query sees have the same weight."""
    values = inputs(129, F32) | {"scale": 0.0}
    values["k"][0, 0, 100] = math.inf
    out, _ = simulated(FORWARD, values, "trn2")
    means = values["v"].cumsum(2) / torch.arange(1, 130)[:, None]
    torch.testing.assert_close(out[0, 0, :100], means[0, 0, :100], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[0, 1], means[0, 1], rtol=1e-5, atol=1e-5)
    assert out[0, 0, 100:].isnan().all()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("mask", ["bool", "bias"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_mask_is_added(causal: bool, mask: str, number: float) -> None:
    """What it hides is NaN where the score is; causal attention hides the same from the others."""
    values = inputs(129, F32, causal=causal, mask=mask)
    if mask == "bool":
        values["attn_mask"][..., 100] = False
    else:
        values["attn_mask"] = values["attn_mask"][None]
        values["attn_mask"][..., 100] = -math.inf
    values["k"][0, 0, 100] = number
    out, _ = assert_as_eager(values)
    assert out[0, 0, :100].isnan().all().item() is not causal
    assert out[0, 0, 100:].isnan().all()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("length", [100, 129, 257])
def test_a_window_is_added_and_what_follows_is_left_out(length: int, number: float) -> None:
    values = inputs(length, F32, window=length // 3)
    values["k"][0, 0, length // 2] = number
    out, _ = assert_as_eager(values)
    assert out[0, 0, : length // 2].isfinite().all()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("options", [{}, {"window": 40}, {"causal": False, "mask": "bool"}])
def test_a_value_counts_with_no_weight(options: dict[str, Any], number: float) -> None:
    """0 times what is not finite is NaN."""
    values = inputs(129, F32, **options)
    if values["attn_mask"] is not None:
        values["attn_mask"][..., 60] = False
    values["v"][0, 0, 60] = number
    out, _ = assert_as_eager(values)
    assert not out[0, 0].isfinite().any()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("boolean", [True, False])
def test_decoding(boolean: bool, number: float) -> None:
    values = inputs(1100, F32, 32, causal=False)
    values["q"] = values["q"][:, :, :1]
    mask = torch.ones(1, 1, 1, 1100, dtype=torch.bool)
    mask[..., 1050:] = False
    values["attn_mask"] = mask if boolean else torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    values["k"][0, 0, 1080] = number
    values["v"][0, 1, 1080] = number
    assert_as_eager(values, backward=False)
