"""Training that is killed and resumed: are its losses those of a run that nobody killed?

One run goes through to its end. The same run, in another folder and with asynchronous checkpoints
at every second step, gets SIGKILL at `--kills` random points, all ranks within milliseconds, and is
started again each time. Bars: each loss that any process logged has the bits of the whole run's
loss of that step and rank; each step has one; whatever has a checkpoint's name after a kill is
whole; no process ends otherwise than by its kill. With `--ranks 2` the ranks are FSDP2's, on gloo.
`--json` prints one object as the last line; exit status 0 means that the bars hold.

    python scripts/bench/resume.py --kills 20 --ranks 2 --backend trnx --json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from trnx.jobs.checksums import problem_of
from trnx.jobs.devices import end_rank
from trnx.jobs.train import main as train

PRELOADED = ["trnx.jobs.train", "transformers.models.llama.modeling_llama"]
# Of a start: the steps that are logged before the kill. Every second begins a checkpoint, which is
# complete before the fifth is logged, however slow the machine: the next one waits for it.
_LEAST, _MOST = 5, 8
_LATEST_SECONDS = 0.03


def _child(arguments: tuple[str, ...], out: str, rank: int, ranks: int, port: int) -> None:
    """One rank of a run, as torchrun would start it."""
    if ranks > 1:
        found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({"MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in found.items()}})
    with open(out, "a", buffering=1) as file:
        sys.stdout = sys.stderr = file
        end_rank(train(arguments))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Run:
    """A training run in a folder; its ranks are children of a server that has imported all."""

    def __init__(self, folder: Path, data: Path, options: argparse.Namespace) -> None:
        self.ranks, self.out = options.ranks, folder / "out"
        self.checkpoints, self.metrics = folder / "checkpoints", folder / "metrics"
        folder.mkdir()
        self._arguments: tuple[str, ...] = (
            *("--data", str(data), "--sequence-length", "16", "--batch", "2", "--dropout", "0.1"),
            *("--backend", options.backend, "--steps", str(options.steps)),
            *("--parallel", "fsdp" if self.ranks > 1 else "auto", "--checkpoint-every", "2"),
            *("--checkpoint-dir", str(self.checkpoints), "--metrics-dir", str(self.metrics)),
        )
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def start(self) -> list[BaseProcess]:
        """All ranks."""
        port = _free_port()
        common = (self._arguments, str(self.out))
        found: list[BaseProcess] = []
        for rank in range(self.ranks):
            arguments = (*common, rank, self.ranks, port)
            found.append(self._context.Process(target=_child, args=arguments))
            found[-1].start()
        return found

    def logged(self) -> list[dict[str, Any]]:
        """What all ranks logged; a kill may cut the last line of a process short."""
        found = []
        for rank in range(self.ranks):
            file = self.metrics / f"rank-{rank}.jsonl"
            for line in file.read_text().splitlines() if file.exists() else []:
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue
        return found

    def losses(self) -> list[tuple[tuple[int, int], float]]:
        """((rank, step), loss), in the order of each rank."""
        lines = self.logged()
        return [((line["rank"], line["step"]), line["loss"]) for line in lines if "loss" in line]

    def to_end(self) -> list[int | None]:
        """Start it and wait; the exit statuses."""
        children = self.start()
        for child in children:
            child.join()
        return [child.exitcode for child in children]

    def killed(self, chance: random.Random) -> list[int | None]:
        """Start it and kill all ranks at a random point; the exit statuses."""
        before = len(self.losses())
        steps, delay = chance.randint(_LEAST, _MOST), chance.uniform(0, _LATEST_SECONDS)
        children = self.start()
        while all(child.is_alive() for child in children):
            if len(self.losses()) >= before + steps * self.ranks:
                break
            time.sleep(0.002)
        time.sleep(delay)
        for child in chance.sample(children, len(children)):
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        for child in children:
            child.join()
        return [child.exitcode for child in children]


def _texts(folder: Path) -> Path:
    """Some hundred windows to train on."""
    lines = [f"The {n}th tensor has {n * n % 97} rows and {n % 13} columns.\n" for n in range(200)]
    folder.mkdir()
    (folder / "a.txt").write_text("".join(lines))
    return folder


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both runs; what was seen."""
    data, start = _texts(folder / "data"), time.perf_counter()
    whole = Run(folder / "whole", data, options)
    whole_status = whole.to_end()
    expected = dict(whole.losses())
    run, chance = Run(folder / "killed", data, options), random.Random(options.seed)
    killed, damaged = 0, []
    for _ in range(options.kills):
        killed += run.killed(chance) == [-signal.SIGKILL] * options.ranks
        found = sorted(run.checkpoints.glob("step-????????"))
        damaged += [str(problem) for one in found if (problem := problem_of(one)) is not None]
    status = run.to_end()
    resumed = [line["step"] for line in run.logged() if line.get("event") == "resume"]
    losses = run.losses()
    other = [key for key, loss in losses if loss != expected.get(key)]
    complete = len(expected) == options.ranks * options.steps
    good = [0] * options.ranks
    held = complete and whole_status == status == good and killed == options.kills
    return {
        "ranks": options.ranks,
        "backend": options.backend,
        "steps": options.steps,
        "killed": killed,
        "resumed": len(resumed) // options.ranks,
        "losses": len(losses),
        "other_losses": other,
        "missing_losses": sorted(expected.keys() - {key for key, _ in losses}),
        "damaged": damaged,
        "exit_statuses": [whole_status, status],
        "seconds": time.perf_counter() - start,
        "output": run.out.read_text()[-2000:] if status != good else "",
        "bars_hold": held
        and not other
        and not damaged
        and {key for key, _ in losses} == set(expected)
        and len(resumed) >= options.ranks * (options.kills // 2),
    }


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Of a command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2))
    parser.add_argument("--backend", default="eager", choices=("eager", "trnx"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    return parser.parse_args(arguments)


def main() -> int:
    """Command line: 0 where the bars hold."""
    options = options_of()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.json:
        print(json.dumps(result))
    return 0 if result["bars_hold"] else 1


if __name__ == "__main__":
    sys.exit(main())
