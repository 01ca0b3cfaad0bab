"""Dynamic batching: requests that wait together run together, in few shapes.

An engine computes one step for a batch of items: an embedding is done after one, generated text
after one a token. Before each step the items are chosen anew, oldest first, so that new requests
join a batch between two tokens of others. A batch is padded to one of `batch_sizes` rows and one of
`lengths` tokens, so that only their products are compiled.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

log = logging.getLogger(__name__)


class QueueFullError(Exception):
    """More requests wait than the queue holds."""


@dataclass(eq=False)
class Item:
    """One row of work: tokens so far, what the engine needs to know, and who waits for it."""

    tokens: list[int]
    future: asyncio.Future[Any]
    request: Any = None
    state: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """What computes. `step` runs in one thread, never twice at a time."""

    name: str

    def step(self, items: Sequence[Item], rows: int, length: int) -> list[Any]:
        """One step over `items`, padded to [rows, length]; for each its result, or None where it
        needs a further step."""


@dataclass(frozen=True)
class Buckets:
    """The shapes that are compiled: all pairs of a batch size and a length, both ascending."""

    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]

    def rows(self, count: int) -> int:
        """The smallest batch size that holds `count` rows."""
        return self.batch_sizes[bisect_left(self.batch_sizes, count)]

    def length(self, tokens: int) -> int:
        """The smallest length that holds `tokens` tokens."""
        return self.lengths[bisect_left(self.lengths, tokens)]

    def shapes(self) -> Iterable[tuple[int, int]]:
        """All [rows, length]."""
        return product(self.batch_sizes, self.lengths)


Observer = Callable[[int, int, int], None]


class BatchScheduler:
    """Runs an engine for items from an event loop.

    `observe(items, rows, length)` is told of every batch. At most `limit` items wait or run.
    """

    def __init__(
        self, engine: Engine, buckets: Buckets, limit: int, wait: float, observe: Observer
    ) -> None:
        self.engine = engine
        self.buckets = buckets
        self._limit = limit
        self._wait = wait
        self._observe = observe
        self._pending: list[Item] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"trnx-{engine.name}")
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Items that wait or run."""
        return len(self._pending)

    async def warm_up(self, run: Callable[[int, int], None]) -> None:
        """Compile every shape: `run(rows, length)` in the engine's thread."""
        loop = asyncio.get_running_loop()
        for rows, length in self.buckets.shapes():
            await loop.run_in_executor(self._thread, run, rows, length)

    def start(self) -> None:
        """Begin to run what is submitted."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End when the running step has ended; what still waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for item in self._pending:
            item.future.cancel()
        self._thread.shutdown()

    def submit(self, rows: Sequence[tuple[list[int], Any]]) -> list[asyncio.Future[Any]]:
        """Futures of the results for (tokens, request) of each row.

        Raises QueueFullError where not all of them find a place, ValueError for a row that fits
        into no shape.
        """
        longest = self.buckets.lengths[-1]
        if any(not 0 < len(tokens) <= longest for tokens, _ in rows):
            raise ValueError(f"a row needs 1 to {longest} tokens")
        self._drop_finished()
        if len(self._pending) + len(rows) > self._limit:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        items = [Item(list(tokens), loop.create_future(), request) for tokens, request in rows]
        self._pending.extend(items)
        self._arrived.set()
        return [item.future for item in items]

    def _drop_finished(self) -> None:
        """Forget items that nobody waits for any more: done, or given up by the client."""
        self._pending = [item for item in self._pending if not item.future.done()]

    def choose(self) -> list[Item]:
        """The next batch: the oldest item, and those behind it that fit into its shape."""
        most = self.buckets.batch_sizes[-1]
        length = self.buckets.length(len(self._pending[0].tokens))
        fitting = (item for item in self._pending if len(item.tokens) <= length)
        return [item for item, _ in zip(fitting, range(most), strict=False)]

    async def _run(self) -> None:
        while True:
            self._drop_finished()
            if not self._pending:
                self._arrived.clear()
                await self._arrived.wait()
                # Others that come at the same time share the batch.
                await asyncio.sleep(self._wait)
                continue
            await self._step(self.choose())

    async def _step(self, items: list[Item]) -> None:
        rows = self.buckets.rows(len(items))
        length = self.buckets.length(max(len(item.tokens) for item in items))
        self._observe(len(items), rows, length)
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(
                self._thread, self.engine.step, items, rows, length
            )
        # The boundary between requests and the service: a batch that fails must not end the others.
        except Exception as error:
            log.exception("%s: a batch of %d failed", self.engine.name, len(items))
            for item in items:
                if not item.future.done():
                    item.future.set_exception(error)
            return
        for item, result in zip(items, results, strict=True):
            if result is not None and not item.future.done():
                item.future.set_result(result)
