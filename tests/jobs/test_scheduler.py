"""Dynamic batching: shapes, order, limits, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from trnx.jobs.scheduler import BatchScheduler, Buckets, Item, QueueFullError

BUCKETS = Buckets((1, 4), (8, 16))


class Counting:
    """Items are done after as many steps as their request says."""

    name = "counting"

    def __init__(self) -> None:
        self.batches: list[tuple[list[int], int, int]] = []

    def step(self, items: Sequence[Item], rows: int, length: int) -> list[Any]:
        self.batches.append(([item.tokens[0] for item in items], rows, length))
        for item in items:
            item.state["steps"] = item.state.get("steps", 0) + 1
        if any(item.request == "broken" for item in items):
            raise ValueError("broken")
        return [item.tokens[0] if item.state["steps"] >= item.request else None for item in items]


def row(number: int, tokens: int = 1, steps: Any = 1) -> tuple[list[int], Any]:
    return [number] * tokens, steps


def run(body: Callable[[BatchScheduler, Counting], Awaitable[None]], limit: int = 100) -> Counting:
    async def main() -> Counting:
        engine = Counting()
        scheduler = BatchScheduler(engine, BUCKETS, limit, 0.0, lambda *_: None)
        scheduler.start()
        try:
            await body(scheduler, engine)
        finally:
            await scheduler.stop()
        return engine

    return asyncio.run(main())


def test_what_arrives_together_runs_together_in_one_shape() -> None:
    async def body(scheduler: BatchScheduler, _: Counting) -> None:
        assert await asyncio.gather(*scheduler.submit([row(n) for n in range(3)])) == [0, 1, 2]

    assert run(body).batches == [([0, 1, 2], 4, 8)]


def test_longer_items_wait_for_their_turn_and_nobody_starves() -> None:
    async def body(scheduler: BatchScheduler, _: Counting) -> None:
        rows = [row(0), row(1, 12), row(2), row(3, 9), row(4), row(5), row(6)]
        assert await asyncio.gather(*scheduler.submit(rows)) == list(range(7))

    assert run(body).batches == [([0, 2, 4, 5], 4, 8), ([1, 3, 6], 4, 16)]


def test_new_items_join_between_two_steps_of_others() -> None:
    async def body(scheduler: BatchScheduler, engine: Counting) -> None:
        (slow,) = scheduler.submit([row(0, steps=200)])
        while len(engine.batches) < 2:
            await asyncio.sleep(0.001)
        (quick,) = scheduler.submit([row(1)])
        assert await quick == 1
        assert not slow.done()
        slow.cancel()

    batches = run(body).batches
    assert ([0, 1], 4, 8) in batches
    assert batches[0] == ([0], 1, 8)


def test_full_queue_takes_all_rows_of_a_request_or_none() -> None:
    async def body(scheduler: BatchScheduler, _: Counting) -> None:
        futures = scheduler.submit([row(n) for n in range(3)])
        with pytest.raises(QueueFullError):
            scheduler.submit([row(8), row(9)])
        assert scheduler.waiting == 3
        await asyncio.gather(*futures)
        assert await asyncio.gather(*scheduler.submit([row(8), row(9)])) == [8, 9]

    run(body, limit=4)


@pytest.mark.parametrize("tokens", [0, 17])
def test_rows_that_fit_into_no_shape_are_refused(tokens: int) -> None:
    async def body(scheduler: BatchScheduler, _: Counting) -> None:
        with pytest.raises(ValueError, match="a row needs 1 to 16 tokens"):
            scheduler.submit([row(0, tokens)])
        assert await asyncio.gather(*scheduler.submit([row(1, 16)])) == [1]

    assert run(body).batches == [([1], 1, 16)]


def test_cancelled_items_are_not_computed() -> None:
    async def body(scheduler: BatchScheduler, _: Counting) -> None:
        gone, kept = scheduler.submit([row(0), row(1)])
        gone.cancel()
        assert await kept == 1

    assert run(body).batches == [([1], 1, 8)]


def test_failing_batch_fails_its_items_and_no_others() -> None:
    async def body(scheduler: BatchScheduler, _: Counting) -> None:
        (broken,) = scheduler.submit([row(0, steps="broken")])
        with pytest.raises(ValueError, match="broken"):
            await broken
        assert await asyncio.gather(*scheduler.submit([row(1)])) == [1]

    run(body)


def test_every_shape_is_warmed_up() -> None:
    async def main() -> list[tuple[int, int]]:
        scheduler = BatchScheduler(Counting(), BUCKETS, 1, 0.0, lambda *_: None)
        shapes: list[tuple[int, int]] = []
        await scheduler.warm_up(lambda rows, length: shapes.append((rows, length)))
        await scheduler.stop()
        return shapes

    assert asyncio.run(main()) == [(1, 8), (1, 16), (4, 8), (4, 16)]
