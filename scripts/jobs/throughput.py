"""What a training step takes on the target beside its compiled graphs: exchanges between ranks that
no graph holds, and the optimizer. Nothing of it is taken to be hidden behind computation.

The constants and the model of the links are those of `trnx plan`.
"""

from __future__ import annotations

import torch

from trnx.backend.plan.cluster import interconnect
from trnx.backend.plan.collectives import Group, all_gather, all_reduce
from trnx.jobs.parallel import ParallelDims, local_size
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.estimate import hbm_seconds

# AdamW in float32: both moments and the weight are read and written, the gradient is read.
_ADAMW_ACCESSES = 7
_FLOAT_BYTES = 4


def _elements(model: torch.nn.Module, trained: bool) -> int:
    """Of this rank's parameters: all, or those that are trained."""
    return sum(local_size(p) for p in model.parameters() if p.requires_grad or not trained)


def optimizer_seconds(model: torch.nn.Module, target: str) -> float:
    """AdamW over this rank's parameters, at the rate of HBM."""
    nbytes = _elements(model, trained=True) * _FLOAT_BYTES * _ADAMW_ACCESSES
    return hbm_seconds(hardware(target), nbytes)


def collective_seconds(model: torch.nn.Module, layout: ParallelDims, target: str) -> float:
    """DDP: the sum of gradients. FSDP: weights are gathered in forward and in backward, gradients
    summed and scattered, which moves as many bytes as to gather them. In float32."""
    if layout.data == 1 or layout.mode not in ("ddp", "fsdp"):
        return 0.0
    links, group = (
        interconnect(hardware(target), layout.ranks.world),
        Group(layout.data, layout.tensor),
    )
    trained = _elements(model, trained=True) * _FLOAT_BYTES
    if layout.mode == "ddp":
        return all_reduce(links, group, trained)
    weights = _elements(model, trained=False) * _FLOAT_BYTES
    return sum(all_gather(links, group, layout.data * part) for part in (weights, weights, trained))
