"""Resident memory of a process that compiles, calls and drops models, NKI and XLA regions apart.

    python scripts/bench/memory.py [--models 200] [--calls 2000] [--recompiles 200] [--only USE]
        [--json]

Three things, each with NKI regions and with XLA regions, each in a process of its own: models of
another width each, compiled, trained for a step and dropped; calls of one compiled model, forward
and backward; one function that is compiled anew for every shape, ten of them kept at a time. Sizes
come in a random order, so that what is kept of the last ones is as large as what is kept of the
first. Memory is read after each tenth of them, without garbage and without what malloc keeps for
later.

Bar: after the first 20 it grows by no more than 5 %, besides what Dynamo and AOTAutograd keep
whatever the backend is (guards of global objects, generated sources, metrics): by the growth of
aot_eager, run in the same way. torch's cache of fake results is no part of that: trnx bounds it,
and for aot_eager it is emptied before every reading. Both whole growths are printed as well.
`--json` prints one object as the last line; exit status 0 means that the bar holds.
Times are of no interest, so that the machine may be busy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from simulator_measures import settled_bytes

from trnx.backend.torch_internals import bound_fake_results

BAR = 1.05
FIRST = 20
OPTIONS: dict[str, dict[str, Any] | None] = {
    "nki": {},
    # Under "auto" eager would execute the small regions of XLA.
    "xla": {"fallback": "xla", "select": "legal"},
    "aot_eager": None,
}


class Model(torch.nn.Module):
    """A block with a product, a pointwise chain and a norm; a solver that no kernel takes."""

    def __init__(self, width: int, with_xla: bool) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.with_xla = with_xla

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(F.gelu(self.inner(x)))
        return torch.linalg.cholesky(y @ y.t() + 64 * torch.eye(len(y))) if self.with_xla else y


def compiled(model: Any, kind: str) -> Any:
    """`model`, compiled by the backend of the kind."""
    options = OPTIONS[kind]
    if options is None:
        return torch.compile(model, backend="aot_eager", dynamic=False)
    return torch.compile(model, backend="trnx", options=options, dynamic=False)


def step(run: Any, x: torch.Tensor) -> None:
    """Forward and backward."""
    run(x).square().mean().backward()


def sizes(first: int) -> Iterator[int]:
    """Each size from `first` on once, in a random order among 200."""
    order = random.Random(0)
    for begin in itertools.count(first, 200):
        yield from order.sample(range(begin, begin + 200), 200)


def use_models(kind: str, with_xla: bool) -> Iterator[None]:
    """Models of another width each, dropped after a step."""
    for width in sizes(16):
        step(compiled(Model(width, with_xla), kind), torch.randn(16, width))
        torch.compiler.reset()
        yield


def use_calls(kind: str, with_xla: bool) -> Iterator[None]:
    """Calls of one model, with new inputs."""
    run = compiled(Model(64, with_xla), kind)
    while True:
        step(run, torch.randn(16, 64))
        yield


def use_recompiles(kind: str, with_xla: bool) -> Iterator[None]:
    """One function, another number of rows each time; Dynamo keeps 10 graphs, then all are dropped:
    10 whenever memory is read.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = limits.accumulated_recompile_limit = 10
    run = compiled(Model(64, with_xla), kind)
    for turn, rows in enumerate(sizes(2)):
        if turn % limits.recompile_limit == 0:
            torch.compiler.reset()
        step(run, torch.randn(rows, 64))
        yield


USES: dict[str, Callable[[str, bool], Iterator[None]]] = {
    "models": use_models,
    "calls": use_calls,
    "recompiles": use_recompiles,
}


@dataclass(frozen=True)
class Growth:
    """Bytes after the first 20 and at the end, and the most that was read between."""

    use: str
    regions: str
    backend: str
    count: int
    after_first: int
    highest: int
    last: int

    @property
    def ratio(self) -> float:
        """Memory at the end relative to that after the first 20."""
        return self.last / self.after_first

    def beyond(self, torchs: Growth) -> float:
        """The same without what torch alone has kept meanwhile."""
        return self.ratio - (torchs.last - torchs.after_first) / self.after_first


def read_bytes(kind: str) -> int:
    """Memory of this process now; the fake results are kept by trnx's rule, or not at all."""
    if OPTIONS[kind] is None:
        bound_fake_results(0)
    return settled_bytes()


def measure(use: str, kind: str, with_xla: bool, count: int) -> Growth:
    """In this process."""
    turns = USES[use](kind, with_xla)
    for _ in range(FIRST):
        next(turns)
    first = read_bytes(kind)
    read = []
    for turn in range(FIRST, count):
        next(turns)
        if (turn + 1) % max(count // 10, 1) == 0 or turn + 1 == count:
            read.append(read_bytes(kind))
    return Growth(use, "xla" if with_xla else "nki", kind, count, first, max(read), read[-1])


def measured_apart(use: str, kind: str, with_xla: bool, count: int) -> Growth:
    """In a process of its own."""
    asked = json.dumps([use, kind, with_xla, count])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRNX_CACHE_DIR": "off"}
    done = subprocess.run(
        [sys.executable, __file__, "--measure", asked],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Growth(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Print a line for each; 0 if the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--recompiles", type=int, default=200)
    parser.add_argument("--only", choices=tuple(USES), help="one use alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        torch.set_num_threads(1)
        print(json.dumps(asdict(measure(*json.loads(arguments.measure)))))
        return 0
    rows, holds = [], True
    for use in [arguments.only] if arguments.only else USES:
        for with_xla in (False, True):
            count = getattr(arguments, use)
            ours = measured_apart(use, "xla" if with_xla else "nki", with_xla, count)
            theirs = measured_apart(use, "aot_eager", with_xla, count)
            beyond = ours.beyond(theirs)
            holds &= beyond <= BAR
            ratios = {"ratio": ours.ratio, "aot_eager": theirs.ratio, "beyond_torch": beyond}
            rows.append({**asdict(ours), **ratios})
            print(
                f"{count} {use}, {ours.regions} regions: {ours.after_first >> 20} -> "
                f"{ours.last >> 20} MiB, {ours.ratio:.3f} (aot_eager {theirs.after_first >> 20} -> "
                f"{theirs.last >> 20} MiB, {theirs.ratio:.3f}); beyond torch's {beyond:.3f}",
                flush=True,
            )
    if arguments.json:
        print(json.dumps({"rows": rows, "bar": BAR, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
