"""Processes that share one compile cache and are killed at random points, and what then is in it.

    python scripts/bench/cache.py [--seconds 60] [--processes 16] [--json]

For so many seconds that many processes use one folder: one of four compiles models and compares
them with eager, the others read and write values of up to 64 KiB that they can recompute. They are
killed (SIGKILL) after a random time, and new ones take their place. Then those that are left have
to end, all entries are verified, every entry is damaged in one of several ways, and processes that
find them so have to get the right results and leave whole entries.

Bars: no damaged entry, no process that does not end, no wrong result, and every damaged entry that
was asked for is computed again. `--json` prints one object as the last line; exit status 0 if and
only if the bars hold. Times are of no interest, so that the machine may be busy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import trnx
from trnx.backend.cache.cache import PREDICTION, Cache, Codec
from trnx.backend.cache.commands import verify
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Key

KEYS = 40
LARGEST = 64 << 10
# A process lives for up to so many seconds; those that compile need some to get to the cache.
LIFE = {"store": 1.0, "compile": 8.0}
# Those that are not killed at the end have to be done by then, on a machine that is busy.
END_SECONDS = 300.0
WRONG, FAILED = 3, 4
PLAIN = Codec(lambda value: value, lambda value: value)


@dataclass
class Result:
    """What happened. `tampered` entries were damaged on purpose, `damaged_after` are those of them
    that nobody has made again."""

    seconds: float
    processes: int
    started: int = 0
    killed: int = 0
    ended: int = 0
    entries: int = 0
    damaged_entries: int = 0
    stuck: int = 0
    wrong: int = 0
    failed: int = 0
    tampered: int = 0
    damaged_after: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the bars hold; a run in which nothing happened shows nothing."""
        bad = self.damaged_entries, self.stuck, self.wrong, self.failed, self.damaged_after
        return not any(bad) and min(self.killed, self.entries, self.tampered) > 0


def models() -> Iterator[tuple[Callable[..., Any], torch.Tensor]]:
    """Small models of kernels of the registry and generated ones, with their inputs."""
    torch.manual_seed(0)
    for width in (16, 32):
        layers = torch.nn.Linear(width, width), torch.nn.Softsign(), torch.nn.LayerNorm(width)
        yield torch.nn.Sequential(*layers).eval(), torch.randn(5, width)
    yield (lambda x: torch.sin(x) * torch.exp(x) + 2), torch.randn(33, 7)


def compile_models(seed: int) -> None:
    """Compile all models in a random order. Raises AssertionError for a wrong result."""
    found = list(models())
    random.Random(seed).shuffle(found)
    with torch.no_grad():
        for model, x in found:
            got = torch.compile(model, backend="trnx", options={"fallback": "eager"})(x)
            torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)


def value_of(index: int) -> list[str]:
    """A value that depends on its key alone."""
    size = random.Random(index).randrange(1, LARGEST // 64)
    return [hashlib.sha256(f"{index} {i}".encode()).hexdigest() for i in range(size)]


def key_of(index: int) -> Key:
    """The key of one of the values."""
    return Key(PREDICTION, {"bench": "cache", "index": str(index)})


def use_store(seed: int, rounds: int) -> None:
    """Ask for values at random. Raises AssertionError for a wrong one."""
    cache = the_cache()
    chooser = random.Random(seed)
    for _ in range(rounds):
        index = chooser.randrange(KEYS)
        if chooser.random() < 0.05:  # as if it had left
            cache.folder.place("prediction", key_of(index).digest).unlink(missing_ok=True)
        assert cache.get_or_make(key_of(index), lambda i=index: value_of(i), PLAIN) == value_of(
            index
        )


def the_cache() -> Cache:
    """The cache of the environment."""
    cache = current()
    assert cache is not None
    return cache


def start(work: Callable[[], None]) -> int:
    """The id of a new process that does the work; its status says how it ended."""
    process = os.fork()
    if process:
        return process
    status = FAILED
    try:
        work()
        status = 0
    except AssertionError:
        status = WRONG
    except BaseException:
        logging.exception("a process failed")
    finally:
        os._exit(status)


def work_of(kind: str, seed: int) -> Callable[[], None]:
    """What a process does."""
    if kind == "compile":
        return lambda: compile_models(seed)
    return lambda: use_store(seed, 300)


def run_and_kill(result: Result, chooser: random.Random) -> None:
    """Start, kill and replace processes; then let the last ones end."""
    running: dict[int, float] = {}
    end = time.monotonic() + result.seconds
    while time.monotonic() < end:
        while len(running) < result.processes:
            kind = "compile" if result.started % 4 == 0 else "store"
            process = start(work_of(kind, chooser.randrange(1 << 30)))
            running[process] = time.monotonic() + chooser.uniform(0, LIFE[kind])
            result.started += 1
        for process, dies in list(running.items()):
            if time.monotonic() > dies:
                os.kill(process, signal.SIGKILL)
        reap(running, result)
        time.sleep(0.005)
    last = time.monotonic() + END_SECONDS
    while running and time.monotonic() < last:
        reap(running, result)
        time.sleep(0.02)
    result.stuck = len(running)
    for process in running:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def reap(running: dict[int, float], result: Result) -> None:
    """Count those that have ended."""
    for process in list(running):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            del running[process]
            code = os.waitstatus_to_exitcode(status)
            result.killed += code == -signal.SIGKILL
            result.wrong += code == WRONG
            result.failed += code not in (0, WRONG, -signal.SIGKILL)
            result.ended += code == 0


def tamper(data: bytes, chooser: random.Random) -> bytes:
    """The bytes of an entry, damaged in one of several ways."""
    place = chooser.randrange(len(data))
    flipped = bytes([data[place] ^ (1 << chooser.randrange(8))])
    return chooser.choice(
        [
            b"",
            data[:place],
            data[:place] + flipped + data[place + 1 :],
            data[place:] + data[:place] if place else b"x",
            data.replace(b'"value":', b'"value":[0],"was":'),
            b"\0" * len(data),
        ]
    )


def check_tampered(result: Result, chooser: random.Random) -> None:
    """Damage every entry, ask for all of them, and look at what is there then."""
    for stored in the_cache().folder.entries():
        stored.path.write_bytes(tamper(stored.path.read_bytes(), chooser))
        result.tampered += 1

    def ask_for_all() -> None:
        logging.disable()  # of every damaged entry
        compile_models(0)
        for index in range(KEYS):
            wanted = value_of(index)
            got = the_cache().get_or_make(key_of(index), lambda wanted=wanted: wanted, PLAIN)
            assert got == wanted

    running = {start(ask_for_all): 0.0 for _ in range(2)}
    last = time.monotonic() + END_SECONDS
    while running and time.monotonic() < last:
        reap(running, result)
        time.sleep(0.02)
    result.stuck += len(running)
    result.damaged_after = len(verify(the_cache()).damaged)


def measure(seconds: float, processes: int, seed: int) -> Result:
    """One run in a folder of its own, which is removed."""
    result, chooser = Result(seconds, processes), random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="trnx-cache-"))
    before = os.environ.get("TRNX_CACHE_DIR")
    os.environ["TRNX_CACHE_DIR"] = str(folder)
    try:
        run_and_kill(result, chooser)
        # What the killed ones did not come to, so that every kind of entry is looked at.
        finish: dict[int, float] = {start(lambda: compile_models(0)): 0.0}
        while finish:
            reap(finish, result)
            time.sleep(0.02)
        found = verify(the_cache())
        result.entries, result.damaged_entries = found.entries, len(found.damaged)
        kinds = (stored.path.parts[-3] for stored in the_cache().folder.entries())
        result.kinds = dict(Counter(kinds))
        check_tampered(result, chooser)
    finally:
        if before is None:
            del os.environ["TRNX_CACHE_DIR"]
        else:
            os.environ["TRNX_CACHE_DIR"] = before
        shutil.rmtree(folder, ignore_errors=True)
    return result


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(given.seconds, given.processes, given.seed)
    for name, value in asdict(result).items():
        print(f"{name:<16} {value}")
    if given.json:
        print(json.dumps({**asdict(result), "trnx": trnx.__version__, "holds": result.holds}))
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
