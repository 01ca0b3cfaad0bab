"""The backward kernel of attention: mask gradients, unseen keys, wide heads, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched import bindings, simulated, traced

from trnx.nki_kernels import canonical_ops, registry
from trnx.nki_kernels.kernels.attention._host import make_inputs
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware

BACKWARD = registry.kernels()["sdpa_backward"]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def inputs(*shape: int, mask: torch.Tensor | None = None, **more: Any) -> dict[str, Any]:
    values = make_inputs(generator(), *shape, **more)
    values["attn_mask"] = mask
    out, lse = canonical_ops.sdpa(**values)
    grad = torch.randn(out.shape, generator=generator()).to(out.dtype)
    mask_grad = mask is not None and mask.is_floating_point()
    return {**values, "grad_out": grad, "out": out, "lse": lse, "mask_grad": mask_grad}


def assert_equals_reference(values: dict[str, Any]) -> None:
    results = simulated(BACKWARD, values)
    expected = canonical_ops.sdpa_backward(**values)
    for result, wanted in zip(results, expected, strict=True):
        rtol, atol = (1.6e-2, 3e-2) if wanted.dtype == torch.bfloat16 else (2e-5, 1e-5)
        torch.testing.assert_close(result, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(20, 30), (1, 20, 30), (6, 20, 30), (3, 1, 20, 30), (1, 6, 20, 30), (3, 6, 20, 30)]
)
def test_mask_gradients_are_summed_over_what_shares_the_mask(
    shape: tuple[int, ...], causal: bool
) -> None:
    mask = torch.randn(shape, generator=generator())
    assert_equals_reference(inputs(3, 6, 20, 30, 32, mask=mask, causal=causal))


@pytest.mark.parametrize("sources", [1, 2])
def test_mask_gradients_of_grouped_heads(sources: int) -> None:
    mask = torch.randn(1, 1, 130, 140, generator=generator())
    assert_equals_reference(inputs(2, 4, 130, 140, 16, mask=mask, sources=sources))


def test_mask_gradients_are_summed_in_float32() -> None:
    mask = torch.randn(40, 50, generator=generator()).bfloat16()
    assert_equals_reference(inputs(2, 3, 40, 50, 16, mask=mask, dtype=torch.bfloat16))


def test_keys_after_the_last_query_have_no_gradient() -> None:
    values = inputs(1, 2, 30, 1100, 8, causal=True)
    assert_equals_reference(values)
    mask = torch.randn(30, 1100, generator=generator())
    assert_equals_reference(inputs(1, 2, 30, 1100, 8, mask=mask, causal=True))


@pytest.mark.parametrize("width", [96, 160, 256])
def test_wide_heads(width: int) -> None:
    assert_equals_reference(inputs(1, 2, 140, 300, width, causal=True))


def test_narrow_heads_are_padded() -> None:
    assert_equals_reference(inputs(2, 5, 11, 13, 3, values=37))


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_long_sequences_fit(target: str) -> None:
    for length, depth in ((128, 5000), (5000, 130)):
        program = traced(BACKWARD, inputs(1, 1, length, depth, 128), target)
        assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes
        assert program.peak_psum_bytes <= hardware(target).psum_partition_bytes


@pytest.mark.parametrize("shape", [(1, 30), (20, 1), (2, 1, 1, 30)])
def test_sums_over_queries_or_keys_are_refused(shape: tuple[int, ...]) -> None:
    values = inputs(2, 2, 20, 30, 8, mask=torch.randn(shape, generator=generator()))
    refusal = BACKWARD.supports(bindings(values), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert "summed over queries or keys" in refusal.reason


def test_other_dtypes_of_the_saved_tensors_are_refused() -> None:
    values = inputs(1, 2, 4, 5, 8)
    for name, dtype in (("lse", torch.float64), ("out", torch.bfloat16)):
        odd = values | {name: values[name].to(dtype)}
        refusal = BACKWARD.supports(bindings(odd), hardware("trn2"))
        assert isinstance(refusal, Reject)
        assert name in refusal.reason
