"""Sums of functions of several rows of a partition, an activation for each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator import simulate
from trnx.simulator.hardware import TRN2

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py


def by_row(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry that has some, on the default engines or on others."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if any(i.by_row is not None for i in cut.instructions):
            engines = tuple(i.engine for i in cut.instructions)
            found.setdefault((cut.geometry, len(set(engines)) > 1), cut)
    return list(found.values())


def logsumexp(x: Any) -> Any:
    most = aten.amax.default(x, [1], True)
    weights = aten.exp.default(aten.sub.Tensor(x, most))
    return aten.add.Tensor(aten.log.default(aten.sum.dim_IntList(weights, [1], True)), most)


def softmax(x: Any) -> Any:
    return aten._softmax.default(x, 1, False)


def summed(x: Any) -> Any:
    return aten.sum.dim_IntList(aten.sigmoid.default(x), [1])


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("function", [logsumexp, softmax, summed])
@pytest.mark.parametrize("shape", [(600, 70), (1000, 33), (1283, 129)])
def test_values(
    region: Build, cuts: Cuts, shape: tuple[int, int], function: Any, target: str
) -> None:
    """A row of infinities, of their opposites and of NaN leaves the others alone."""
    x = draw(*shape, dtype=torch.float32)
    x[0], x[1, 1], x[2, 2], x[3, 3] = -float("inf"), float("nan"), float("inf"), 3e38
    made = region(function, x)
    cuts.check(made, by_row(cuts.of(made, target))[:3], target, rtol=1e-5, atol=1e-5)


def test_rounded_differences_stay(region: Build, cuts: Cuts) -> None:
    """Eager rounds differences and exponentials of half precision."""
    made = region(logsumexp, draw(1000, 64, dtype=torch.bfloat16))
    assert not by_row(cuts.of(made))


def test_what_else_reads_the_difference_keeps_it(region: Build, cuts: Cuts) -> None:
    def function(x: Any) -> Any:
        below = aten.sub.Tensor(x, aten.amax.default(x, [1], True))
        return below, aten.sum.dim_IntList(aten.exp.default(below), [1])

    made = region(function, draw(1000, 64, dtype=torch.float32))
    every = by_row(cuts.of(made))
    rows = every[0].geometry.count(every[0].geometry.partition)
    assert every[0].calls == len(every[0].instructions) - 1 + rows
    assert all(i.call != "activation" or len(i.reads()) == 1 for i in every[0].instructions)
    cuts.check(made, every[:2])


def test_short_rows_have_no_activations_of_their_own(region: Build, cuts: Cuts) -> None:
    made = region(logsumexp, draw(1000, 16, dtype=torch.float32))
    assert not by_row(cuts.of(made))


def test_rows_of_a_useful_length_are_taken_one_by_one(region: Build) -> None:
    made = region(logsumexp, draw(22186, 129, dtype=torch.float32))
    assert "for row in range(k):" in made.source()


def test_both_cores_take_rows_one_by_one(region: Build) -> None:
    x = draw(22186, 129, dtype=torch.float32)
    made, two = region(logsumexp, x), replace(TRN2, cores=2)
    assert "for row in range(k):" in made.kernel.source(made.bindings, two)
    launch = made.kernel.launch(made.bindings, two)
    assert launch.grid == 2
    found = simulate(launch.kernel, grid=2)(x)
    (result,) = found if isinstance(found, (list, tuple)) else (found,)
    torch.testing.assert_close(result, made.eager()[0], rtol=1e-5, atol=1e-5)
