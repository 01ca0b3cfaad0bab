"""Attention of more keys than SBUF holds: where its kernel is chosen, what it gives with spans of
few keys, and what of SBUF it takes with many."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import canonical_ops
from trnx.nki_kernels.kernels.attention._host import make_inputs

BF16 = torch.bfloat16
SPAN = 512
Results = tuple[torch.Tensor, torch.Tensor]


def inputs(*sizes: int, **options: Any) -> dict[str, Any]:
    """Of sizes B, H, L, S and d."""
    batch, heads, length, depth, width = sizes
    generator = torch.Generator().manual_seed(5)
    return make_inputs(generator, batch, heads, length, depth, width, dtype=BF16, **options)


def kernel_of(forward: Any) -> Any:
    return forward.launched(inputs(1, 1, 256, 32768, 128)).kernel


def run(forward: Any, values: dict[str, Any], target: str = "trn2", cores: int = 1) -> Results:
    """With spans of `SPAN` keys."""
    tensors = (values["q"], values["k"], values["v"])
    simulated = simulator.simulate(kernel_of(forward), target=target, grid=cores)
    out, lse = simulated(*tensors, values["is_causal"], values["scale"], SPAN, True, cores)
    return out, lse


def assert_right(forward: Any, values: dict[str, Any], results: Results) -> None:
    out, lse = results
    forward.assert_within_twice_of_eager(values, out)
    unit = torch.finfo(BF16).eps / 2
    torch.testing.assert_close(lse, canonical_ops.sdpa(**values)[1], rtol=2e-5, atol=unit)


@pytest.mark.parametrize(
    ("change", "target", "kernel"),
    [
        ({}, "trn2", "streamed_kernel"),
        ({}, "trn3", "streamed_kernel"),
        ({}, "trn1", "sdpa_kernel"),
        ({"depth": 15360}, "trn2", "direct_kernel"),
        ({"depth": 16384}, "trn2", "streamed_kernel"),
        ({"depth": 131072}, "trn2", "streamed_kernel"),
        ({"width": 64}, "trn2", "streamed_kernel"),
        ({"width": 256}, "trn2", "streamed_kernel"),
        ({"heads": 4, "sources": 1}, "trn2", "streamed_kernel"),
        ({"causal": True}, "trn2", "streamed_kernel"),
        ({"causal": True, "window": 100}, "trn2", "sdpa_kernel"),
        ({"dtype": torch.float16}, "trn2", "sdpa_kernel"),
        ({"mask": "keys"}, "trn2", "sdpa_kernel"),
    ],
)
def test_where_it_is_chosen(forward: Any, change: dict[str, Any], target: str, kernel: str) -> None:
    sizes = {"batch": 1, "heads": 1, "length": 256, "depth": 32768, "width": 128, "dtype": BF16}
    values = make_inputs(torch.Generator(), **(sizes | change))
    assert forward.kernel(values, target) == kernel


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("target", "sizes", "sources"),
    [
        ("trn2", (1, 2, 1152, 1152, 128), 1),
        ("trn3", (1, 2, 1152, 1152, 128), 2),
        ("trn2", (2, 1, 768, 1408, 64), 1),
        ("trn2", (1, 2, 1408, 896, 160), 2),
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_spans_give_what_eager_does(
    forward: Any, target: str, sizes: tuple[int, ...], sources: int, causal: bool, cores: int
) -> None:
    values = inputs(*sizes, sources=sources, causal=causal)
    assert_right(forward, values, run(forward, values, target, cores))


def test_the_same_as_of_keys_that_stay(forward: Any) -> None:
    """Other keys first, so that sums are rounded in another order."""
    values = inputs(1, 2, 1024, 1024, 128, causal=True)
    assert forward.kernel(values) == "direct_kernel"
    for own, other in zip(run(forward, values), forward.run(values), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("shift", "width"), [(-40.0, 64), (3e4, 128), (1e30, 192)])
def test_one_row_out_of_range_is_right(
    forward: Any, shift: float, width: int, causal: bool, cores: int
) -> None:
    values = inputs(1, 2, 640, 1152, width, causal=causal)
    values["q"][0, 1, -1] = 0.0
    values["q"][0, 1, -1, 0] = shift / values["scale"]
    values["k"][..., 0] = 1.0
    assert_right(forward, values, run(forward, values, "trn2", cores))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("key", [0, 511, 512, 1151])
def test_one_large_value_is_found_in_each_span(forward: Any, key: int, cores: int) -> None:
    """Scores of about 50 and such a value overflow, where all is not done again."""
    values = inputs(1, 2, 1152, 1152, 32, causal=True)
    values["q"][..., 0] = 1.0
    values["k"][..., 0] = 50.0 / values["scale"]
    values["q"][..., 1:] /= 4
    values["v"][0, :, key] *= 1e25
    assert_right(forward, values, run(forward, values, "trn2", cores))


@pytest.mark.parametrize(("length", "depth"), [(640, 640), (640, 1152)])
def test_what_is_no_number_stays_with_the_queries_that_see_it(
    forward: Any, length: int, depth: int
) -> None:
    values = inputs(1, 2, length, depth, 64, causal=True)
    values["k"][0, 1, 600, 3] = math.nan
    out, lse = run(forward, values)
    assert not out[0, 0].isnan().any()
    assert torch.equal(out[0, 1].isnan().any(-1), torch.arange(length) >= 600)
    assert torch.equal(lse[0, 1].isnan(), torch.arange(length) >= 600)


@pytest.mark.parametrize("width", [64, 128])
def test_spans_fit_beside_each_other(forward: Any, width: int) -> None:
    """A third more keys take no more but for when spans are loaded; and loads are hidden."""
    few = forward.profile(inputs(1, 1, 512, 24576, width))
    more = forward.profile(inputs(1, 1, 512, 32768, width))
    assert more.peak_sbuf_bytes < 1.1 * few.peak_sbuf_bytes
    assert more.utilisation("scalar") > 0.9 or more.utilisation("tensor") > 0.9
