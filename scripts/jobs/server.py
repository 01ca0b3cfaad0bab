"""The service's life: listen, compile, serve, drain."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

import trnx
from trnx.jobs import devices
from trnx.jobs.continuous import ContinuousEngine
from trnx.jobs.devices import Platform
from trnx.jobs.engines import EmbeddingEngine, GenerationEngine
from trnx.jobs.errors import FlagError, NoGraphWarning
from trnx.jobs.openai_api import add_openai_paths
from trnx.jobs.serve_flags import NONE, ServeSettings
from trnx.jobs.service import Service, make_app


class _Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers: they would end the process by the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _say(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def _listen(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise FlagError(
            f"cannot listen on --host {settings.host} --port {settings.port}: {error}"
        ) from None
    return listener


def _compilation(settings: ServeSettings) -> tuple[Platform, str, dict[str, str] | None]:
    """(platform, backend, its options)."""
    platform = devices.detect(settings.runner)
    backend = devices.resolve_backend(settings.backend, platform)
    if backend != "trnx":
        return platform, backend, None
    return platform, backend, devices.trnx_options(platform, settings.target, settings.runner)


def _load(settings: ServeSettings) -> list[EmbeddingEngine | GenerationEngine]:
    platform, backend, options = _compilation(settings)
    engines: list[EmbeddingEngine | GenerationEngine] = []
    if settings.embed != NONE:
        engines.append(EmbeddingEngine(settings.embed, backend, options, platform.device))
    if settings.generate != NONE:
        engines.append(GenerationEngine(settings.generate, backend, options, platform.device))
    return engines


def _continuous(settings: ServeSettings, engine: GenerationEngine) -> ContinuousEngine:
    _, backend, options = _compilation(settings)
    rows, longest = settings.buckets.batch_sizes[-1], settings.buckets.lengths[-1]
    longest = min(longest, engine.limit)
    return ContinuousEngine(engine.module, rows, longest, settings.queue, backend, options)


async def _warm_up(service: Service) -> None:
    """Load, compile every shape, and be ready. Raises TrnxError."""
    start = time.perf_counter()
    with trnx.collect_reports() as reports:
        engines = await asyncio.to_thread(_load, service.settings)
        for engine in engines:
            await service.add(engine).warm_up(engine.warm_up)
            if isinstance(engine, GenerationEngine):
                text = _continuous(service.settings, engine)
                await asyncio.to_thread(text.warm_up)
                service.add_text(text)
    on_trnx = _compilation(service.settings)[1] == "trnx"
    if on_trnx and not reports:
        warnings.warn(
            "the models were compiled for trnx, and ran without a graph: TorchDynamo captured "
            "nothing of them. TORCH_LOGS=graph_breaks says why",
            NoGraphWarning,
            stacklevel=2,
        )
    share = reports.flops_on_nki if on_trnx and reports else None
    seconds = time.perf_counter() - start
    service.metrics.warm_up.set(seconds)
    service.metrics.nki_share.set(share or 0.0)
    for scheduler in service.schedulers.values():
        scheduler.start()
    if service.text is not None:
        service.text.start()
    service.set_ready(True)
    _say("ready", seconds=seconds, engines=list(service.schedulers), nki_share=share)


async def _wait_for_end(
    stop: asyncio.Event, serving: asyncio.Task[None], warming: asyncio.Task[None]
) -> None:
    """Until a signal comes, the server ends, or the warm-up fails (then raises its error)."""
    asked = asyncio.create_task(stop.wait())
    pending: set[asyncio.Task[Any]] = {asked, serving, warming}
    try:
        while asked in pending and serving in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if warming in done:
                warming.result()
    finally:
        asked.cancel()


def _app(service: Service) -> FastAPI:
    app = make_app(service)
    add_openai_paths(app, service)
    return app


async def run(settings: ServeSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. Raises TrnxError."""
    listener = _listen(settings)
    service = Service(settings)
    config = uvicorn.Config(
        _app(service),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(settings.grace),
    )
    server = _Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    warming = asyncio.create_task(_warm_up(service))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        _say("listening", host=host, port=port)
        await _wait_for_end(stop, serving, warming)
        service.is_draining = True
        service.set_ready(False)
        await asyncio.sleep(settings.drain_delay)
    finally:
        server.should_exit = True
        await serving
        listener.close()
    compiled = warming.done()
    _say("stopped", answered=service.answered, cut=service.cut, ready=compiled)
    if not compiled:
        # A thread that compiles cannot be interrupted, and may take minutes; nothing is lost.
        sys.stderr.flush()
        os._exit(0)
    for scheduler in service.schedulers.values():
        await scheduler.stop()
    if service.text is not None:
        await asyncio.to_thread(service.text.stop)
    return 1 if service.cut else 0
