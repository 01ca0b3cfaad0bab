"""Loads by the queue of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.emitters import emit
from trnx.nki_kernels.generator.loads_aside import with_loads_aside
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def aside(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry that has some."""
    return list({cut.geometry: cut for cut in every if cut.aside}.values())


def three(x: Any, y: Any, z: Any) -> Any:
    return aten.mul.Tensor(aten.add.Tensor(x, y), z)


def biased(x: Any, y: Any, z: Any) -> Any:
    below = aten.sub.Tensor(x, aten.amax.default(aten.add.Tensor(x, y), [0], True))
    return aten.add.Tensor(below, z)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [three, biased])
def test_values(region: Build, cuts: Cuts, function: Any, dtype: torch.dtype, target: str) -> None:
    """A tensor in another order has many descriptors."""
    x, y = draw(129, 260, 3, dtype=dtype), draw(129, 3, 260, dtype=dtype).transpose(1, 2)
    made = region(function, x, y, draw(260, 3, dtype=dtype))
    cuts.check(made, aside(cuts.of(made, target))[:2], target)


def test_not_before_trn2_nor_with_descriptors_that_are_there(region: Build, cuts: Cuts) -> None:
    x, y = draw(129, 260, 3), draw(129, 3, 260).transpose(1, 2)
    made = region(three, x, y, draw(260, 3))
    assert not aside(cuts.of(made, "trn1"))
    small = region(three, draw(128, 64), draw(128, 64), draw(128, 64))
    assert all(not with_loads_aside(cut, hardware("trn2")) for cut in cuts.of(small))


def test_every_second_load_is_by_the_queue_of_stores(region: Build, cuts: Cuts) -> None:
    x, y = draw(129, 260, 3), draw(129, 3, 260).transpose(1, 2)
    made = region(three, x, y, draw(129, 260, 3))
    cut = next(cut for cut in aside(cuts.of(made)) if len(cut.aside) == 1)
    source = emit("fused", "", {"x": "x0", "y": "x1", "z": "x2"}, cut)
    assert source.count("engine=nisa.engine.scalar") == 1
    assert source.count("nisa.dma_copy") == 4
