"""The service under load: many clients at once, bad requests among them, then SIGTERM.

Starts scripts/jobs/serve.py on a free port, waits until it is ready, and lets `--clients` clients
send one request after another for `--seconds`. Bars: no good request fails; every bad request gets
the status that docs/jobs.md says; a burst of requests that is in flight at SIGTERM is answered, and
the process ends with status 0. `--json` prints one object as the last line; exit status 0 means
that the bars hold.

    python scripts/bench/serve.py --clients 64 --seconds 60 --json
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

SERVE = Path(__file__).resolve().parents[1] / "jobs" / "serve.py"
WORDS = ("tensor", "engine", "compiles", "every", "kernel", "before", "batches", "arrive")
JSON = {"content-type": "application/json"}
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
    ("/nothing", b"{}", 404),
)


@dataclass
class Load:
    """What the clients saw."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"/embed": [], "/generate": []})
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
    client: httpx.AsyncClient, load: Load, number: int, end: float, options: argparse.Namespace
) -> None:
    chance = random.Random(number)
    while time.perf_counter() < end:
        if chance.random() < options.bad_share:
            path, content, expected = chance.choice(BAD)
            await _bad(client, load, path, content, expected)
            continue
        await _one(client, load, *_good(chance, options.generate_share))


async def _many(url: str, options: argparse.Namespace, load: Load) -> None:
    end = time.perf_counter() + options.seconds
    limits = httpx.Limits(max_connections=options.clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await asyncio.gather(
            *(_client(client, load, number, end, options) for number in range(options.clients))
        )


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


def _events(process: subprocess.Popen[str], wanted: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == wanted:
            return event
    raise SystemExit(f"the service ended before it was {wanted}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; what was seen."""
    command = [sys.executable, str(SERVE), "--port", "0", "--generate", "llama-tiny"]
    command += ["--batch-sizes", "8", "--lengths", "32", "--timeout-seconds", "120"]
    command += ["--queue", str(8 * options.clients), "--backend", options.backend]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            port = _events(process, "listening")["port"]
            ready = _events(process, "ready")
            url = f"http://127.0.0.1:{port}"
            load, burst = Load(), Load()
            start = time.perf_counter()
            asyncio.run(_many(url, options, load))
            elapsed = time.perf_counter() - start
            stop = lambda: process.send_signal(signal.SIGTERM)  # noqa: E731
            asyncio.run(_burst(url, options.clients, burst, stop))
            stopped = _events(process, "stopped")
            status = process.wait(timeout=120)
        finally:
            process.kill()
    return _result(options, load, burst, elapsed, ready, stopped, status)


def _result(
    options: argparse.Namespace,
    load: Load,
    burst: Load,
    elapsed: float,
    ready: dict[str, Any],
    stopped: dict[str, Any],
    status: int,
) -> dict[str, Any]:
    everything = [seconds for values in load.seconds.values() for seconds in values]
    held = bool(everything) and not (
        load.errors or load.bad_wrong or burst.errors or stopped["cut"] or status
    )
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
        "latency": {
            path: {name: _percentile(values, part) for name, part in _PARTS.items()}
            for path, values in load.seconds.items()
        },
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
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--generate-share", type=float, default=0.2, help="of good requests")
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
