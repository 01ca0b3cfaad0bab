"""Predicted seconds of one rank's block and head: compiled for the target from shapes alone, each
region as `trnx explain` predicts it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from trnx.backend.explain import Explanation, explain
from trnx.backend.plan.block import Block, Head, Shard, without_data


@dataclass(frozen=True)
class Seconds:
    """Of forward and backward, launches apart, and how much of each is scheduled kernels."""

    forward: float
    backward: float
    forward_scheduled: float
    backward_scheduled: float


@lru_cache(maxsize=64)
def block_seconds(shard: Shard, target: str, training: bool) -> Seconds:
    """Of one block."""
    with without_data(), torch.set_grad_enabled(training):
        inputs = {name: value.requires_grad_(training) for name, value in _inputs(shard).items()}
        return _seconds(explain(Block(shard), inputs, options={"target": target}))


def head_seconds(shard: Shard, target: str, training: bool) -> Seconds:
    """Of the head: on all tokens in training, on the last of each sequence else."""
    # Heads differ in tokens and vocabulary alone: sequence parallel or not, it is the same one.
    alike = replace(shard, norm_rows=shard.rows, experts=1, expert_rows=1, cached=0)
    return _head_seconds(alike, target, training)


@lru_cache(maxsize=64)
def _head_seconds(shard: Shard, target: str, training: bool) -> Seconds:
    tokens = shard.sequences * (shard.rows if training else 1)
    with without_data(), torch.set_grad_enabled(training):
        x = torch.empty(tokens, shard.model.hidden, dtype=shard.dtype, requires_grad=training)
        wanted = torch.empty(tokens, dtype=torch.int64)
        return _seconds(explain(Head(shard, training), x, wanted, options={"target": target}))


def _inputs(shard: Shard) -> dict[str, torch.Tensor]:
    return Block(shard).inputs()


def _seconds(found: Explanation) -> Seconds:
    """Sums over the regions of all graphs of a kind."""
    sums = {"forward": 0.0, "backward": 0.0}
    scheduled = dict(sums)
    for report in found.reports:
        kind = "backward" if report.kind == "backward" else "forward"
        for region in report.regions:
            sums[kind] += region.predicted_seconds
            if region.predicted_by == "schedule":
                scheduled[kind] += region.predicted_seconds
    return Seconds(sums["forward"], sums["backward"], scheduled["forward"], scheduled["backward"])
