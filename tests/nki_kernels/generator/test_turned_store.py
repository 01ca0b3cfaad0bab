"""Results that run along the partitions in memory are transposed by TensorE before their store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.geometry import Axis, Geometry, RowTiles
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.turned_store import turned_store

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def turned(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry with such a store."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        pairs = zip(cut.outputs, cut.output_strides, strict=True)
        if any(cut.turned_store(cut.held[output.value], strides) for output, strides in pairs):
            found.setdefault((cut.geometry, cut.keeps, max(cut.stages)), cut)
    return list(found.values())


def softmax(x: Any) -> Any:
    return aten._softmax.default(x, 0, False)


def centred(x: Any) -> Any:
    return aten.sub.Tensor(x, aten.mean.dim(x, [0], True))


def largest(x: Any) -> Any:
    return aten.relu.default(aten.amax.default(x, [0], True))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [softmax, centred])
@pytest.mark.parametrize("shape", [(131, 70), (17, 390), (300, 129)])
def test_values(
    region: Build, cuts: Cuts, shape: tuple[int, int], function: Any, dtype: torch.dtype,
    target: str,
) -> None:  # fmt: skip
    x = draw(*shape, dtype=dtype)
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -float("inf")
    made = region(function, x)
    error = {"rtol": 2e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-5}
    cuts.check(made, turned(cuts.of(made, target))[:3], target, **error)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(40, 3, 130), (5, 33, 70), (20, 2, 300)])
def test_values_of_several_axes(
    region: Build, cuts: Cuts, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """One axis goes to the partitions, others stay beside what was along them."""
    x = draw(*shape, dtype=dtype)
    made = region(lambda x: aten.sub.Tensor(x, aten.amax.default(x, [1], True)), x)
    cuts.check(made, turned(cuts.of(made))[:4])


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_result_without_the_reduced_axis(region: Build, cuts: Cuts, dtype: torch.dtype) -> None:
    """What goes to the partitions are the rows of a partition."""
    made = region(largest, draw(9, 5000, dtype=dtype))
    cuts.check(made, turned(cuts.of(made))[:3])


def test_runs_are_as_long_as_there_are_partitions() -> None:
    """[1000, 460] with 115 columns on the partitions, and two groups of them in each."""
    rows = (RowTiles(range(0, 460, 230), 115, 2),)
    cut = Geometry(1, True, rows, (), (), frozenset({0}), interleaved=True)
    assert turned_store(cut, (1,), {1: 1, 0: 460}, "vector") is None  # two elements
    rows = (RowTiles(range(0, 4600, 2300), 115, 20),)
    cut = Geometry(1, True, rows, (), (), frozenset({0}), interleaved=True)
    store = turned_store(cut, (1,), {1: 1}, "vector")
    assert store is not None
    assert (store.label, store.run, store.blocks, store.rows) == (1, 115, 1, 20)


def test_a_softmax_over_rows_is_stored_in_long_runs(region: Build) -> None:
    made = region(softmax, draw(1000, 460, dtype=BF16))
    assert "nisa.nc_transpose(dst=bank" in made.source()


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_stages_store_apart(region: Build, cuts: Cuts, dtype: torch.dtype) -> None:
    """An engine that copies out of PSUM does not wait for TensorE before its next tile."""
    made = region(softmax, draw(96, 2304, dtype=dtype))
    staged = [cut for cut in turned(cuts.of(made)) if cut.stores_apart]
    assert staged
    assert all(cut.depth == 2 + max(cut.stages) for cut in staged)
    error = 2e-2 if dtype is BF16 else 1e-5
    cuts.check(made, staged[:3], rtol=error, atol=error)


def test_phases_store_apart(region: Build, cuts: Cuts) -> None:
    made = region(lambda x: aten.sub.Tensor(x, aten.mean.dim(x, [1], True)), draw(128, 2000, 64))
    found: dict[Any, TiledRegion] = {}
    for cut in cuts.of(made):
        if cut.across is None or cut.phase_stages == 1 or not cut.turns_stores:
            continue
        last = cut.staged_phases[-1]
        assert max(last.of_stores.values()) == 1 + max(last.of_instructions)
        found.setdefault(cut.geometry, cut)
    cuts.check(made, list(found.values())[:3], rtol=1e-5, atol=1e-5)


def logsumexp(x: Any) -> Any:
    most = aten.amax.default(x, [2], True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), [2], True)
    return aten.add.Tensor(aten.log.default(total), most)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_results_that_run_across_what_is_loaded(
    region: Build, cuts: Cuts, dtype: torch.dtype
) -> None:
    """[130, 300, 5] that lies as [300, 5, 130]: rows of 300 are loaded as they lie, and stored
    along the partitions."""
    x = draw(300, 5, 130, dtype=dtype)
    x[3, 1, 7], x[4, 2, 8], x[5, 3, 9] = float("nan"), float("inf"), -float("inf")
    x[6, :, 9] = -float("inf")
    made = region(logsumexp, x.permute(2, 0, 1))
    found = [cut for cut in turned(cuts.of(made)) if not any(map(cut.is_turned, cut.load_strides))]
    error = {"rtol": 2e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-5}
    cuts.check(made, found[:3], **error)


@pytest.mark.parametrize("elements", [3, 4, 8])
def test_a_few_rows_go_to_the_partitions(elements: int) -> None:
    """Of fewer than four the products take longer than DMA saves."""
    rows = (RowTiles(range(0, 256, 128), 128, 1),)
    cut = Geometry(
        1, False, rows, (Axis(0, elements, elements),), (), frozenset(), interleaved=True
    )
    assert (turned_store(cut, (0,), {0: 256, 1: 1}, "vector") is not None) == (elements >= 4)
