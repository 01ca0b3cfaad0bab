"""OpenAI-compatible paths: /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings.

A stream is server-sent events: one `data: {chunk}` for each piece of text, then `data: [DONE]`. A
client that goes away ends its generation. Errors are those of `service.py`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from trnx.jobs.openai_types import ChatBody, CompletionBody, EmbeddingBody
from trnx.jobs.service import Service
from trnx.jobs.text_stream import TextRequest, TextStream

T = TypeVar("T")
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _Form:
    """How an answer of text looks: its kind, and the key of a choice in a whole one and a chunk."""

    prefix: str
    whole: str
    chunk: str
    chat: bool

    def choice(self, text: str, reason: str | None, part: bool) -> dict[str, Any]:
        """The only choice."""
        body: dict[str, Any] = {"text": text}
        if self.chat:
            message = {"content": text, **({} if part and not text else {"role": "assistant"})}
            body = {"delta" if part else "message": message}
        return {"index": 0, **body, "logprobs": None, "finish_reason": reason}


_COMPLETION = _Form("cmpl", "text_completion", "text_completion", False)
_CHAT = _Form("chatcmpl", "chat.completion", "chat.completion.chunk", True)


async def until_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled where the client goes away."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_POLL_SECONDS)
            if not task.done() and await request.is_disconnected():
                raise HTTPException(499, "the client has gone")
    finally:
        task.cancel()
    return task.result()


def add_openai_paths(app: FastAPI, service: Service) -> None:
    """Serve the paths; see the module."""
    _add_models(app, service)
    _add_text(app, service)
    _add_embeddings(app, service)


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        entries = [
            {"id": name, "object": "model", "created": service.created, "owned_by": "trnx"}
            for name in service.model_names.values()
        ]
        return {"object": "list", "data": entries}


def _add_text(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        writer = service.writer(body.model)
        tokens = await asyncio.to_thread(writer.tokens, body.prompt)
        stream = service.open_stream(tokens, _request(body, body.max_tokens))
        return await _answer(request, body, stream, _COMPLETION)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        writer = service.writer(body.model)
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        tokens = await asyncio.to_thread(writer.chat_tokens, messages)
        most = body.max_completion_tokens or body.max_tokens
        stream = service.open_stream(tokens, _request(body, most or service.room(tokens)))
        return await _answer(request, body, stream, _CHAT)


def _request(body: CompletionBody | ChatBody, most: int) -> TextRequest:
    return TextRequest(most, body.sampling, tuple(body.stop or ()))


async def _answer(
    request: Request, body: CompletionBody | ChatBody, stream: TextStream, form: _Form
) -> Response:
    head = {
        "id": f"{form.prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        # The first piece is waited for: what refuses the request has a status then.
        pieces = stream.pieces()
        first: str = await until_gone(request, anext(pieces))
        head["object"] = form.chunk
        events = _events(head, first, pieces, stream, form, body.wants_usage)
        return StreamingResponse(events, media_type="text/event-stream")
    text = await until_gone(request, stream.whole())
    choice = form.choice(text, stream.finish_reason, part=False)
    return JSONResponse({**head, "object": form.whole, "choices": [choice], "usage": stream.usage})


async def _events(
    head: dict[str, Any],
    first: str,
    pieces: AsyncGenerator[str, None],
    stream: TextStream,
    form: _Form,
    wants_usage: bool,
) -> AsyncIterator[str]:
    def event(**values: Any) -> str:
        return f"data: {json.dumps({**head, **values})}\n\n"

    async with aclosing(pieces):
        yield event(choices=[form.choice(first, None, part=True)])
        async for piece in pieces:
            yield event(choices=[form.choice(piece, None, part=True)])
        yield event(choices=[form.choice("", stream.finish_reason, part=True)])
    if wants_usage:
        yield event(choices=[], usage=stream.usage)
    yield "data: [DONE]\n\n"


def _add_embeddings(app: FastAPI, service: Service) -> None:
    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingBody, request: Request) -> dict[str, Any]:
        service.check_model("embed", body.model)
        vectors, tokens = await until_gone(request, service.embeddings(body.input))
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, body)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": body.model, "usage": usage}


def _encoded(vector: list[float], body: EmbeddingBody) -> list[float] | str:
    if body.encoding_format == "float":
        return vector
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
