"""The attention kernels, simulated, against torch's composite and its autograd; plus refusals,
traffic, capacity and instruction counts that are special to attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launched import bindings, simulated, traced

from trnx.nki_kernels import canonical_ops, registry
from trnx.nki_kernels.kernels.attention._host import make_inputs
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware

FORWARD = registry.kernels()["sdpa"]
BACKWARD = registry.kernels()["sdpa_backward"]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "bool mask": {"mask": "bool"},
    "bool mask, causal": {"mask": "bool", "causal": True},
    "rows that see nothing": {"mask": "hidden"},
    "bias": {"mask": "bias"},
    "bias, causal": {"mask": "bias", "causal": True},
    "dropout": {"dropout_p": 0.3},
    "dropout, bool mask, causal": {"dropout_p": 0.3, "mask": "bool", "causal": True},
    "grouped": {"sources": 2},
    "grouped, bias": {"sources": 1, "mask": "bias"},
    "wider values": {"values": 40},
}
# batch, heads, queries, keys, width: heads side by side, ragged rows, and several tiles of keys
SHAPES = [(2, 6, 20, 20, 16), (1, 2, 130, 70, 24), (1, 2, 9, 520, 8)]
TOLERANCES = {
    torch.float32: (2e-5, 4e-6),
    torch.bfloat16: (1.6e-2, 2e-2),
    torch.float16: (2e-3, 2e-3),
}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def composite(values: dict[str, Any]) -> torch.Tensor:
    """Torch's composite; dropout, and a mask together with causal, in plain ops."""
    q, k, v, mask = (values[name] for name in ("q", "k", "v", "attn_mask"))
    causal = values["is_causal"]
    shape = (q.shape[2], k.shape[2])
    if causal and mask is not None:
        below, causal = torch.ones(shape, dtype=torch.bool).tril(), False
        mask = mask & below if mask.dtype == torch.bool else mask.masked_fill(~below, -torch.inf)
    if values["dropout_mask"] is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=values["scale"], enable_gqa=True
        )
    scores = (q.float() @ k.float().mT) * values["scale"]
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    kept = values["dropout_mask"] / (1.0 - values["dropout_p"])
    return ((scores.softmax(-1) * kept) @ v.float()).to(q.dtype)


def assert_close(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for result, wanted in zip(results, expected, strict=True):
        rtol, atol = TOLERANCES[wanted.dtype]
        largest = max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(result, wanted, rtol=rtol, atol=atol * largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_equal_torch(
    case: str, shape: tuple[int, int, int, int, int], dtype: torch.dtype
) -> None:
    values = make_inputs(generator(), *shape, dtype=dtype, **CASES[case])
    mask = values["attn_mask"]
    mask_grad = mask is not None and mask.is_floating_point()
    leaves = [values[name] for name in ("q", "k", "v")] + ([mask] if mask_grad else [])
    for leaf in leaves:
        leaf.requires_grad_()
    expected = composite(values)
    grad = torch.randn(expected.shape, generator=generator()).to(dtype)
    wanted = torch.autograd.grad(expected, leaves, grad)
    for leaf in leaves:
        leaf.requires_grad_(False)

    out, lse = simulated(FORWARD, values, "trn2")
    assert_close([out], [expected.detach()])
    more = {"grad_out": grad, "out": out, "lse": lse, "mask_grad": mask_grad}
    gradients = simulated(BACKWARD, {**values, **more}, "trn2")
    assert len(gradients) == 4
    assert_close(gradients[: len(leaves)], wanted)


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("depth", [1, 2, 128, 129, 513])
def test_ragged_lengths(length: int, depth: int) -> None:
    values = make_inputs(generator(), 1, 3, length, depth, 8, causal=True)
    out, lse = simulated(FORWARD, values, "trn1")
    expected, expected_lse = canonical_ops.sdpa(**values)
    assert_close([out, lse], [expected, expected_lse])


@pytest.mark.parametrize("width", [8, 32, 40, 64, 80])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_slots_are_row_tiles_of_every_generation(target: str, width: int) -> None:
    values = make_inputs(generator(), 3, 5, 30, 33, width, mask="bool")
    assert_close(simulated(FORWARD, values, target), canonical_ops.sdpa(**values))


def test_operands_may_have_any_strides() -> None:
    values = make_inputs(generator(), 2, 4, 12, 12, 16)
    fused = torch.randn(2, 12, 3 * 64, generator=generator())
    q, k, v = (part.view(2, 12, 4, 16).transpose(1, 2) for part in fused.chunk(3, -1))
    mask = torch.randn(2, 1, 1, 12, generator=generator()).expand(2, 4, 12, 12)
    values |= {"q": q, "k": k, "v": v, "attn_mask": mask}
    out, _ = simulated(FORWARD, values, "trn2")
    assert_close([out], [composite(values)])


@pytest.mark.parametrize(
    "shape", [(7, 9), (1, 9), (7, 1), (1, 1), (1, 1, 7, 9), (3, 1, 1, 9), (2, 7, 9)]
)
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_broadcast(shape: tuple[int, ...], boolean: bool) -> None:
    values = make_inputs(generator(), 3, 2, 7, 9, 8)
    mask = torch.randn(shape, generator=generator())
    values["attn_mask"] = mask > -0.5 if boolean else mask
    out, _ = simulated(FORWARD, values, "trn2")
    assert_close([out], [composite(values)])


def test_lowest_float_bias_attends_evenly_where_nothing_else_is_left() -> None:
    values = make_inputs(generator(), 1, 2, 5, 6, 8)
    mask = torch.zeros(5, 6)
    mask[1] = torch.finfo(torch.float32).min
    mask[2] = -torch.inf
    values["attn_mask"] = mask
    out, _ = simulated(FORWARD, values, "trn2")
    assert_close([out], [composite(values)])
    assert_close([out[0, 0, 1]], [values["v"][0, 0].mean(0)])
    assert not out[0, 0, 2].any()


def test_large_scores_do_not_overflow() -> None:
    values = make_inputs(generator(), 1, 2, 40, 600, 16)
    values["q"] = values["q"] * 300.0
    out, lse = simulated(FORWARD, values, "trn2")
    expected, expected_lse = canonical_ops.sdpa(**values)
    assert_close([out, lse], [expected, expected_lse])


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("case", ["plain", "causal", "bias", "dropout"])
@pytest.mark.parametrize("sizes", [(1, 2, 200, 200, 96), (2, 4, 40, 40, 24), (2, 3, 130, 130, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scores_whose_scale_rounds_by_more_than_an_exponential_takes(
    dtype: torch.dtype, sizes: tuple[int, int, int, int, int], case: str, target: str
) -> None:
    """Neighbouring numbers of the size of the scores are hundreds apart."""
    values = make_inputs(generator(), *sizes, **CASES[case], dtype=dtype)
    for name in ("q", "k"):
        values[name] = (values[name].float() * 4e4).clamp(-6e4, 6e4).to(dtype)
    out, lse = simulated(FORWARD, values, target)
    expected, expected_lse = canonical_ops.sdpa(**values)
    assert expected_lse.abs().max() > 2e9
    assert_close([out, lse], [expected, expected_lse])


@pytest.mark.parametrize("depth", [1, 40, 130, 600])
@pytest.mark.parametrize("case", ["plain", "bool mask", "bias", "dropout"])
def test_one_query_of_grouped_heads(case: str, depth: int) -> None:
    values = make_inputs(generator(), 2, 12, 1, depth, 32, sources=3, **CASES[case])
    out, lse = simulated(FORWARD, values, "trn2")
    assert_close([out, lse], canonical_ops.sdpa(**values))


def test_decoding_of_grouped_heads_takes_one_tile_a_group() -> None:
    program = traced(FORWARD, make_inputs(generator(), 1, 32, 1, 512, 128, sources=8))
    exponentials, logarithms, tables = 8, 1, 2
    assert program.rows.opcode_counts()["activation"] == exponentials + logarithms + tables


def test_heads_share_instructions() -> None:
    """A sentence-embedding block: 8 sentences of 32 tokens, 12 heads."""
    program = traced(FORWARD, make_inputs(generator(), 8, 12, 32, 32, 32, mask="bool"))
    assert program.instruction_count <= 6 * 8 * 12
    counts = program.rows.opcode_counts()
    assert counts["nc_matmul"] == 2 * 8 * 12


@pytest.mark.parametrize("causal", [True, False])
def test_keys_are_loaded_once_for_a_group(causal: bool) -> None:
    values = make_inputs(generator(), 1, 4, 300, 600, 64, sources=1, causal=causal)
    program = traced(FORWARD, values)
    assert program.hbm_bytes == FORWARD.cost(bindings(values)).hbm_bytes


def test_tiles_above_the_diagonal_are_skipped() -> None:
    full = traced(FORWARD, make_inputs(generator(), 1, 1, 2048, 2048, 64))
    half = traced(FORWARD, make_inputs(generator(), 1, 1, 2048, 2048, 64, causal=True))
    assert half.matmul_flops < 0.6 * full.matmul_flops


@pytest.mark.parametrize("target", ["trn1", "trn3"])
@pytest.mark.parametrize("width", [64, 256])
def test_long_sequences_fit(target: str, width: int) -> None:
    for length, depth in ((128, 20000), (6000, 513)):
        values = make_inputs(generator(), 1, 1, length, depth, width)
        program = traced(FORWARD, values, target)
        assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes
        assert program.peak_psum_bytes <= hardware(target).psum_partition_bytes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": -1.0}, "scale"),
        ({"scale": float("inf")}, "scale"),
        ({"q": torch.zeros(2, 3, 4)}, "dimensions"),
        ({"q": torch.zeros(1, 4, 0, 8)}, "empty"),
        ({"q": torch.zeros(1, 3, 4, 8)}, "multiple"),
        ({"q": torch.zeros(1, 4, 4, 9)}, "fit together"),
        ({"q": torch.zeros(1, 4, 4, 8).bfloat16()}, "float32"),
        ({"q": torch.zeros(1, 4, 4, 300), "k": torch.zeros(1, 2, 5, 300)}, "300"),
        ({"v": torch.zeros(1, 2, 5, 131)}, "even"),
        ({"attn_mask": torch.zeros(4, 5).double()}, "float64"),
        ({"attn_mask": torch.zeros(4, 6)}, "broadcast"),
        ({"dropout_mask": torch.zeros(1, 4, 4, 5)}, "bool"),
        ({"dropout_mask": torch.zeros(4, 5, dtype=torch.bool)}, "shape"),
    ],
)
def test_refusals_name_the_limit(change: dict[str, Any], words: str) -> None:
    values = make_inputs(generator(), 1, 4, 4, 5, 8, sources=2)
    refusal = FORWARD.supports(bindings(values | change), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert words in refusal.reason
