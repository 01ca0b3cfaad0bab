"""`device_print`: prints a tensor whenever the Program runs. Not part of nki.isa's public names."""

from __future__ import annotations

import torch

from trnx.simulator.isa.instruction import Emit, recorded
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import DMA_REACHABLE


def _show(prefix: str, tensor: torch.Tensor) -> None:
    print(prefix, tensor)


@recorded(engines=(Engine.sync,))
def device_print(emit: Emit, tensor: NkiTensor, prefix: str) -> None:
    """Print `prefix` and the values of `tensor`."""
    emit.step(_show, prefix, emit.read(tensor, "tensor", buffers=DMA_REACHABLE))
