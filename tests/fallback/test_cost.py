"""What the fallback is estimated to take: close to the schedule of kernels that do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import trnx
from trnx.fallback.cost import fused_seconds, node_cost
from trnx.simulator.hardware import TRN1, TRN2, TRN3, Hardware, hardware
from trnx.simulator.timing.estimate import (
    chain_seconds,
    flops_seconds,
    product_seconds,
    rows_seconds,
    vector_seconds,
)

aten = torch.ops.aten
CHIPS = (TRN1, TRN2, TRN3)
F32, BF16 = torch.float32, torch.bfloat16


def _regions(function: Callable[..., Any], target: str, *inputs: torch.Tensor) -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        found = trnx.explain(function, *inputs, options={"select": "legal", "target": target})
        other = trnx.explain(function, *inputs, options={"select": "none", "target": target})
    return found.reports[0].regions, other.reports[0].regions


@pytest.mark.parametrize(("target", "dtype"), [("trn1", F32), ("trn2", BF16), ("trn3", F32)])
def test_kernels_take_about_what_their_work_is_estimated_to(
    target: str, dtype: torch.dtype
) -> None:
    """The check of the closed form against the scheduler: partition compares the two."""
    x, w = torch.randn(512, 768, dtype=dtype), torch.randn(768, 768, dtype=dtype)
    heads = torch.randn(2, 12, 128, 64, dtype=dtype)
    cases: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
        (F.linear, (x, w)),
        (lambda v: F.softmax(v, -1), (x,)),
        (lambda v: F.layer_norm(v, (768,)), (x,)),
        (lambda v: F.gelu(v) * 2, (x,)),
        (lambda q: F.scaled_dot_product_attention(q, q, q), (heads,)),
        (lambda v: F.max_pool2d(v, 3, 2, 1), (torch.randn(4, 128, 64, 64, dtype=dtype),)),
    ]
    for function, inputs in cases:
        (kernel,), (fallback,) = _regions(function, target, *inputs)
        assert (kernel.engine, kernel.predicted_by) == ("nki", "schedule")
        assert (fallback.engine, fallback.predicted_by) == ("xla", "estimate")
        ratio = kernel.predicted_seconds / fallback.predicted_seconds
        assert 0.3 < ratio < 3.0, (kernel.kernel, ratio)


def test_gathers_do_not_read_the_whole_table(capture: Any) -> None:
    table, rows = torch.randn(30000, 64), torch.tensor([1, 2, 3])
    graph = capture(lambda t, r: aten.embedding.default(t, r) + 1, table, rows).graph
    (node,) = [n for n in graph.nodes if n.target is aten.embedding.default]
    assert node_cost(node).hbm_bytes == 2 * 3 * 64 * 4 + 3 * 8
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    assert fused_seconds(nodes, TRN2) < TRN2.region_seconds + 3e-6


@pytest.mark.parametrize("chip", CHIPS)
def test_whole_products_run_at_the_peak(chip: Hardware) -> None:
    flops = 2 * 4096**3
    seconds = product_seconds(chip, 1, 4096, 4096, 4096, BF16)
    assert seconds == pytest.approx(flops / chip.peak_bf16_flops, rel=0.02)
    assert seconds == pytest.approx(flops_seconds(chip, flops, BF16), rel=0.02)
    wide = product_seconds(chip, 1, 4096, 4096, 4096, F32)
    assert wide == pytest.approx(chip.fp32_cycles_per_column * seconds)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_estimates_grow_with_every_size(chip: Hardware, dtype: torch.dtype) -> None:
    sizes = (1, 127, 128, 129, 513)
    base = (2, 128, 128, 128)
    for place in range(4):
        found = [
            product_seconds(chip, *base[:place], size, *base[place + 1 :], dtype) for size in sizes
        ]
        assert found == sorted(found)
        assert found[0] > 0
        assert product_seconds(chip, *base[:place], 0, *base[place + 1 :], dtype) == 0
    for rows in ([rows_seconds(chip, 1, n, 64, dtype) for n in sizes],
                 [rows_seconds(chip, 1, 64, n, dtype) for n in sizes],
                 [vector_seconds(chip, n * 100, dtype) for n in sizes],
                 [chain_seconds(chip, 3, n, 2) for n in sizes]):  # fmt: skip
        assert rows == sorted(rows)
    assert vector_seconds(chip, 0, dtype) == 0
    assert chain_seconds(chip, 0, 128) == 0


def test_short_types_run_faster_on_vector_from_trn2_on() -> None:
    wide, short = (vector_seconds(TRN2, 10**7, dtype) for dtype in (F32, BF16))
    assert 1.5 < wide / short < 2
    assert vector_seconds(TRN1, 10**7, F32) == vector_seconds(TRN1, 10**7, BF16)


def test_a_region_of_nothing_costs_its_fixed_part() -> None:
    assert fused_seconds([], hardware("trn2")) == TRN2.region_seconds
    graph = fx.Graph()
    node = graph.placeholder("x")
    assert fused_seconds([node], TRN2) == TRN2.region_seconds


def test_an_exact_division_costs_its_instructions(capture: Any) -> None:
    """A kernel must not lose against an estimate of a division that gives other values."""

    def seconds(function: Callable[..., Any], dtype: torch.dtype) -> float:
        x = torch.ones(2048, 2048, dtype=dtype)
        graph = capture(function, x, x).graph
        return fused_seconds([n for n in graph.nodes if n.op == "call_function"], TRN2)

    plain = seconds(lambda x, y: x * y, torch.float32)
    assert seconds(lambda x, y: x / y, torch.float32) > 5 * plain
    assert seconds(lambda x, y: x / 3 * y, torch.float32) > 3 * plain
    assert seconds(lambda x, y: x / 4 * y, torch.float32) < 2 * plain
    assert seconds(lambda x, y: x / y, torch.bfloat16) < 2 * plain


def test_groups_of_few_channels_leave_the_array_idle(capture: Any) -> None:
    def seconds(groups: int, channels: int) -> float:
        x, w = torch.randn(8, channels, 56, 56), torch.randn(channels, channels // groups, 3, 3)
        graph = capture(lambda a, b: F.conv2d(a, b, padding=1, groups=groups), x, w).graph
        return fused_seconds([n for n in graph.nodes if n.op == "call_function"], TRN2)

    assert seconds(128, 128) == seconds(1, 128)
    assert seconds(2, 256) == pytest.approx(2 * seconds(1, 128), rel=0.1)


def test_convolutions_are_products_in_whole_tiles(capture: Any) -> None:
    """A stem of 3 channels takes what the product of its unfolded image takes."""

    def seconds(function: Callable[..., Any], *inputs: torch.Tensor) -> float:
        graph = capture(function, *inputs).graph
        return fused_seconds([n for n in graph.nodes if n.op == "call_function"], TRN2)

    image, weight = torch.randn(2, 3, 64, 64), torch.randn(64, 3, 7, 7)
    stem = seconds(lambda x, w: F.conv2d(x, w, padding=3), image, weight)
    product = seconds(F.linear, torch.randn(2 * 64 * 64, 3 * 49), torch.randn(64, 3 * 49))
    assert stem == pytest.approx(product, rel=0.3)
    image = torch.randn(2, 64, 64, 64)
    back = seconds(lambda x, w: F.conv_transpose2d(x, w, padding=3), image, weight)
    assert back == pytest.approx(stem, rel=0.1), "147 columns are two blocks, as 147 rows were"


def test_a_group_norm_takes_the_passes_of_a_layer_norm(capture: Any) -> None:
    def seconds(function: Callable[..., Any], *inputs: torch.Tensor) -> float:
        graph = capture(function, *inputs).graph
        return fused_seconds([n for n in graph.nodes if n.op == "call_function"], TRN2)

    groups = seconds(lambda x: F.group_norm(x, 32), torch.randn(8, 128, 32, 32))
    rows = seconds(lambda x: F.layer_norm(x, (4096,)), torch.randn(256, 4096))
    assert groups == pytest.approx(rows, rel=0.1)
