"""The HTTP application: paths, bodies, answers to bad requests, metrics.

| path | method | answer |
|---|---|---|
| /health | GET | 200 while the process works |
| /ready | GET | 200 once every shape is compiled, 503 before, and while the service drains |
| /metrics | GET | Prometheus text |
| /embed | POST `{"inputs": "text" or [...]}` | `{"embeddings": [[...]], "tokens": n}` |
| /generate | POST `{"prompt", "max_new_tokens", "temperature", "seed"}` | `{"text", ...}` |
| /v1/... | | `openai_api.py` |

An error is `{"error": {"code", "message", "type", "param"}}`: 400 no JSON, 404 no such path or
model, 405, 408 a body that comes too slowly, 413 body too large, 422 fields that are missing,
wrong, empty or too long, 429 with Retry-After where the queue is full, 503 with Retry-After where
the service is not ready, 504 after the timeout.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trnx.jobs.continuous import ContinuousEngine
from trnx.jobs.engines import EmbeddingEngine, GenerationEngine
from trnx.jobs.scheduler import BatchScheduler, QueueFullError
from trnx.jobs.serve_flags import NONE, ServeSettings
from trnx.jobs.service_metrics import ServiceMetrics
from trnx.jobs.service_types import EmbedRequest, GenerateRequest
from trnx.jobs.text_stream import TextRequest, TextStream

log = logging.getLogger(__name__)

PATHS = (
    "/health",
    "/ready",
    "/metrics",
    "/embed",
    "/generate",
    "/v1/models",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
)
_RETRY_SECONDS = "1"
# The most that is read of a body that is too large.
_DISCARDED_BYTES = 64 << 20
_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "body_too_large",
    422: "invalid_request",
    429: "queue_full",
    499: "client_closed_request",
    500: "internal_error",
    503: "unavailable",
    504: "timeout",
}


class Service:
    """What the paths share: schedulers of the loaded engines, metrics, and whether it is ready."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = ServiceMetrics()
        self.schedulers: dict[str, BatchScheduler] = {}
        self.is_ready = False
        self.is_draining = False
        self.created = int(time.time())
        # What clients of /v1 call the model of an engine.
        self.model_names = {
            name: Path(source).name
            for name, source in (("embed", settings.embed), ("generate", settings.generate))
            if source != NONE
        }
        self.text: ContinuousEngine | None = None
        self.answered = 0
        self.cut = 0  # requests that were ended without an answer

    def add(self, engine: EmbeddingEngine | GenerationEngine) -> BatchScheduler:
        """Serve an engine."""
        settings, metrics, name = self.settings, self.metrics, engine.name

        def observe(items: int, rows: int, length: int) -> None:
            metrics.batches.labels(name, rows, length).inc()
            metrics.rows.labels(name).inc(items)

        scheduler = BatchScheduler(
            engine, settings.buckets, settings.queue, settings.max_wait, observe
        )
        metrics.waiting.labels(name).set_function(lambda: scheduler.waiting)
        self.schedulers[name] = scheduler
        return scheduler

    def add_text(self, engine: ContinuousEngine) -> None:
        """Serve /v1/completions and /v1/chat/completions."""
        self.text = engine
        text = self.metrics.text_of(self.model_names["generate"])
        text.running.set_function(lambda: engine.running)
        text.waiting.set_function(lambda: engine.waiting)

    def set_ready(self, ready: bool) -> None:
        """Whether /ready says so."""
        self.is_ready = ready
        self.metrics.ready.set(ready)

    def scheduler(self, name: str) -> BatchScheduler:
        """That of an engine. Raises HTTPException where there is none, or it is not ready."""
        if name not in self.schedulers:
            raise HTTPException(404, f"this service was started without a model for /{name}")
        # A draining service still answers what reaches it: its address goes out of use slowly.
        if not self.is_ready and not self.is_draining:
            raise HTTPException(
                503, "not ready: shapes are being compiled", {"Retry-After": _RETRY_SECONDS}
            )
        return self.schedulers[name]

    async def results(
        self, scheduler: BatchScheduler, rows: list[tuple[list[int], Any]]
    ) -> list[Any]:
        """Results of all rows. Raises QueueFullError, and HTTPException where time is up."""
        futures = scheduler.submit(rows)
        try:
            async with asyncio.timeout(self.settings.timeout):
                return list(await asyncio.gather(*futures))
        except TimeoutError:
            message = f"no answer within {self.settings.timeout:g} seconds"
            raise HTTPException(504, message) from None
        finally:
            for future in futures:
                future.cancel()

    async def embeddings(self, texts: list[str]) -> tuple[list[list[float]], int]:
        """(vectors, tokens) of texts. Raises QueueFullError and HTTPException."""
        scheduler, settings = self.scheduler("embed"), self.settings
        engine = scheduler.engine
        assert isinstance(engine, EmbeddingEngine)
        if len(texts) > settings.max_inputs:
            raise HTTPException(
                422, f"inputs: {len(texts)} texts; at most {settings.max_inputs} are allowed"
            )
        # Not in the event loop: a large body takes seconds, in which nobody else would be heard.
        rows = await asyncio.to_thread(lambda: [engine.tokens(text) for text in texts])
        for index, row in enumerate(rows):
            most = min(settings.buckets.lengths[-1], engine.limit)
            check_length(len(row), most, f"inputs.{index}")
        vectors = await self.results(scheduler, [(row, None) for row in rows])
        return vectors, sum(map(len, rows))

    def check_model(self, name: str, model: str) -> None:
        """Raises HTTPException where the model of an engine has another name."""
        if self.model_names.get(name) != model:
            raise HTTPException(404, f"no model {model!r} here; GET /v1/models lists them")

    def writer(self, model: str) -> GenerationEngine:
        """What reads and writes the tokens of a model. Raises HTTPException."""
        self.check_model("generate", model)
        engine = self.scheduler("generate").engine
        assert isinstance(engine, GenerationEngine)
        return engine

    def room(self, tokens: list[int]) -> int:
        """How many tokens may be generated behind `tokens`, at least 1."""
        room = self._longest() - len(tokens)
        return max(min(room, self.settings.max_new_tokens), 1)

    def _longest(self) -> int:
        engine = self.schedulers["generate"].engine
        assert isinstance(engine, GenerationEngine)
        return min(self.settings.buckets.lengths[-1], engine.limit)

    def open_stream(self, tokens: list[int], request: TextRequest) -> TextStream:
        """Text behind `tokens`. Raises HTTPException where it would be too long."""
        most = request.most
        if most > self.settings.max_new_tokens:
            raise HTTPException(
                422, f"max_tokens: {most}; at most {self.settings.max_new_tokens} are allowed"
            )
        check_length(len(tokens) + most, self._longest(), "prompt with max_tokens")
        name = self.model_names["generate"]
        writer = self.writer(name)
        assert self.text is not None
        return TextStream(writer, self.text, self.metrics.text_of(name), tokens, request)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    code = _CODES.get(status, "error")
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"code": code, "message": message, "type": kind, "param": None}
    return JSONResponse({"error": error}, status, headers)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, dict(error.headers or {}) or None)


async def _queue_full(_: Request, error: Exception) -> Response:
    assert isinstance(error, QueueFullError)
    return _error(429, "the queue is full: send it again later", {"Retry-After": _RETRY_SECONDS})


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    if any(problem["type"] == "json_invalid" for problem in problems):
        return _error(400, "the body is not JSON")
    if any(problem["loc"] == ("body",) for problem in problems):
        return _error(
            422, "the body is no JSON object, or not sent as Content-Type application/json"
        )
    lines = []
    for problem in problems:
        field = ".".join(str(part) for part in problem["loc"] if part != "body") or "body"
        lines.append(f"{field}: {problem['msg']}")
    return _error(422, "; ".join(lines))


class BodyLimit:
    """ASGI middleware: a body with more than `most` bytes is refused, announced or not, and one
    that is not there after `seconds`.

    What is left of a refused body is read and thrown away, to a limit: a client that still sends
    when the connection closes does not see the answer.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self._app = app
        self._most = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = f"the body has more than {self._most} bytes"
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._most:
            await _discard(receive)
            await _error(413, message, {"Connection": "close"})(scope, receive, send)
            return
        seen, whole = 0, False
        end = asyncio.get_running_loop().time() + self._seconds

        async def counted() -> Message:
            nonlocal seen, whole
            try:
                # Behind the body comes the end of the connection, which has time.
                async with asyncio.timeout_at(None if whole else end):
                    part = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"no whole body within {self._seconds:g} seconds", {"Connection": "close"}
                ) from None
            whole = not part.get("more_body", False)
            seen += len(part.get("body", b""))
            if seen > self._most:
                if part.get("more_body", False):
                    await _discard(receive)
                raise HTTPException(413, message, {"Connection": "close"})
            return part

        await self._app(scope, counted, send)


async def _discard(receive: Receive) -> None:
    seen = 0
    while seen < _DISCARDED_BYTES:
        part = await receive()
        seen += len(part.get("body", b""))
        if not part.get("more_body", False):
            return


def make_app(service: Service) -> FastAPI:
    """The application of a service, whose engines may be added later."""
    app = FastAPI(title="trnx", docs_url=None, redoc_url=None)
    app.add_middleware(
        BodyLimit, most=service.settings.max_body, seconds=service.settings.read_timeout
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(QueueFullError, _queue_full)
    _add_measurement(app, service)
    _add_probes(app, service)
    _add_models(app, service)
    return app


def _add_measurement(app: FastAPI, service: Service) -> None:
    metrics = service.metrics

    @app.middleware("http")
    async def measure(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        # Unknown paths are counted together: clients must not be able to make up labels.
        path = request.url.path if request.url.path in PATHS else "other"
        start = time.perf_counter()
        with metrics.in_flight.track_inprogress():
            try:
                response = await call(request)
            except asyncio.CancelledError:
                service.cut += 1
                raise
            # The boundary of the service: an error of the model is an answer, not the end.
            except Exception as error:
                log.exception("%s failed", path)
                response = _error(500, f"the model failed on this batch ({type(error).__name__})")
        metrics.seconds.labels(path).observe(time.perf_counter() - start)
        metrics.requests.labels(path, response.status_code).inc()
        service.answered += 1
        return response


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        if not service.is_ready:
            raise HTTPException(503, "draining" if service.is_draining else "compiling")
        return {"status": "ready"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def check_length(tokens: int, most: int, what: str) -> None:
    """Raises HTTPException where something has too many tokens."""
    if tokens > most:
        raise HTTPException(422, f"{what} has {tokens} tokens; at most {most} are allowed")


def _add_models(app: FastAPI, service: Service) -> None:
    settings = service.settings
    longest = settings.buckets.lengths[-1]

    @app.post("/embed")
    async def embed(body: EmbedRequest) -> dict[str, Any]:
        vectors, tokens = await service.embeddings(body.inputs)
        return {"embeddings": vectors, "tokens": tokens}

    @app.post("/generate")
    async def generate(body: GenerateRequest) -> dict[str, Any]:
        scheduler = service.scheduler("generate")
        engine = scheduler.engine
        assert isinstance(engine, GenerationEngine)
        if body.max_new_tokens > settings.max_new_tokens:
            raise HTTPException(
                422,
                f"max_new_tokens: {body.max_new_tokens}; at most {settings.max_new_tokens} are "
                "allowed",
            )
        tokens = await asyncio.to_thread(engine.tokens, body.prompt)
        most = min(longest, engine.limit)
        check_length(len(tokens) + body.max_new_tokens, most, "prompt with max_new_tokens")
        (result,) = await service.results(scheduler, [(tokens, body)])
        answer: dict[str, Any] = {**result, "prompt_tokens": len(tokens)}
        return answer
