"""The kernel of attention of long sequences: where it is chosen, its values and its traffic."""

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

BF16 = torch.bfloat16
# The second one begins with scores as they are.
KERNELS = ("long_kernel", "direct_kernel")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def attended(
    forward: Any, values: dict[str, Any], target: str = "trn2"
) -> tuple[torch.Tensor, torch.Tensor]:
    assert forward.kernel(values, target) in KERNELS
    out, lse = forward.run(values, target)
    return out, lse


def assert_right(forward: Any, values: dict[str, Any], target: str = "trn2") -> None:
    """The sums are of weights as they are rounded: each is off by half a unit at most."""
    out, lse = attended(forward, values, target)
    assert out.dtype is values["q"].dtype
    forward.assert_within_twice_of_eager(values, out)
    unit = torch.finfo(out.dtype).eps / 2
    torch.testing.assert_close(lse, canonical_ops.sdpa(**values)[1], rtol=2e-5, atol=unit)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_values(forward: Any, dtype: torch.dtype, causal: bool, target: str) -> None:
    values = make_inputs(generator(), 2, 2, 640, 640, 64, sources=1, dtype=dtype, causal=causal)
    assert_right(forward, values, target)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [1, 40, 96, 128, 192, 256])
def test_values_of_every_width(forward: Any, width: int, causal: bool) -> None:
    values = make_inputs(generator(), 1, 1, 640, 768, width, dtype=BF16, causal=causal)
    assert_right(forward, values)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "depth"), [(512, 512), (1152, 640), (640, 1152), (1024, 512)])
def test_other_lengths_of_queries_and_keys(
    forward: Any, length: int, depth: int, causal: bool
) -> None:
    values = make_inputs(generator(), 1, 2, length, depth, 32, dtype=BF16, causal=causal)
    assert_right(forward, values)


def test_values_wider_than_queries(forward: Any) -> None:
    values = make_inputs(generator(), 1, 2, 512, 512, 32, values=256, dtype=BF16, causal=True)
    assert_right(forward, values)


@pytest.mark.parametrize("causal", [True, False])
def test_heads_of_several_groups_and_batch_entries(forward: Any, causal: bool) -> None:
    values = make_inputs(generator(), 2, 6, 512, 512, 16, sources=2, dtype=BF16, causal=causal)
    assert_right(forward, values)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_large_scores(forward: Any, dtype: torch.dtype, causal: bool) -> None:
    """Logits of 1e4 for some keys and queries, of -1e4 for others: no row overflows or vanishes."""
    values = make_inputs(generator(), 1, 2, 512, 768, 32, dtype=dtype, causal=causal)
    values["k"][:, :, 100:300] *= 400
    values["q"][:, :, 200:400] *= 20
    values["k"][:, 1, 400:] = -values["q"][:, 1, :1] * 1000
    out, lse = attended(forward, values)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    forward.assert_within_twice_of_eager(values, out)


@pytest.mark.parametrize("mask", ["", "keys"])
@pytest.mark.parametrize("scale", [1e-38, 1e-29, 0.09, 3.0])
def test_the_diagonal_of_wide_heads(forward: Any, scale: float, mask: str) -> None:
    """Its scores are kept, but where scaling would lift what stands for hidden ones."""
    sizes = (2, 2, 640, 640, 128)
    values = make_inputs(generator(), *sizes, sources=1, dtype=BF16, causal=True, mask=mask)
    values["scale"] = scale
    if mask:
        values["attn_mask"][1] = False
    assert_right(forward, values)


def test_keys_on_the_diagonal_that_are_no_numbers(forward: Any) -> None:
    dtype = torch.float16
    values = make_inputs(generator(), 1, 1, 640, 640, 128, dtype=dtype, causal=True)
    clean, _ = attended(forward, values)
    values["k"][0, 0, 560, 3] = math.nan
    values["k"][0, 0, 600, 5] = math.inf
    out, _ = attended(forward, values)
    torch.testing.assert_close(out[:, :, :560], clean[:, :, :560], rtol=0, atol=0)
    assert torch.equal(out.isnan(), canonical_ops.sdpa(**values)[0].isnan())


def test_large_scores_on_the_diagonal(forward: Any) -> None:
    values = make_inputs(generator(), 1, 1, 640, 640, 128, dtype=BF16, causal=True)
    values["q"] *= torch.linspace(1, 300, 640).view(-1, 1).to(BF16)
    assert_right(forward, values)


def test_scores_above_those_of_hidden_keys_do_not_vanish(forward: Any) -> None:
    """What a query must not see is far above all that it sees."""
    values = make_inputs(generator(), 1, 1, 512, 512, 16, dtype=BF16, causal=True)
    values["q"].abs_()
    values["k"].abs_()
    values["k"] *= torch.linspace(1, 3000, 512).view(-1, 1).to(BF16)
    assert_right(forward, values)


def test_keys_that_are_no_numbers_reach_only_those_who_see_them(forward: Any) -> None:
    dtype = torch.float16
    values = make_inputs(generator(), 1, 1, 640, 640, 16, dtype=dtype, causal=True)
    clean, _ = attended(forward, values)
    values["k"][0, 0, 200, 3] = math.nan
    out, lse = attended(forward, values)
    torch.testing.assert_close(out[:, :, :200], clean[:, :, :200], rtol=0, atol=0)
    assert lse[:, :, :200].isfinite().all()
    wanted = canonical_ops.sdpa(**values)[0]
    assert torch.equal(out.isnan(), wanted.isnan())


@pytest.mark.parametrize("scale", [1e-38, 3.0])
def test_any_scale(forward: Any, scale: float) -> None:
    values = make_inputs(generator(), 1, 1, 512, 512, 16, dtype=BF16, causal=True)
    values["scale"] = scale
    assert_right(forward, values)


@pytest.mark.parametrize("window", [1, 100, 128, 129, 257, 513])
def test_windows(forward: Any, window: int) -> None:
    values = make_inputs(generator(), 1, 1, 1024, 1024, 16, dtype=BF16, causal=True, window=window)
    assert_right(forward, values)


@pytest.mark.parametrize(("length", "depth", "window"), [(512, 1152, 200), (1152, 640, 600)])
def test_windows_of_other_lengths(forward: Any, length: int, depth: int, window: int) -> None:
    sizes = (1, 2, length, depth, 32)
    values = make_inputs(generator(), *sizes, sources=1, dtype=BF16, causal=True, window=window)
    assert_right(forward, values)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 150)])
def test_padding(forward: Any, causal: bool, window: int, target: str) -> None:
    """Queries that see nothing give 0, as where a whole batch entry is padding."""
    sizes = (2, 2, 512, 640, 32)
    values = make_inputs(
        generator(), *sizes, sources=1, dtype=BF16, causal=causal, window=window, mask="keys"
    )
    values["attn_mask"][1] = False
    assert_right(forward, values, target)
    out, lse = attended(forward, values, target)
    assert not out[1].any()
    assert not lse[1].any()
    if causal:
        assert not out[0, :, :160].any()


def test_padding_that_is_expanded_to_all_queries(forward: Any) -> None:
    values = make_inputs(generator(), 2, 2, 512, 512, 16, dtype=BF16, mask="keys")
    values["attn_mask"] = values["attn_mask"].expand(2, 2, 512, 512)
    assert_right(forward, values)


@pytest.mark.parametrize("scale", [1e-38, 0.2, 3.0])
def test_large_scores_of_padding(forward: Any, scale: float) -> None:
    """What is hidden is far above all that is seen, and overflows if it is not hidden first."""
    values = make_inputs(generator(), 2, 1, 512, 512, 32, dtype=BF16, causal=True, mask="keys")
    values["k"] *= values["attn_mask"].mT.where(values["attn_mask"].mT, 500)
    values["scale"] = scale
    assert_right(forward, values)


def test_operands_may_have_any_strides(forward: Any) -> None:
    values = make_inputs(generator(), 1, 2, 512, 512, 16, dtype=BF16, causal=True)
    both = torch.randn(1, 512, 2, 2, 16, generator=generator()).to(BF16)
    values |= {"k": both[:, :, 0].transpose(1, 2), "v": both[:, :, 1].transpose(1, 2)}
    assert_right(forward, values)


@pytest.mark.parametrize(
    ("change", "target", "chosen"),
    [
        ({}, "trn2", True),
        ({}, "trn3", True),
        ({}, "trn1", False),
        ({"dtype": torch.float32}, "trn2", False),
        ({"length": 513}, "trn2", False),
        ({"depth": 639}, "trn2", False),
        ({"length": 384}, "trn2", True),
        ({"length": 384, "mask": "keys"}, "trn2", False),
        ({"dropout_p": 0.1}, "trn2", False),
        ({"mask": "bool"}, "trn2", False),
        ({"mask": "keys"}, "trn2", True),
        ({"mask": "keys"}, "trn1", False),
        ({"causal": True, "window": 100}, "trn2", True),
        ({"depth": 32768}, "trn2", False),
        ({"depth": 32768, "causal": True, "window": 4096}, "trn2", True),
        ({"depth": 32768, "causal": True, "window": 12000}, "trn2", False),
        ({"depth": 15360, "causal": True, "window": 12000}, "trn2", True),
        ({"length": 4096, "heads": 1024, "sources": 1, "width": 8}, "trn2", False),
        ({"depth": 15360}, "trn2", True),
    ],
)
def test_where_it_is_chosen(
    forward: Any, change: dict[str, Any], target: str, chosen: bool
) -> None:
    sizes = {"batch": 1, "heads": 1, "length": 512, "depth": 512, "width": 128, "dtype": BF16}
    values = make_inputs(generator(), **(sizes | change))
    assert (forward.kernel(values, target) in KERNELS) is chosen


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("width", [128, 256])
def test_keys_are_loaded_once_and_fit(forward: Any, width: int, dtype: torch.dtype) -> None:
    values = make_inputs(generator(), 2, 4, 512, 8192, width, sources=2, dtype=dtype)
    program = forward.traced(values)
    assert forward.profile(values).hbm_bytes == forward.spec.cost(bindings(values)).hbm_bytes
    assert program.peak_sbuf_bytes <= hardware("trn2").sbuf_partition_bytes
    assert program.peak_psum_bytes <= hardware("trn2").psum_partition_bytes


@pytest.mark.parametrize(
    ("dtype", "other"), [(BF16, "streamed_kernel"), (torch.float16, "sdpa_kernel")]
)
@pytest.mark.parametrize(("depth", "width"), [(15488, 128), (12416, 192), (10368, 256)])
def test_the_longest_causal_heads_fit(
    forward: Any, depth: int, width: int, dtype: torch.dtype, other: str
) -> None:
    """The most keys that the kernel takes, and another head that is loaded meanwhile."""
    values = make_inputs(generator(), 1, 2, depth, depth, width, dtype=dtype, causal=True)
    # Of wider heads in bfloat16, streams leave room for what is kept of each block of queries.
    assert forward.kernel(values) in (*KERNELS, "streamed_kernel" if dtype == BF16 else "")
    more = make_inputs(generator(), 1, 2, 128 * 5, depth + 128, width, dtype=dtype, causal=True)
    assert forward.kernel(more) == other
    program = forward.traced(values)
    assert program.peak_sbuf_bytes <= hardware("trn2").sbuf_partition_bytes
    assert program.peak_psum_bytes <= hardware("trn2").psum_partition_bytes


@pytest.mark.parametrize(("length", "depth", "window"), [(1024, 1664, 100), (2048, 2048, 257)])
@pytest.mark.parametrize("masked", [False, True])
def test_windows_of_many_keys(
    forward: Any, length: int, depth: int, window: int, masked: bool
) -> None:
    """Each group loads what it sees."""
    options: dict[str, Any] = {"causal": True, "window": window, "mask": "keys" if masked else ""}
    values = make_inputs(generator(), 2, 2, length, depth, 32, sources=1, dtype=BF16, **options)
    assert forward.kernel(values) == "long_kernel"
    out, _ = forward.run(values)
    forward.assert_within_twice_of_eager(values, out)


@pytest.mark.parametrize(
    ("length", "depth", "window", "mask"),
    [(8192, 14848, 6500, ""), (8192, 32768, 4500, "keys"), (8192, 15360, 12000, "")],
)
def test_the_longest_windows_fit(
    forward: Any, length: int, depth: int, window: int, mask: str
) -> None:
    options: dict[str, Any] = {"causal": True, "window": window, "mask": mask}
    values = make_inputs(generator(), 1, 2, length, depth, 128, dtype=BF16, **options)
    assert forward.kernel(values) == "long_kernel"
    program = forward.traced(values)
    assert program.peak_sbuf_bytes <= hardware("trn2").sbuf_partition_bytes
    assert program.peak_psum_bytes <= hardware("trn2").psum_partition_bytes


def test_a_window_costs_what_it_shows(forward: Any) -> None:
    """With 512 of 4,096 keys a query sees a quarter of what it sees on average without."""
    dtype = torch.float16
    values = make_inputs(torch.Generator(), 1, 2, 4096, 4096, 128, dtype=dtype, causal=True)
    whole = predicted_seconds(forward.traced(values), hardware("trn2"))
    part = predicted_seconds(forward.traced(values | {"window": 512}), hardware("trn2"))
    assert part < 0.4 * whole


def test_a_window_of_a_long_context_costs_what_it_shows(forward: Any) -> None:
    """Twice as many queries as 8,192 take twice the time."""
    seconds = []
    for length in (8192, 16384):
        options: dict[str, Any] = {"dtype": BF16, "causal": True, "window": 1024}
        values = make_inputs(torch.Generator(), 1, 1, length, length, 128, **options)
        seconds.append(predicted_seconds(forward.traced(values), hardware("trn2")))
    assert seconds[1] < 2.0 * seconds[0]


def test_padding_costs_little(forward: Any) -> None:
    dtype = torch.float16
    values = make_inputs(torch.Generator(), 1, 2, 2048, 2048, 128, dtype=dtype, mask="keys")
    masked = predicted_seconds(forward.traced(values), hardware("trn2"))
    plain = predicted_seconds(forward.traced(values | {"attn_mask": None}), hardware("trn2"))
    assert masked < 1.1 * plain


@pytest.mark.parametrize(("dtype", "share"), [(BF16, 0.7), (torch.float16, 0.44)])
def test_tensor_engine_is_busy(forward: Any, dtype: torch.dtype, share: float) -> None:
    """At least so much of its peak in the two products, predicted."""
    values = make_inputs(generator(), 1, 4, 2048, 2048, 128, dtype=dtype, causal=True)
    seconds = forward.profile(values).total_seconds
    flops = 4 * 4 * 2048 * 2048 / 2 * 128
    assert flops / seconds >= share * hardware("trn2").peak_bf16_flops


@pytest.mark.parametrize("width", [64, 128])
def test_scores_on_the_diagonal_are_computed_once(forward: Any, width: int) -> None:
    """A window that hides nothing has the same work, but for those."""
    dtype = torch.float16
    values = make_inputs(generator(), 1, 1, 2048, 2048, width, dtype=dtype, causal=True)
    once = sum(forward.traced(values).rows.flops)
    twice = sum(forward.traced(values | {"window": 2048}).rows.flops)
    assert once < twice - 3 * 2 * 10 * 128 * 128 * width
