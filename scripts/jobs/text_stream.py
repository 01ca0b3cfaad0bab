"""Tokens as they come -> pieces of text, with the times that dashboards show."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from trnx.jobs.continuous import ContinuousEngine
from trnx.jobs.engines import GenerationEngine
from trnx.jobs.sampling import GREEDY, Sampling
from trnx.jobs.service_metrics import TextMetrics

# What a decoder gives for bytes of which the rest is still to come.
_INCOMPLETE = "\ufffd"


@dataclass(frozen=True)
class TextRequest:
    """At most `most` tokens, up to the first of the texts `stop`, which is left out."""

    most: int
    sampling: Sampling = GREEDY
    stop: Sequence[str] = ()


def _begun(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of a text with which one of `stops` may begin."""
    for count in range(max(map(len, stops), default=1) - 1, 0, -1):
        if any(stop.startswith(text[-count:]) for stop in stops):
            return count
    return 0


class TextStream:
    """One request for text. `finish_reason` and `usage` hold once all pieces were taken."""

    def __init__(
        self,
        writer: GenerationEngine,
        engine: ContinuousEngine,
        metrics: TextMetrics,
        prompt: list[int],
        request: TextRequest,
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._metrics = metrics
        self._prompt = prompt
        self._request = request
        self._made: list[int] = []
        self._stopped = False  # by one of the request's texts
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
        sent, text, stops = 0, "", self._request.stop
        async with aclosing(self._tokens()) as tokens:
            async for token in tokens:
                self._made.append(token)
                text = self._writer.text(self._made)
                found = [place for stop in stops if (place := text.find(stop)) >= 0]
                if found:
                    text, self._stopped = text[: min(found)], True
                elif not text.endswith(_INCOMPLETE):
                    safe = len(text) - _begun(text, stops)
                    if safe > sent:
                        yield text[sent:safe]
                        sent = safe
        yield text[sent:]

    async def _tokens(self) -> AsyncGenerator[int, None]:
        """Tokens without the one that ends the text."""
        metrics, start = self._metrics, time.perf_counter()
        metrics.prompt_tokens.inc(len(self._prompt))
        last, ends, request = start, self._writer.ends, self._request
        observe = metrics.first_token
        stream = self._engine.stream(self._prompt, request.most, ends, request.sampling)
        async with aclosing(stream) as tokens:
            async for token in tokens:
                now = time.perf_counter()
                observe.observe(now - last)
                observe, last = metrics.between_tokens, now
                if token in ends:
                    self.finish_reason = "stop"
                    break
                metrics.generated_tokens.inc()
                yield token
                if self._stopped:
                    self.finish_reason = "stop"
                    break
        metrics.request_seconds.observe(time.perf_counter() - start)
        metrics.finished(self.finish_reason)
