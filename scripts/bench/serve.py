"""The service under load: many clients at once, bad requests among them, then SIGTERM.

Starts scripts/jobs/serve.py on a free port, waits until it is ready, and lets `--clients` clients
send one request after another for `--seconds`: prompts of mixed lengths whose text streams from
/v1/completions, of which every tenth client goes away, sentences to /embed, and prompts to
/generate. Bars: no good request fails; streamed text is that of the model in eager, token by token;
every bad request, each sent once and then at random, gets the status that docs/jobs.md says; in the
second half the service's memory grows by no more than 5 % (where a run takes a minute); a burst of
requests that is in flight at SIGTERM is answered, and the process ends with status 0. `--json`
prints one object as the last line; exit status 0 means that the bars hold.

    python scripts/bench/serve.py --clients 64 --seconds 120 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch

from trnx.jobs.engines import GenerationEngine

SERVE = Path(__file__).resolve().parents[1] / "jobs" / "serve.py"
WORDS = ("tensor", "engine", "compiles", "every", "kernel", "before", "batches", "arrive")
PROMPTS = (*WORDS, "a", "two words", "tensor engine", "every kernel")
JSON = {"content-type": "application/json"}
MODEL = "llama-tiny"
# What /v1/completions refuses of a body that is good else.
_WRONG: tuple[dict[str, Any], ...] = (
    {"model": 7}, {"prompt": ""}, {"prompt": None}, {"prompt": [1, 2]}, {"prompt": "a" * 40},
    {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": "4"}, {"max_tokens": 1.5},
    {"temperature": 2.5}, {"temperature": -1}, {"n": 2}, {"stream": "yes"}, {"best_of": 3},
    {"stream_options": {"other": 1}}, {"top_p": 0},
)  # fmt: skip
# (path, body, expected status): what clients do wrong.
BAD: tuple[tuple[str, bytes, int], ...] = (
    ("/embed", b'{"inputs": ', 400),
    ("/embed", b'{"inputs": ""}', 422),
    ("/embed", b'{"inputs": []}', 422),
    ("/embed", b'{"inputs": 7}', 422),
    ("/embed", b'{"inputs": "a", "unknown": 1}', 422),
    ("/embed", json.dumps({"inputs": "too long " * 400}).encode(), 422),
    ("/embed", b'{"inputs": "' + b"a" * (1 << 20) + b'"}', 413),
    ("/generate", b"{}", 422),
    ("/generate", b'{"prompt": "a", "max_new_tokens": 100000}', 422),
    ("/v1/completions", b'{"prompt": "a"}', 422),
    ("/v1/completions", b'{"model": "other", "prompt": "a"}', 404),
    ("/v1/completions", b'{"model": "llama-tiny", "prompt": "a", "max_tokens": 99999}', 422),
    ("/v1/chat/completions", b'{"model": "llama-tiny", "messages": []}', 422),
    ("/nothing", b"{}", 404),
    *(
        ("/v1/completions", json.dumps({"model": MODEL, "prompt": "a", **wrong}).encode(), 422)
        for wrong in _WRONG
    ),
)
_MOST_STREAMED = 16
_GROWTH = 0.05
# A shorter run ends before allocators have what they need.
_SETTLED_SECONDS = 60


@dataclass
class Load:
    """What the clients saw."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"/embed": [], "/generate": []})
    first_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    streams: int = 0
    left: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    bad_wrong: list[str] = field(default_factory=list)


def _good(chance: random.Random, generate: float) -> tuple[str, dict[str, Any]]:
    text = " ".join(chance.choices(WORDS, k=chance.randint(1, 8)))
    if chance.random() < generate:
        return "/generate", {"prompt": text[:12], "max_new_tokens": chance.randint(1, 4)}
    return "/embed", {"inputs": [text] * chance.randint(1, 2)}


def _is_right(path: str, body: dict[str, Any], answer: dict[str, Any]) -> bool:
    if path == "/generate":
        return 0 <= answer["tokens"] <= body["max_new_tokens"]
    return len(answer["embeddings"]) == len(body["inputs"])


async def _one(
    client: httpx.AsyncClient, load: Load, path: str, body: dict[str, Any], log: bool = True
) -> None:
    start = time.perf_counter()
    try:
        answer = await client.post(path, json=body)
    except httpx.HTTPError as error:
        load.errors[type(error).__name__] += 1
        return
    if answer.status_code != 200:
        load.errors[f"{path} {answer.status_code}"] += 1
    elif not _is_right(path, body, answer.json()):
        load.errors[f"{path} wrong answer"] += 1
    elif log:
        load.seconds[path].append(time.perf_counter() - start)


def expected_texts() -> dict[str, list[str]]:
    """Prompt -> texts of 1, 2, ... tokens, by the model in eager, without cache or batches."""
    engine = GenerationEngine(MODEL, "eager", None, torch.device("cpu"))
    return {prompt: _texts(engine, prompt) for prompt in PROMPTS}


@torch.no_grad()
def _texts(engine: GenerationEngine, prompt: str) -> list[str]:
    tokens, made = engine.tokens(prompt), []
    texts: list[str] = []
    while len(texts) < _MOST_STREAMED:
        logits = engine.module(input_ids=torch.tensor([tokens + made])).logits
        token = int(logits[0, -1].argmax())
        if token in engine.ends:
            return texts + [engine.text(made)] * (_MOST_STREAMED - len(texts))
        made.append(token)
        texts.append(engine.text(made))
    return texts


async def _stream(
    client: httpx.AsyncClient, load: Load, chance: random.Random, expected: dict[str, list[str]]
) -> None:
    """One stream; one in ten is left after its first piece."""
    prompt, most = chance.choice(PROMPTS), chance.randint(1, _MOST_STREAMED)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": most, "stream": True}
    leaves, text, last = chance.random() < 0.1, "", time.perf_counter()
    times = load.first_token
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                load.errors[f"stream {answer.status_code}"] += 1
                return
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.perf_counter()
                times.append(now - last)
                times, last = load.between_tokens, now
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                if leaves:
                    load.left += 1
                    return
    except httpx.HTTPError as error:
        load.errors[f"stream {type(error).__name__}"] += 1
        return
    load.streams += 1
    if text != expected[prompt][most - 1]:
        load.errors["stream: another text than eager"] += 1


async def _bad(
    client: httpx.AsyncClient, load: Load, path: str, content: bytes, expected: int
) -> None:
    load.bad += 1
    try:
        answer = await client.post(path, content=content, headers=JSON)
        seen = str(answer.status_code)
        good = answer.status_code == expected and "message" in answer.json()["error"]
    except httpx.HTTPError as error:
        seen, good = type(error).__name__, False
    if not good:
        load.bad_wrong.append(f"{path} {content[:40]!r}: {seen}")


async def _client(
    client: httpx.AsyncClient,
    load: Load,
    number: int,
    end: float,
    options: argparse.Namespace,
    expected: dict[str, list[str]],
) -> None:
    chance = random.Random(number)
    for bad in BAD[number :: options.clients]:
        await _bad(client, load, *bad)
    while time.perf_counter() < end:
        if chance.random() < options.bad_share:
            await _bad(client, load, *chance.choice(BAD))
            continue
        if chance.random() < options.stream_share:
            await _stream(client, load, chance, expected)
            continue
        await _one(client, load, *_good(chance, options.generate_share))


async def _many(
    url: str, options: argparse.Namespace, load: Load, expected: dict[str, list[str]]
) -> None:
    end = time.perf_counter() + options.seconds
    limits = httpx.Limits(max_connections=options.clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await asyncio.gather(
            *(
                _client(client, load, number, end, options, expected)
                for number in range(options.clients)
            )
        )


def _memory(process: subprocess.Popen[str]) -> int:
    """Resident bytes of the service."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _burst(url: str, clients: int, load: Load, stop: Callable[[], None]) -> None:
    """Every client has a request in flight when `stop` is called."""
    bodies = [{"inputs": [WORDS[n % len(WORDS)]]} for n in range(clients)]
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        tasks = [asyncio.create_task(_one(client, load, "/embed", body, False)) for body in bodies]
        while True:  # until the service has them all
            text = (await asyncio.to_thread(httpx.get, f"{url}/metrics", timeout=60)).text
            done = sum(task.done() for task in tasks)
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
            # The request for metrics itself is one of those in flight.
            if float(lines["trnx_requests_in_flight"]) - 1 + done >= clients:
                break
        stop()
        await asyncio.gather(*tasks)


def _percentile(values: list[float], part: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


def _percentiles(values: list[float]) -> dict[str, float | None]:
    return {name: _percentile(values, part) for name, part in _PARTS.items()}


def _events(process: subprocess.Popen[str], wanted: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == wanted:
            return event
    raise SystemExit(f"the service ended before it was {wanted}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; what was seen."""
    command = [sys.executable, str(SERVE), "--port", "0", "--generate", MODEL]
    command += ["--batch-sizes", "8", "--lengths", "32", "--timeout-seconds", "120"]
    command += ["--queue", str(8 * options.clients), "--backend", options.backend]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            port = _events(process, "listening")["port"]
            ready = _events(process, "ready")
            url = f"http://127.0.0.1:{port}"
            load, burst, expected = Load(), Load(), expected_texts()
            start = time.perf_counter()
            options.seconds /= 2
            asyncio.run(_many(url, options, load, expected))
            half = _memory(process)
            asyncio.run(_many(url, options, load, expected))
            growth = _memory(process) / half - 1
            elapsed = time.perf_counter() - start
            stop = lambda: process.send_signal(signal.SIGTERM)  # noqa: E731
            asyncio.run(_burst(url, options.clients, burst, stop))
            stopped = _events(process, "stopped")
            status = process.wait(timeout=120)
        finally:
            process.kill()
    return _result(options, load, burst, elapsed, ready, stopped, status, growth)


def _result(
    options: argparse.Namespace,
    load: Load,
    burst: Load,
    elapsed: float,
    ready: dict[str, Any],
    stopped: dict[str, Any],
    status: int,
    growth: float,
) -> dict[str, Any]:
    everything = [seconds for values in load.seconds.values() for seconds in values]
    failed = load.errors or load.bad_wrong or burst.errors or stopped["cut"] or status
    flat = growth <= _GROWTH or elapsed < _SETTLED_SECONDS
    held = bool(everything and load.streams) and flat and not failed
    return {
        "clients": options.clients,
        "seconds": elapsed,
        "requests": len(everything),
        "requests_per_second": len(everything) / elapsed,
        "errors": dict(load.errors),
        "bad_requests": load.bad,
        "bad_answered_wrongly": load.bad_wrong,
        "warm_up_seconds": ready["seconds"],
        "nki_share": ready["nki_share"],
        "latency": {path: _percentiles(values) for path, values in load.seconds.items()},
        "streams": load.streams,
        "streams_left": load.left,
        "first_token_seconds": _percentiles(load.first_token),
        "between_tokens_seconds": _percentiles(load.between_tokens),
        "memory_growth": growth,
        "p99_seconds": _percentile(everything, 0.99),
        "drained": options.clients - sum(burst.errors.values()),
        "drain_errors": dict(burst.errors),
        "cut": stopped["cut"],
        "exit_status": status,
        "bars_hold": held,
    }


_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument(
        "--generate-share", type=float, default=0.2, help="of those that do not stream"
    )
    parser.add_argument("--stream-share", type=float, default=0.9, help="of good requests")
    parser.add_argument("--bad-share", type=float, default=0.1, help="of all requests")
    parser.add_argument("--backend", default="trnx", choices=("trnx", "eager"))
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    options = parser.parse_args()
    result = measure(options)
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.json:
        print(json.dumps(result))
    return 0 if result["bars_hold"] else 1


if __name__ == "__main__":
    sys.exit(main())
