"""The process group `neuron` for the fake device: Gloo's, on aliases in host memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from neuron_device import to_host


class _Ranks(dist.ProcessGroup):
    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self._gloo.allreduce([to_host(t) for t in tensors], opts)

    def all_gather_single(self, result: torch.Tensor, given: torch.Tensor, opts: Any) -> Any:
        return self._gloo._allgather_base(to_host(result), to_host(given), opts)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return "neuron"


def register() -> None:
    """Let `init_process_group("neuron")` find it."""
    dist.Backend.register_backend("neuron", _Ranks, devices="neuron")
