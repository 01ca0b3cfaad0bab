"""Whole models over the ranks of a job: DDP's buckets, and the stages of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sharded import Blocks, Sharded, graph_facts, make_case, report_of, whole_gradients, worst
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import trnx

_MICROBATCHES = 2


def buckets(folder: Path) -> dict[str, Any]:
    """A step of blocks under DDP, whose buckets cut the graph where gradients are summed."""
    del folder
    case = make_case(count=9)  # 1.4 MB, and the first bucket has 1 MB at the least
    rank, world = dist.get_rank(), dist.get_world_size()
    module = DistributedDataParallel(case.blocks, bucket_cap_mb=1)

    def local(value: torch.Tensor) -> torch.Tensor:
        return value.chunk(world, 0)[rank]

    sharded = Sharded(module, local, scale=world)
    found, graphs = report_of(sharded, case)
    return {
        "output": worst(found.output, local(case.output)),
        "input_gradient": worst(found.input_gradient, local(case.input_gradient)),
        "gradients": max(map(worst, whole_gradients(sharded), case.gradients)),
        "graphs": graphs,
    }


class _Stage(nn.Module):
    """One block, with the positions that all stages know."""

    def __init__(self, block: nn.Module, cos: torch.Tensor, sin: torch.Tensor) -> None:
        super().__init__()
        self.blocks = Blocks(0)
        self.blocks.layers.append(block)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, rows, hidden] -> the same."""
        found: torch.Tensor = self.blocks(x, self.cos, self.sin)
        return found


def pipeline(folder: Path) -> dict[str, Any]:
    """A step of two blocks, each a compiled stage, by the schedule 1F1B over microbatches."""
    del folder
    rank, world = dist.get_rank(), dist.get_world_size()
    case = make_case(count=world)
    x, cos, sin = case.inputs
    stage = _Stage(case.blocks.layers[rank], cos, sin)
    stage.compile(backend="trnx", options={"runner": "simulator"})
    runtime = PipelineStage(stage, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(
        runtime, _MICROBATCHES, loss_fn=lambda y, tangent: (y * tangent).sum(), scale_grads=False
    )
    with trnx.collect_reports() as reports:
        given = {"target": case.tangent} if rank == world - 1 else {}
        inputs = (x.detach(),) if rank == 0 else ()
        output = schedule.step(*inputs, **given)
    each = len(case.gradients) // world
    wanted = case.gradients[rank * each : (rank + 1) * each]
    gradients = [p.grad for p in stage.parameters() if p.grad is not None]
    assert len(gradients) == each
    return {
        "output": worst(output, case.output) if output is not None else 0.0,
        "gradients": max(map(worst, gradients, wanted)),
        "graphs": graph_facts(reports),
    }
