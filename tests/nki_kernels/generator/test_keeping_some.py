"""Phases that keep what they load of as many tiles as fit, and load the others again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.lowered_space import LoweredSpace
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def centred(x: Any) -> Any:
    return aten.sub.Tensor(x, aten.mean.dim(x, [0], True))


def softmax(x: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [0], True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [0], True))


def gated(x: Any) -> Any:
    """Tiles in stages."""
    return aten.mul.Tensor(aten.tanh.default(x), aten.sum.dim_IntList(aten.abs.default(x), [0]))


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a partition, of which a tensor of these tests has more."""
    room = 16_000
    monkeypatch.setattr(LoweredSpace, "_room", room)
    return room


def keeping_some(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry, and of stages or none."""
    some = [cut for cut in every if cut.kept_tiles]
    return list({(cut.geometry, cut.phase_stages > 1): cut for cut in some}.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [centred, softmax, gated])
@pytest.mark.parametrize("shape", [(700_003,), (6_001, 129)])
def test_values(
    region: Build, cuts: Cuts, function: Any, shape: tuple[int, ...], dtype: torch.dtype,
    little_room: int,
) -> None:  # fmt: skip
    made = region(function, draw(*shape, dtype=dtype))
    found = keeping_some(cuts.of(made))
    assert all(cut.bytes_in_work() <= little_room for cut in found)
    error = 1e-4 if dtype is F32 else 2e-2
    cuts.check(made, found[:2], rtol=error, atol=error)


@pytest.mark.usefixtures("little_room")
def test_tiles_with_stages_of_their_own(region: Build, cuts: Cuts) -> None:
    made = region(gated, draw(700_003))
    staged = [cut for cut in keeping_some(cuts.of(made)) if cut.phase_stages > 1]
    cuts.check(made, staged[:2], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("little_room")
def test_it_takes_less_than_to_load_all_again(region: Build, cuts: Cuts) -> None:
    found = cuts.of(region(centred, draw(700_003)))
    chip = hardware("trn2")
    some = [cut for cut in found if cut.kept_tiles]
    assert some
    for cut in some:
        assert cut.across is not None
        assert cut.kept_tiles < cut.across.steps
        assert cut.estimated_ns(chip) <= cut.without_kept.estimated_ns(chip)


def test_what_fits_is_kept_whole(region: Build, cuts: Cuts) -> None:
    assert not any(cut.kept_tiles for cut in cuts.of(region(centred, draw(700_003))))
