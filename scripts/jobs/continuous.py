"""Text through the continuous batching and the paged cache of transformers.

Its manager joins new prompts to running sequences between two tokens, and cuts long prompts into
pieces. Every batch is padded to one of few shapes, `[1, n * rows]` tokens over all cached ones, so
that decoding is one graph and prompts are a few more; the model and the choice of the next token
are in it. Each shape is compiled twice: greedy, and for batches in which a token is drawn.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Collection, Mapping
from itertools import chain, count, product
from types import MethodType
from typing import Any, cast

import torch

from trnx.backend.torch_internals import without_disable
from trnx.jobs.errors import ModelError
from trnx.jobs.sampling import GREEDY, Sampling
from trnx.jobs.scheduler import QueueFullError

_PAGE = 16  # tokens
# A batch has at most so many times as many tokens as rows: that many graphs are compiled.
_SHAPES = 3


class ContinuousEngine:
    """Streams of tokens from one model; at most `limit` requests wait or run.

    `start` begins a thread, `stop` ends it; `stream` is for an event loop.
    """

    def __init__(
        self,
        model: Any,
        rows: int,
        longest: int,
        limit: int,
        backend: str,
        options: Mapping[str, str] | None,
    ) -> None:
        """`model` is a causal language model of transformers; a sequence with what is generated
        has at most `longest` tokens."""
        from transformers import CompileConfig, ContinuousBatchingConfig, GenerationConfig

        from trnx.jobs.drawing import Draw

        self._limit = limit
        self._shapes = [rows * number for number in range(1, _SHAPES + 1)]
        pages = rows * -(-longest // _PAGE)
        compiled, mode = None, cast(Any, None)  # torch.compile takes a mode or options
        if backend != "eager":
            chosen = dict(options) if options else None
            compiled = CompileConfig(backend=backend, dynamic=False, mode=mode, options=chosen)
        config = ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=pages,
            max_requests_per_batch=rows,
            max_batch_tokens=self._shapes[-1],
            q_padding_interval_size=rows,
            kv_padding_interval_size=pages * _PAGE,
            varlen_compile_config=compiled,
            use_async_batching=False,
            use_cuda_graph=False,
            # A prefix that is shared would have to be in the cache before the text that needs it.
            allow_block_sharing=False,
            auto_switch_to_flash=False,
        )
        generation = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, max_new_tokens=1, pad_token_id=0
        )
        # Batching changes the model's configuration, which other threads may be reading.
        self._model = _with_own_configuration(model)
        self._manager = self._model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=config
        )
        self._draw = Draw(self._shapes[-1], self._model.device)
        self._manager.logit_processor = self._draw.as_list()
        self._numbers = count()
        self._started: dict[str, bool] = {}

    @property
    def waiting(self) -> int:
        """Requests without a token so far."""
        return sum(not started for started in self._started.values())

    @property
    def running(self) -> int:
        """Requests of which a token is there."""
        return len(self._started) - self.waiting

    @torch.no_grad()
    def warm_up(self) -> None:
        """Compile every shape. Raises ModelError where one fails."""
        manager = self._manager
        manager.batch_processor = manager._create_batch_processor()
        _let_into_graphs(manager.batch_processor.cache)
        manager.warmup()
        runner = manager.batch_processor.model_runner
        shapes = self._shapes if runner.pad_inputs else []
        for tokens, drawn in product(shapes, (False, True)):
            self._draw.always = drawn
            # transformers logs what fails, and goes on.
            if not runner.run_one_warmup(self._model, tokens, 0):
                raise ModelError(
                    f"continuous batching failed on a batch of {tokens} tokens; the log says why"
                )
        self._draw.always = False
        runner.cache.reset()

    def start(self) -> None:
        """Begin to run what is asked for."""
        self._manager.start()

    def stop(self) -> None:
        """End; what still runs fails."""
        self._manager.stop(block=True, hard_stop=True)

    async def stream(
        self, prompt: list[int], most: int, ends: Collection[int], sampling: Sampling = GREEDY
    ) -> AsyncGenerator[int, None]:
        """Up to `most` tokens behind a prompt, with the one of `ends` where it comes; greedy
        without `sampling`. To close the iterator cancels the request.

        Raises QueueFullError, and ModelError where the model fails.
        """
        if len(self._started) >= self._limit:
            raise QueueFullError
        self._forget_strays()
        name = f"request-{next(self._numbers)}"
        results: asyncio.Queue[Any] = asyncio.Queue()
        self._started[name] = False
        self._manager.register_result_handler(name, results.put_nowait)
        seen = 0
        try:
            self._submit(prompt, name, most, ends, sampling)
            finished = False
            while not finished:
                result = await results.get()
                finished = result.is_finished()
                if result.error is not None:
                    raise ModelError(f"the model failed: {result.error}")
                self._started[name] = True
                for token in result.generated_tokens[seen:]:
                    yield token
                seen = len(result.generated_tokens)
        finally:
            del self._started[name]
            self._cancel(name)

    def _submit(
        self,
        prompt: list[int],
        name: str,
        most: int,
        ends: Collection[int],
        sampling: Sampling,
    ) -> None:
        taken = self._manager.add_request(
            prompt,
            request_id=name,
            max_new_tokens=most,
            streaming=True,
            eos_token_id=list(ends) or -1,
            **sampling.arguments(),
        )
        if taken is None:
            raise ModelError("the model failed before, and takes no more requests")

    def _cancel(self, name: str) -> None:
        router = self._manager.output_router
        with router._lock:
            unfinished = router.result_handlers.pop(name, None) is not None
        if unfinished:
            self._manager.cancel_request(name)

    def _forget_strays(self) -> None:
        """Tokens that came behind a cancellation: nobody else takes them from the manager."""
        while not self._manager.output_router.output_queue.empty():
            self._manager.get_result(timeout=0)


def _let_into_graphs(cache: Any) -> None:
    """transformers keeps TorchDynamo out of the cache, so that every layer would be cut in two."""
    cache.update = MethodType(without_disable(type(cache).update), cache)


def _with_own_configuration(model: Any) -> Any:
    """The model again, with the same parameters and buffers in memory."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
