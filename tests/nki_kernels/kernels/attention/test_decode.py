"""The kernel of attention with few queries: when it is chosen, its values, traffic and capacity."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from launched import bindings

from trnx.nki_kernels import canonical_ops
from trnx.nki_kernels.kernels.attention._host import make_inputs
from trnx.simulator import simulate, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import predicted_seconds

TARGETS = ("trn1", "trn2", "trn3")
TWO = replace(hardware("trn2"), cores=2)


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


def by_keys(forward: Any, values: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Both cores of a logical one share the keys of each head."""
    (launch,) = forward.spec.other_launches(bindings(values), TWO)
    assert (launch.kernel.__name__, launch.grid, launch.cores) == ("decode_kernel", 2, 2)
    names = iter(launch.tensor_names)
    operands = [values[next(names)] if isinstance(a, TensorSpec) else a for a in launch.arguments]
    out, lse = simulate(launch.kernel, grid=2)(*operands)
    return out, lse


@pytest.mark.parametrize("mask", ["", "bool", "hidden", "bias"])
@pytest.mark.parametrize(
    ("batch", "heads", "length", "depth", "width", "sources"),
    [
        (1, 4, 1, 1155, 24, 1),
        (3, 2, 3, 1024, 32, 1),
        (1, 6, 1, 8333, 16, 3),
        (1, 2, 2, 1100, 256, 1),
    ],
)
def test_two_cores_share_the_keys_of_odd_heads(
    forward: Any, batch: int, heads: int, length: int, depth: int, width: int, sources: int,
    mask: str,
) -> None:  # fmt: skip
    sizes = (batch, heads, length, depth, width)
    values = make_inputs(generator(), *sizes, sources=sources, mask=mask, dtype=torch.bfloat16)
    out, lse = by_keys(forward, values)
    forward.assert_within_twice_of_eager(values, out)
    torch.testing.assert_close(lse, canonical_ops.sdpa(**values)[1], rtol=2e-5, atol=4e-6)


def test_a_core_may_see_no_key(forward: Any) -> None:
    values = make_inputs(generator(), 1, 4, 1, 2048, 16, sources=1)
    mask = torch.zeros(1, 4, 1, 2048)
    mask[:, 0], mask[:, 1, :, :1500], mask[:, 2, :, 100:] = -math.inf, -math.inf, -math.inf
    values["attn_mask"] = mask
    out, lse = by_keys(forward, values)
    assert not out[0, 0].any()
    assert lse[0, 0] == 0.0
    expected, logs = canonical_ops.sdpa(**values)
    torch.testing.assert_close(out[0, 1:], expected[0, 1:])
    torch.testing.assert_close(lse, logs)


@pytest.mark.parametrize(("depth", "least"), [(8192, 1.05), (32768, 1.3)])
def test_two_cores_take_less_for_many_keys_of_one_head(
    forward: Any, depth: int, least: float
) -> None:
    values = make_inputs(generator(), 1, 8, 1, depth, 128, sources=1, dtype=torch.bfloat16)
    (launch,) = forward.spec.other_launches(bindings(values), TWO)
    program = trace(launch.kernel, launch.arguments, target="trn2", grid=2, values=False)
    one = predicted_seconds(forward.traced(values), hardware("trn2"))
    assert one >= least * predicted_seconds(program, TWO)


@pytest.mark.parametrize(("heads", "sources"), [(8, 2), (2, 2)])
def test_even_heads_have_no_other_shares(forward: Any, heads: int, sources: int) -> None:
    values = make_inputs(generator(), 1, heads, 1, 2048, 16, sources=sources)
    assert not list(forward.spec.other_launches(bindings(values), TWO))


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
