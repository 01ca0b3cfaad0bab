"""What all tiles of a reduction share is computed once, before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def shifted(x: Any, y: Any, z: Any) -> Any:
    most = aten.amax.default(aten.abs.default(x), [0, 1], True)
    return aten.add.Tensor(aten.sub.Tensor(most, y), z)


def scaled(x: Any, y: Any, z: Any) -> Any:
    mean = aten.mean.dim(aten.mul.Tensor(x, y), [0, 1], True)
    return aten.mul.Tensor(aten.mul.Tensor(aten.tanh.default(y), mean), z)


def stored(x: Any, y: Any, z: Any) -> Any:
    """A result that tiles share."""
    inner = aten.add.Tensor(aten.sum.dim_IntList(x, [0, 1], True), y)
    return inner, aten.mul.Tensor(inner, z)


def with_shared(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry in which tiles share something along reduced dimensions."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if cut.across is not None and cut.across.steps > 1 and cut.across.shared():
            found.setdefault((cut.geometry, cut.keeps, cut.phase_stages > 1), cut)
    return list(found.values())


# The second operand lacks the dimensions of size 1.
SHAPES = [
    ((16, 121, 50, 7), (16, 1, 1, 7)),
    ((5, 900, 3, 33), (1, 900, 1, 33)),
    ((100, 127, 1, 20), (100, 1, 1, 1)),
    ((2100, 12, 1, 24), (1, 12, 1, 24)),
]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [shifted, scaled])
@pytest.mark.parametrize(("shape", "second"), SHAPES)
def test_values(
    region: Build, cuts: Cuts, function: Any, shape: tuple[int, ...], second: tuple[int, ...],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    operands = draw(*shape, dtype=dtype), draw(*second, dtype=dtype), draw(*shape, dtype=dtype)
    made = region(function, *operands)
    error = 1e-5 if dtype is F32 else 2e-2
    cuts.check(made, with_shared(cuts.of(made))[:6], rtol=error, atol=error)


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (2, 0, 3, 1)])
def test_strides(region: Build, cuts: Cuts, order: tuple[int, ...]) -> None:
    def permuted(*shape: int) -> torch.Tensor:
        lies = draw(*(shape[d] for d in order))
        return lies.permute([order.index(d) for d in range(4)])

    shape = (16, 121, 50, 7)
    made = region(shifted, permuted(*shape), draw(16, 1, 1, 7), permuted(*shape))
    cuts.check(made, with_shared(cuts.of(made))[:6], rtol=1e-5, atol=1e-5)


def test_results_are_stored_by_their_tiles(region: Build, cuts: Cuts) -> None:
    shape, second = SHAPES[0]
    made = region(stored, draw(*shape), draw(*second), draw(*shape))
    across = [cut for cut in cuts.of(made) if cut.across is not None and cut.across.steps > 1]
    found: dict[Any, TiledRegion] = {}
    for cut in across:
        assert cut.across is not None
        computed = {v for i in cut.across.shared() for v in i.writes()}
        assert not computed & set(cut.across.results)
        found.setdefault((cut.geometry.crosses, cut.geometry.even), cut)
    cuts.check(made, found.values(), rtol=1e-5, atol=1e-4)


def test_a_tile_of_many_has_less_to_do(region: Build, cuts: Cuts) -> None:
    shape, second = SHAPES[0]
    made = region(shifted, draw(*shape), draw(*second), draw(*shape))
    for cut in with_shared(cuts.of(made)):
        assert cut.across is not None
        last = cut.across.phases(cut.keeps)[-1]
        assert "subtract" not in [i.dst.name for i in last.each]
        assert "subtract" in [i.dst.name for i in last.once]
