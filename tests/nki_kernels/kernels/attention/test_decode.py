"""The kernel of attention with few queries: when it is chosen, its values, traffic and capacity."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from launched import bindings

from trnx.nki_kernels import canonical_ops
from trnx.nki_kernels.kernels.attention._host import make_inputs
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

TARGETS = ("trn1", "trn2", "trn3")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def decoded(
    forward: Any, values: dict[str, Any], target: str = "trn2"
) -> tuple[torch.Tensor, torch.Tensor]:
    assert forward.kernel(values, target) == "decode_kernel"
    out, lse = forward.run(values, target)
    return out, lse


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("depth", [1024, 1025, 1151, 1152])
def test_values_on_ragged_keys(forward: Any, depth: int, target: str) -> None:
    values = make_inputs(generator(), 2, 8, 1, depth, 32, sources=2)
    out, lse = decoded(forward, values, target)
    forward.assert_within_twice_of_eager(values, out)
    torch.testing.assert_close(lse, canonical_ops.sdpa(**values)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 16, 64, 128, 192, 256])
def test_values_of_every_width(forward: Any, width: int, dtype: torch.dtype) -> None:
    values = make_inputs(generator(), 1, 6, 2, 1100, width, sources=2, dtype=dtype)
    out, _ = decoded(forward, values)
    assert out.dtype is dtype
    forward.assert_within_twice_of_eager(values, out)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("mask", ["bool", "hidden", "bias"])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_masks(forward: Any, length: int, mask: str, target: str) -> None:
    values = make_inputs(generator(), 2, 6, length, 1155, 24, sources=2, mask=mask)
    out, lse = decoded(forward, values, target)
    forward.assert_within_twice_of_eager(values, out)
    torch.testing.assert_close(lse, canonical_ops.sdpa(**values)[1], rtol=2e-5, atol=4e-6)


def test_rows_of_minus_infinity_and_of_the_lowest_float(forward: Any) -> None:
    values = make_inputs(generator(), 1, 4, 1, 1100, 16)
    mask = torch.randn(1, 4, 1, 1100, generator=generator())
    mask[:, 0] = -math.inf
    mask[:, 1] = torch.finfo(torch.float32).min
    mask[:, 2, :, :1024] = -math.inf
    values["attn_mask"] = mask
    out, lse = decoded(forward, values)
    assert not out[0, 0].any()
    assert lse[0, 0] == 0.0
    torch.testing.assert_close(out[0, 1, 0], values["v"][0, 1].mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out[0, 2:], canonical_ops.sdpa(**values)[0][0, 2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_scores_of_many_keys(forward: Any, dtype: torch.dtype) -> None:
    """Logits of 1e4 in one run of keys, of -1e4 in another: no row overflows or vanishes."""
    values = make_inputs(generator(), 1, 2, 1, 8333, 16, dtype=dtype)
    values["k"][:, 0, 5000:] *= 2000
    values["k"][:, 1] = -values["q"][:, 1] * 3000
    out, lse = decoded(forward, values)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    forward.assert_within_twice_of_eager(values, out)


def test_thirty_two_thousand_keys_of_equal_weight(forward: Any) -> None:
    values = make_inputs(generator(), 1, 1, 1, 32768, 8, dtype=torch.bfloat16)
    values["q"].zero_()
    out, lse = decoded(forward, values)
    forward.assert_within_twice_of_eager(values, out)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(32768)))


def test_operands_may_have_any_strides(forward: Any) -> None:
    values = make_inputs(generator(), 2, 4, 2, 1030, 16)
    cache = torch.randn(2, 1030, 2, 4, 16, generator=generator())
    values |= {"k": cache[:, :, 0].transpose(1, 2), "v": cache[:, :, 1].transpose(1, 2)}
    out, _ = decoded(forward, values)
    forward.assert_within_twice_of_eager(values, out)


@pytest.mark.parametrize(
    ("change", "target", "chosen"),
    [
        ({}, "trn1", True),
        ({"length": 9}, "trn2", False),
        ({"causal": True}, "trn2", False),
        ({"dropout_p": 0.1}, "trn2", False),
        ({"depth": 1023}, "trn2", False),
        ({"heads": 256}, "trn2", False),
        ({"mask": "bool"}, "trn1", False),
        ({"mask": "bool"}, "trn3", True),
    ],
)
def test_where_it_is_chosen(
    forward: Any, change: dict[str, Any], target: str, chosen: bool
) -> None:
    sizes = {"batch": 1, "heads": 4, "length": 1, "depth": 1024, "width": 8, "sources": 1}
    values = make_inputs(generator(), **(sizes | change))
    assert (forward.kernel(values, target) == "decode_kernel") is chosen


@pytest.mark.parametrize("target", TARGETS)
def test_keys_are_loaded_once_and_fit(forward: Any, target: str) -> None:
    values = make_inputs(generator(), 2, 32, 4, 8200, 128, sources=1, dtype=torch.bfloat16)
    program = forward.traced(values, target)
    assert program.hbm_bytes == forward.spec.cost(bindings(values)).hbm_bytes
    assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes
    assert program.peak_psum_bytes <= hardware(target).psum_partition_bytes


@pytest.mark.parametrize("depth", [2048, 4096])
def test_keys_arrive_without_a_break(forward: Any, depth: int) -> None:
    """At least 75 % of the DMA rate, predicted, for keys in one piece and in several."""
    values = make_inputs(generator(), 4, 32, 1, depth, 128, sources=8, dtype=torch.bfloat16)
    program = forward.traced(values)
    seconds = predicted_seconds(program, hardware("trn2"))
    assert program.hbm_bytes >= 0.75 * seconds * hardware("trn2").dma_bytes_per_second
