"""Attention in the simulator, and the measure of its error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from launched import launch_of, simulated, traced

from trnx.nki_kernels import canonical_ops, registry
from trnx.nki_kernels.spec import KernelSpec, Launch
from trnx.simulator.hardware import hardware
from trnx.simulator.program.program import Program
from trnx.simulator.timing.profile import Profile, profile_program


def exact(values: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """The result in float64, and what one rounding of the scores to float32 and of the weights to
    the dtype of v does to it."""
    q, k, v = (values[name].double() for name in ("q", "k", "v"))
    mask = values["attn_mask"]
    group = q.shape[1] // k.shape[1]
    scores = (q @ k.repeat_interleave(group, 1).mT) * values["scale"]
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if values["is_causal"]:
        below = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if values["window"]:
            below = below.triu(1 - values["window"])
        scores = scores.masked_fill(~below, -math.inf)
    weights, v = scores.softmax(-1).nan_to_num(0.0), v.repeat_interleave(group, 1)
    largest = scores.where(scores > torch.finfo(torch.float32).min, 0.0).abs().max()
    unit = torch.finfo(values["v"].dtype).eps + torch.finfo(torch.float32).eps * largest
    return weights @ v, ((weights @ v.abs()).max() * unit / 2).item()


class Forward:
    """`sdpa` with the kernel that it launches for these operands."""

    spec: KernelSpec = registry.kernels()["sdpa"]

    def launched(self, values: dict[str, Any], target: str = "trn2") -> Launch:
        return launch_of(self.spec, values, target)

    def kernel(self, values: dict[str, Any], target: str = "trn2") -> str:
        """The name of the kernel."""
        return str(self.launched(values, target).kernel.__name__)

    def run(
        self, values: dict[str, Any], target: str = "trn2"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = simulated(self.spec, values, target)
        return out, lse

    def traced(self, values: dict[str, Any], target: str = "trn2") -> Program:
        return traced(self.spec, values, target)

    def profile(self, values: dict[str, Any], target: str = "trn2") -> Profile:
        """The prediction, as models have it."""
        trips = self.launched(values, target).unknown_trips
        return profile_program(self.traced(values, target), hardware(target), trips)

    def assert_within_twice_of_eager(self, values: dict[str, Any], out: torch.Tensor) -> None:
        """Against float64, with eager's own error as the measure, or one rounding of the terms."""
        wanted, rounding = exact(values)
        eager = (canonical_ops.sdpa(**values)[0].double() - wanted).abs().max().item()
        own = (out.double() - wanted).abs().max().item()
        assert own <= 2 * max(eager, rounding)


@pytest.fixture
def forward() -> Forward:
    return Forward()
