"""Regions of unconnected parts: one kernel that runs them one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

aten = torch.ops.aten


def unconnected(a: Any, b: Any, c: Any, number: Any) -> Any:
    """Two parts of one size, and one that reduces; they share a number."""
    return (
        aten.mul.Tensor(aten.relu.default(a), number),
        aten.sum.dim_IntList(c, [1]),
        aten.mul.Tensor(aten.relu.default(b), number),
    )


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_parts_have_spaces_of_their_own(region: Callable[..., Any], target: str) -> None:
    inputs = (torch.randn(129, 5), torch.randn(129, 5), torch.randn(3, 300), torch.tensor(2.0))
    made = region(unconnected, *inputs)
    for actual, expected in zip(made.run(target), made.eager(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
        assert actual.shape == expected.shape
    assert made.kernel.name == "fused_relu_mul_x3"


def test_equal_parts_share_one_function(region: Callable[..., Any]) -> None:
    inputs = (torch.randn(129, 5), torch.randn(129, 5), torch.randn(3, 300), torch.tensor(2.0))
    source = region(unconnected, *inputs).source()
    assert re.findall(r"^def (_part\d+)\(", source, re.MULTILINE) == ["_part0", "_part1"]
    assert re.findall(r"= (_part\d+)\(", source) == ["_part0", "_part1", "_part0"]


def test_a_small_region_that_reads_one_tensor_is_one_part(region: Callable[..., Any]) -> None:
    def both(x: Any) -> Any:
        return aten.relu.default(x), aten.exp.default(x)

    made = region(both, torch.randn(4, 8))
    assert "_part0" not in made.source()
    assert made.source().count("src=x0.ap") == 1


def test_a_tensor_that_several_parts_read_crosses_hbm_once(region: Callable[..., Any]) -> None:
    inputs = (torch.randn(129, 5), torch.randn(129, 5), torch.randn(3, 300), torch.tensor(2.0))
    made = region(unconnected, *inputs)
    cost = made.kernel.cost(made.bindings)
    assert cost.hbm_bytes == 4 * (4 * 129 * 5 + 3 * 300 + 3 + 1)
    scaled = region(lambda a, n: aten.mul.Tensor(aten.relu.default(a), n), inputs[0], inputs[3])
    summed = region(lambda c: aten.sum.dim_IntList(c, [1]), inputs[2])
    alone = [one.kernel.cost(one.bindings).vector_flops for one in (scaled, scaled, summed)]
    assert cost.vector_flops == sum(alone)
