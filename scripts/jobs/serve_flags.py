"""Flags of the HTTP service, read once into a frozen record."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from trnx.jobs.devices import BACKENDS, RUNNERS
from trnx.jobs.engines import MINILM
from trnx.jobs.errors import FlagError
from trnx.jobs.scheduler import Buckets

NONE = "none"
# TorchDynamo compiles a function for eight shapes, and then no more.
_MOST_SHAPES = 8


@dataclass(frozen=True)
class ServeSettings:
    """What the flags say; see `--help`."""

    host: str
    port: int
    embed: str
    generate: str
    buckets: Buckets
    max_wait: float
    queue: int
    timeout: float
    read_timeout: float
    grace: float
    drain_delay: float
    max_body: int
    max_inputs: int
    max_new_tokens: int
    backend: str
    target: str | None
    runner: str | None

    def __post_init__(self) -> None:
        """Raises FlagError."""
        if self.embed == NONE and self.generate == NONE:
            raise FlagError("nothing to serve: name a model with --embed or --generate")
        for name, values in vars(self.buckets).items():
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                flag = name.replace("_", "-")
                raise FlagError(f"--{flag} must be ascending numbers from 1, as in 1,8")
        shapes = len(list(self.buckets.shapes()))
        if shapes > _MOST_SHAPES:
            raise FlagError(
                f"--batch-sizes times --lengths are {shapes} shapes to compile; at most "
                f"{_MOST_SHAPES} are allowed"
            )
        if self.buckets.lengths[0] < 2:
            raise FlagError("--lengths must be at least 2")
        for name in (
            "queue",
            "timeout",
            "read_timeout",
            "max_body",
            "max_inputs",
            "max_new_tokens",
        ):
            if getattr(self, name) <= 0:
                raise FlagError(f"--{name.replace('_', '-')} must be positive")
        for name in ("max_wait", "grace", "drain_delay"):
            if getattr(self, name) < 0:
                raise FlagError(f"--{name.replace('_', '-')} must not be negative")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="0.0.0.0 in a container")
    add("--port", type=int, default=8000, help="0 for a free one, which the first line names")
    add("--embed", default=MINILM, help="minilm, a folder with an encoder, or none")
    add(
        "--generate",
        default=NONE,
        help="a preset, a checkpoint of train.py, a folder of save_pretrained, or none",
    )
    add("--batch-sizes", type=_numbers, default=(1, 8), help="rows of the compiled shapes")
    add("--lengths", type=_numbers, default=(32, 128), help="tokens of the compiled shapes")
    add("--max-wait-ms", type=float, default=5, help="how long a first request waits for others")
    add("--queue", type=int, default=256, help="rows that wait or run; more get status 429")
    add("--timeout-seconds", type=float, default=30, help="of a request, then status 504")
    add("--read-timeout-seconds", type=float, default=30, help="for a body, then status 408")
    add("--grace-seconds", type=float, default=60, help="for requests in flight at SIGTERM")
    add(
        "--drain-delay-seconds",
        type=float,
        default=0,
        help="from SIGTERM, when /ready fails, to the end of listening",
    )
    add("--max-body-bytes", type=int, default=1 << 20)
    add("--max-inputs", type=int, default=64, help="texts of one request")
    add("--max-new-tokens", type=int, default=256, help="that a request may ask for")
    add("--backend", default="auto", choices=BACKENDS)
    add("--target", choices=("trn1", "trn2", "trn3"), help="of backend trnx")
    add("--runner", choices=RUNNERS, help="of backend trnx")


def parse(description: str, arguments: Sequence[str] | None = None) -> ServeSettings:
    """Settings of a command line. Raises FlagError; argparse ends the process with status 2."""
    parser = argparse.ArgumentParser(description=description)
    _add_flags(parser)
    given = parser.parse_args(arguments)
    return ServeSettings(
        host=given.host,
        port=given.port,
        embed=given.embed,
        generate=given.generate,
        buckets=Buckets(given.batch_sizes, given.lengths),
        max_wait=given.max_wait_ms / 1000,
        queue=given.queue,
        timeout=given.timeout_seconds,
        read_timeout=given.read_timeout_seconds,
        grace=given.grace_seconds,
        drain_delay=given.drain_delay_seconds,
        max_body=given.max_body_bytes,
        max_inputs=given.max_inputs,
        max_new_tokens=given.max_new_tokens,
        backend=given.backend,
        target=given.target,
        runner=given.runner,
    )
