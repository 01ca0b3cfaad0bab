"""Instructions of which VectorE and GpSimd each compute a part of the tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator import engines, kernel
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.timing.profile import predicted_seconds

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def logsumexp(x: Any, y: Any) -> Any:
    x = aten.add.Tensor(x, y)
    most = aten.amax.default(x, [1], True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), [1], True)
    return aten.add.Tensor(aten.log.default(total), most)


def normal(x: Any, y: Any) -> Any:
    x = aten.mul.Tensor(aten.maximum.default(x, y), y)
    mean = aten.mean.dim(aten.mul.Tensor(x, x), [1], True)
    return aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor(mean, 1e-5)))


def is_shared(region: TiledRegion) -> bool:
    return any(i.beside is not None for i in region.instructions)


@pytest.mark.parametrize("function", [logsumexp, normal])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("shape", "other", "order"),
    [
        ((127 * 12, 28), (127 * 12, 28), (0, 1)),
        ((129 * 16, 16), (1, 16), (0, 1)),
        ((128 * 6 + 1, 40), (128 * 6 + 1, 1), (0, 1)),
        ((600, 5, 7), (600, 1, 7), (1, 0, 2)),
        ((300, 3, 41), (300, 3, 41), (2, 0, 1)),
    ],
)
def test_values(
    region: Build,
    cuts: Cuts,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    other: tuple[int, ...],
    order: tuple[int, ...],
) -> None:
    monkeypatch.setattr(engines, "LEAST_SHARED", 8)
    lies = draw(*(shape[i] for i in order), dtype=dtype)
    lies = lies.permute([order.index(i) for i in range(len(order))])
    made = region(function, lies, draw(*other, dtype=dtype))

    shared = list(filter(is_shared, cuts.of(made)))
    cuts.check(made, shared, **({} if dtype is F32 else {"rtol": 2e-2, "atol": 2e-2}))


def test_special_values(region: Build, cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LEAST_SHARED", 8)
    x = draw(128 * 12, 28)
    for at, value in enumerate((float("inf"), float("-inf"), float("nan"), 1e-42, -0.0)):
        x[at::11, at] = value
    made = region(logsumexp, x, draw(128 * 12, 28))

    cuts.check(made, filter(is_shared, cuts.of(made)))


def test_short_rows_take_less_time(region: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_stores", [])
    inputs = draw(128 * 667, 28, dtype=BF16), draw(128 * 667, 28, dtype=BF16)
    chip = hardware("trn2")

    shared = region(logsumexp, *inputs)
    assert shared.source().count("engine=nisa.engine.gpsimd") == 2
    seconds = predicted_seconds(shared.program(), chip)
    monkeypatch.setattr(engines, "LEAST_SHARED", 2**20)
    monkeypatch.setattr(kernel, "_SOURCES", LruCache(8))
    alone = region(logsumexp, *inputs)
    assert "engine=nisa.engine.gpsimd" not in alone.source()
    assert seconds < 0.85 * predicted_seconds(alone.program(), chip)


@pytest.mark.parametrize(("target", "shared"), [("trn1", False), ("trn2", True), ("trn3", True)])
def test_on_trn1_where_all_of_vector_needs_the_port_nothing_is_shared(
    region: Build, cuts: Cuts, target: str, shared: bool
) -> None:
    made = region(logsumexp, draw(128 * 400, 28, dtype=BF16), draw(128 * 400, 28, dtype=BF16))

    assert any(map(is_shared, cuts.of(made, target))) is shared
