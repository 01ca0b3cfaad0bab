"""The power throttle of TensorE: half rate until it was active for 3 us, by rows of the array."""

from __future__ import annotations

import pytest

from trnx.simulator.timing.resources import Throttle

WINDOW = 3_000_000
PRODUCT = 850_000


def _run(rows: int, count: int, gap: int = 0, throttle: Throttle | None = None) -> list[int]:
    """How much longer each of `count` products takes, `gap` ps after the one before."""
    throttle = throttle or Throttle(WINDOW)
    start, extra = 0, []
    for _ in range(count):
        taken = throttle.stretched(start, PRODUCT, rows=rows)
        extra.append(taken - PRODUCT)
        start += taken + gap
    return extra


def test_the_whole_array_runs_at_full_rate_after_the_window() -> None:
    extra = _run(128, 8)
    assert sum(extra) == WINDOW // 2
    assert extra[0] == PRODUCT
    assert extra[-1] == 0


@pytest.mark.parametrize("rows", [1, 32, 63, 64])
def test_half_of_the_rows_never_reach_full_rate(rows: int) -> None:
    assert _run(rows, 50) == [PRODUCT] * 50


def test_more_than_half_of_the_rows_take_longer_to_reach_it() -> None:
    half_more = _run(96, 20)
    assert sum(half_more) > sum(_run(128, 20))
    assert half_more[-1] == 0


def test_half_of_the_rows_keep_the_rate_that_the_whole_array_reached() -> None:
    throttle = Throttle(WINDOW)
    _run(128, 8, throttle=throttle)
    start = throttle.state(0)[1]
    taken = [throttle.stretched(start + i * PRODUCT, PRODUCT, rows=64) for i in range(50)]
    assert taken == [PRODUCT] * 50


def test_few_rows_lose_it() -> None:
    throttle = Throttle(WINDOW)
    _run(128, 8, throttle=throttle)
    start, extra = throttle.state(0)[1], []
    for _ in range(10):
        taken = throttle.stretched(start, PRODUCT, rows=1)
        extra.append(taken - PRODUCT)
        start += taken
    assert extra[0] == 0
    assert extra[-1] == PRODUCT
    # Half of the window at full rate, with nearly no activity.
    assert sum(extra) == pytest.approx(10 * PRODUCT - WINDOW // 2, rel=0.02)


def test_waiting_loses_it() -> None:
    throttle = Throttle(WINDOW)
    _run(128, 8, throttle=throttle)
    end = throttle.state(0)[1]
    assert throttle.stretched(end + WINDOW, PRODUCT) == 2 * PRODUCT


def test_no_window_no_throttle() -> None:
    assert Throttle(0).stretched(5, PRODUCT, rows=1) == PRODUCT
