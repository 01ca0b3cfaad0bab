"""Tokens as they come -> pieces of text, with the times that dashboards show."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from trnx.jobs.continuous import ContinuousEngine
from trnx.jobs.engines import GenerationEngine
from trnx.jobs.service_metrics import TextMetrics

# What a decoder gives for bytes of which the rest is still to come.
_INCOMPLETE = "\ufffd"


class TextStream:
    """One request for text. `finish_reason` and `usage` hold once all pieces were taken."""

    def __init__(
        self,
        writer: GenerationEngine,
        engine: ContinuousEngine,
        metrics: TextMetrics,
        prompt: list[int],
        most: int,
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._metrics = metrics
        self._prompt = prompt
        self._most = most
        self._made: list[int] = []
        self.finish_reason = "length"

    @property
    def usage(self) -> dict[str, int]:
        """Counts of tokens."""
        prompt, made = len(self._prompt), len(self._made)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
        }

    async def whole(self) -> str:
        """The text in one piece."""
        return "".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Text as it comes, at least one piece; the last one may be empty.

        Raises QueueFullError and ModelError.
        """
        sent = 0
        async with aclosing(self._tokens()) as tokens:
            async for token in tokens:
                self._made.append(token)
                text = self._writer.text(self._made)
                if not text.endswith(_INCOMPLETE):
                    yield text[sent:]
                    sent = len(text)
        yield self._writer.text(self._made)[sent:]

    async def _tokens(self) -> AsyncGenerator[int, None]:
        """Tokens without the one that ends the text."""
        metrics, start = self._metrics, time.perf_counter()
        metrics.prompt_tokens.inc(len(self._prompt))
        last, end = start, self._writer.end
        observe = metrics.first_token
        stream = self._engine.stream(self._prompt, self._most, end)
        async with aclosing(stream) as tokens:
            async for token in tokens:
                now = time.perf_counter()
                observe.observe(now - last)
                observe, last = metrics.between_tokens, now
                if token == end:
                    self.finish_reason = "stop"
                    break
                metrics.generated_tokens.inc()
                yield token
        metrics.request_seconds.observe(time.perf_counter() - start)
        metrics.finished(self.finish_reason)
