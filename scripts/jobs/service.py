"""The HTTP application: paths, bodies, answers to bad requests, metrics.

| path | method | answer |
|---|---|---|
| /health | GET | 200 while the process works |
| /ready | GET | 200 once every shape is compiled, 503 before, and while the service drains |
| /metrics | GET | Prometheus text |
| /embed | POST `{"inputs": "text" or [...]}` | `{"embeddings": [[...]], "tokens": n}` |
| /generate | POST `{"prompt", "max_new_tokens", "temperature", "seed"}` | `{"text", ...}` |

An error is `{"error": {"code", "message"}}`: 400 no JSON, 404 no such path or model, 405, 413 body
too large, 422 fields that are missing, wrong, empty or too long, 503 with Retry-After where the
service is not ready or its queue is full, 504 after the timeout.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trnx.jobs.engines import EmbeddingEngine, GenerationEngine
from trnx.jobs.scheduler import BatchScheduler, QueueFullError
from trnx.jobs.serve_flags import ServeSettings
from trnx.jobs.service_metrics import ServiceMetrics

log = logging.getLogger(__name__)

PATHS = ("/health", "/ready", "/metrics", "/embed", "/generate")
_RETRY_SECONDS = "1"
# The most that is read of a body that is too large.
_DISCARDED_BYTES = 64 << 20
_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    422: "invalid_request",
    500: "internal_error",
    503: "unavailable",
    504: "timeout",
}

Text = Annotated[StrictStr, Field(min_length=1)]


def _listed(value: Any) -> Any:
    """One text is a list of one."""
    return [value] if isinstance(value, str) else value


class EmbedRequest(BaseModel):
    """The body of /embed."""

    model_config = ConfigDict(extra="forbid")

    inputs: Annotated[list[Text], Field(min_length=1), BeforeValidator(_listed)]


class GenerateRequest(BaseModel):
    """The body of /generate. Temperature 0 takes the most likely token."""

    model_config = ConfigDict(extra="forbid")

    prompt: Text
    max_new_tokens: Annotated[StrictInt, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None


class Service:
    """What the paths share: schedulers of the loaded engines, metrics, and whether it is ready."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = ServiceMetrics()
        self.schedulers: dict[str, BatchScheduler] = {}
        self.is_ready = False
        self.is_draining = False
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
        """Results of all rows. Raises HTTPException: queue full, or time is up."""
        try:
            futures = scheduler.submit(rows)
        except QueueFullError:
            raise HTTPException(
                503,
                f"the queue of {self.settings.queue} rows is full",
                {"Retry-After": _RETRY_SECONDS},
            ) from None
        try:
            async with asyncio.timeout(self.settings.timeout):
                return list(await asyncio.gather(*futures))
        except TimeoutError:
            message = f"no answer within {self.settings.timeout:g} seconds"
            raise HTTPException(504, message) from None
        finally:
            for future in futures:
                future.cancel()


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    code = _CODES.get(status, "error")
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, dict(error.headers or {}) or None)


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
    """ASGI middleware: a body with more than `most` bytes is refused, announced or not.

    What is left of a refused body is read and thrown away, to a limit: a client that still sends
    when the connection closes does not see the answer.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

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
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            part = await receive()
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
    app.add_middleware(BodyLimit, most=service.settings.max_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
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


def _check_length(tokens: int, most: int, what: str) -> None:
    if tokens > most:
        raise HTTPException(422, f"{what} has {tokens} tokens; at most {most} are allowed")


def _add_models(app: FastAPI, service: Service) -> None:
    settings = service.settings
    longest = settings.buckets.lengths[-1]

    @app.post("/embed")
    async def embed(body: EmbedRequest) -> dict[str, Any]:
        scheduler = service.scheduler("embed")
        engine = scheduler.engine
        assert isinstance(engine, EmbeddingEngine)
        if len(body.inputs) > settings.max_inputs:
            raise HTTPException(
                422, f"inputs: {len(body.inputs)} texts; at most {settings.max_inputs} are allowed"
            )
        rows = [engine.tokens(text) for text in body.inputs]
        for index, row in enumerate(rows):
            _check_length(len(row), min(longest, engine.limit), f"inputs.{index}")
        vectors = await service.results(scheduler, [(row, None) for row in rows])
        return {"embeddings": vectors, "tokens": sum(map(len, rows))}

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
        tokens = engine.tokens(body.prompt)
        most = min(longest, engine.limit)
        _check_length(len(tokens) + body.max_new_tokens, most, "prompt with max_new_tokens")
        (result,) = await service.results(scheduler, [(tokens, body)])
        answer: dict[str, Any] = {**result, "prompt_tokens": len(tokens)}
        return answer
