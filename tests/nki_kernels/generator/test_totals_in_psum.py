"""Wide totals in PSUM: a step with numbers, and ScalarE, on their way to SBUF."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.engines import SCALAR, TENSOR
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.totals_in_psum import step_of

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def mean(x: Any, y: Any) -> Any:
    return aten.maximum.default(aten.mul.Tensor(aten.mean.dim(x, [0], True), 1.25), y)


def total(x: Any, y: Any) -> Any:
    return aten.sub.Tensor(y, aten.sum.dim_IntList(x, [0], True))


def read_twice(x: Any, y: Any) -> Any:
    added = aten.sum.dim_IntList(x, [0], True)
    return aten.sub.Tensor(y, aten.mul.Tensor(added, 0.5)), aten.add.Tensor(y, added)


def combines(cut: TiledRegion) -> list[Any]:
    return [i for i in cut.instructions if i.call == "combine"]


def wide(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way for each geometry, step and engine in which products leave totals in PSUM."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if cut.across is None or not any(i.engine == TENSOR for i in cut.instructions):
            continue
        (combine,) = combines(cut)
        if cut.across.size(cut.across.free(combine.dst)[1]) > 256:
            key = cut.geometry, bool(step_of(combine)), combine.engine
            found.setdefault(key, cut)
    return list(found.values())


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("function", [mean, total, read_twice])
@pytest.mark.parametrize("shape", [(101, 700), (129, 3, 130), (300, 20, 96)])
def test_values(
    region: Build, cuts: Cuts, function: Any, shape: tuple[int, ...], target: str
) -> None:
    x, y = draw(*shape, dtype=BF16), draw(*shape, dtype=BF16)
    x.view(shape[0], -1)[1, 3], x.view(shape[0], -1)[2, 4] = float("inf"), float("nan")
    made = region(function, x, y)
    found = wide(cuts.of(made, target))
    has_steps = {bool(step_of(i)) for cut in found for i in combines(cut)}
    assert (True in has_steps) == (function is mean)
    cuts.check(made, found[:5], target, rtol=1e-2, atol=1e-2)


def test_scalar_takes_some_where_blocks_are_many(region: Build, cuts: Cuts) -> None:
    x = draw(101, 96, 200, dtype=BF16)
    made = region(mean, x, x)
    found = [cut for cut in wide(cuts.of(made)) if combines(cut)[0].engine == SCALAR]
    cuts.check(made, found[:3], rtol=1e-2, atol=1e-2)
    # ScalarE has no such instruction on trn1.
    assert not any(combines(cut)[0].engine == SCALAR for cut in wide(cuts.of(made, "trn1")))


def test_sums_of_float32_numbers_keep_their_step(region: Build, cuts: Cuts) -> None:
    x = draw(128, 700)
    found = wide(cuts.of(region(mean, x, x)))
    assert found
    assert not any(step_of(i) for cut in found for i in combines(cut))
