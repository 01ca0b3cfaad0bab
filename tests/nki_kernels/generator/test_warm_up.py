"""Products that keep TensorE at its full rate until its operands are there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.warm_up import warm_up_calls, warm_up_function, warmed
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py


def softmax_of_columns(x: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [0], True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [0], True))


def centred(x: Any) -> Any:
    return aten.sub.Tensor(x, aten.mean.dim(x, [0], True))


def counts_in(source: str) -> list[int]:
    return [int(n) for n in re.findall(r"_warm_up\(warm, (\d+)\)", source)]


def warm(cuts: Cuts, made: Any, target: str = "trn2") -> list[Any]:
    return [cut for cut in cuts.of(made, target) if cut.warm_up]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "shape"), [(softmax_of_columns, (1900, 56)), (centred, (1300, 100))]
)
def test_values(
    region: Build, cuts: Cuts, function: Any, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    made = region(function, draw(*shape, dtype=dtype))
    error = 1e-5 if dtype is torch.float32 else 1e-2
    different = {(cut.geometry, cut.warm_up): cut for cut in warm(cuts, made)}
    cuts.check(made, list(different.values())[:4], rtol=error, atol=error)


def test_sums_and_transposes_at_full_rate_take_less(region: Build, cuts: Cuts) -> None:
    made = region(softmax_of_columns, draw(1900, 56))
    chip, with_products = hardware("trn2"), made.program()
    assert counts_in(made.source())
    cuts.of(made)  # all of them, and the first is the best by estimate
    best = warm(cuts, made)[0]
    cuts._use(lambda *_: [[best.in_phases(warm_up=())]])
    assert not counts_in(made.source())
    without = predicted_seconds(made.program(), chip)
    assert predicted_seconds(with_products, chip) < without - 0.5e-6


def test_sums_that_keep_it_busy_begin_at_a_higher_rate(region: Build) -> None:
    made = region(lambda x: aten.sum.dim_IntList(aten.abs.default(x), [0]), draw(93151, 2))
    assert 0 < sum(counts_in(made.source())) < 14  # as many as it has in 3 us at half rate


def test_products_end_before_others_wait(region: Build, cuts: Cuts) -> None:
    chip = hardware("trn2")
    for cut in warm(cuts, region(softmax_of_columns, draw(1900, 56)))[:8]:
        more = (cut.warm_up[0] + 12, *cut.warm_up[1:])
        assert cut.in_phases(warm_up=more).estimated_ns(chip) > cut.estimated_ns(chip)
        assert cut.in_phases(warm_up=()).estimated_ns(chip) > cut.estimated_ns(chip)


def test_long_kernels_small_ones_and_trn1_have_none(region: Build, cuts: Cuts) -> None:
    assert not warm(cuts, region(softmax_of_columns, draw(1900, 56)), "trn1")
    assert not counts_in(region(softmax_of_columns, draw(130, 3)).source())
    assert not counts_in(region(centred, draw(60000, 256)).source())
    assert not counts_in(region(lambda x: aten.exp.default(x), draw(1900, 56)).source())


def test_what_is_not_warmed_stays_as_it_is(region: Build, cuts: Cuts) -> None:
    cut = cuts.of(region(lambda x: aten.exp.default(x), draw(300, 56)))[0]
    assert warmed(cut, 1.0, hardware("trn2")) == []


def test_source() -> None:
    assert warm_up_function(()) == warm_up_function((0,)) == []
    assert "    for _ in range(products):" in warm_up_function((9, 0, 3))
    assert warm_up_calls((9, 0, 3), 0)[-1] == "_warm_up(warm, 9)"
    assert warm_up_calls((9, 0, 3), 1) == warm_up_calls((9,), 2) == []
    assert warm_up_calls((9, 0, 3), 2) == ["_warm_up(warm, 3)"]
