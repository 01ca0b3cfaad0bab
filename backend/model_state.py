"""Runs of a model that leave no trace: what it reads and writes is copied, or put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only


@contextmanager
def state_kept(function: Any) -> Iterator[None]:
    """The model's buffers and the random state are afterwards what they were before."""
    buffers = list(function.buffers()) if isinstance(function, torch.nn.Module) else []
    saved = [buffer.detach().clone() for buffer in buffers]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, saved, strict=True):
                    buffer.copy_(value)


def copied(value: Any) -> Any:
    """`value` with its tensors copied, for a model that writes to its arguments."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, copy, value)
