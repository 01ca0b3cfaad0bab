"""Train a causal language model on local text: one process, or torchrun with DDP, FSDP2 or tensor
parallelism; on a laptop with gloo, on Trainium unchanged.

    torchrun --nproc-per-node 2 scripts/jobs/train.py --data text/ --parallel fsdp

Every logged step is one JSON line: step, loss, tokens_per_second, nki_share (the part of the linear
layers' FLOPs that ran in NKI kernels), rank. Exit status of a process:

    0   all steps done; with --min-nki-share that share of linear FLOPs ran on NKI on every rank,
        and no module ran without a graph
    1   a named error, or a smaller share, or a loss that is no number
    2   flags that cannot be parsed
    75  stopped by SIGTERM after saving a checkpoint: start again with --resume auto
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Sequence

from trnx.jobs import devices
from trnx.jobs.metrics import Metrics, Summary, summarize
from trnx.jobs.trackers import make_trackers
from trnx.jobs.train_flags import Settings, parse
from trnx.jobs.training import Stop, Training
from trnx.simulator.errors import TrnxError

STOPPED = 75


def holds(summary: Summary, minimum: float) -> bool:
    """Whether the run kept what its flags ask for."""
    finite = summary.loss_last is None or math.isfinite(summary.loss_last)
    if minimum <= 0:
        return finite
    if summary.steps == 0:  # nothing was left to do: the share was proved before
        return finite
    share = summary.nki_share_min
    return finite and not summary.skipped and share is not None and share >= minimum


def train(settings: Settings) -> int:
    """Run a training job in this process; the exit status. Raises TrnxError."""
    stop = Stop()
    before = signal.signal(signal.SIGTERM, lambda *_: setattr(stop, "asked", True))
    platform = devices.detect(settings.runner)
    ranks = devices.join(platform)
    try:
        training = Training(settings, platform, ranks)
        trackers = make_trackers(
            settings.metrics_dir, settings.tensorboard, settings.wandb, ranks, settings.to_dict()
        )
        with Metrics(trackers, ranks) as metrics:
            summary = summarize(training.run(metrics, stop))
    finally:
        devices.leave()
        signal.signal(signal.SIGTERM, before)
    held = holds(summary, settings.min_nki_share)
    if settings.json and ranks.is_first:
        print(json.dumps({**summary.to_dict(), "bars_hold": held}), flush=True)
    if summary.stopped:
        return STOPPED
    return 0 if held else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; named errors end with their message and status 1."""
    description = (__doc__ or "").partition("\n\n")[0]
    try:
        return train(parse(description, arguments))
    except TrnxError as error:
        rank = os.environ.get("RANK", "0")
        print(f"train (rank {rank}): {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    devices.end_rank(main())
