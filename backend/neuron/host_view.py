"""A graph of the device as one in host memory, while it is planned.

The plan of a model is the same on every machine: passes fold constants, compare devices and name
factories as they do for a model in host memory. So for the time of the passes the graph says that
its tensors are there; `graph.py` names the device again where it writes a device into the graph
that is handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from trnx.backend.torch_internals import move_fake
from trnx.fx_passes.nodes import tensors

HOST = torch.device("cpu")


def on_host(value: Any) -> Any:
    """`value` with devices replaced by host memory."""
    return HOST if isinstance(value, torch.device) else value


def device_of(gm: fx.GraphModule) -> torch.device:
    """The device of the graph's tensors; host memory where it has none elsewhere."""
    for node in gm.graph.nodes:
        for tensor in tensors((node.meta.get("val"),)):
            if tensor.device.type != HOST.type:
                return tensor.device
    return HOST


@contextmanager
def seen_on_host(gm: fx.GraphModule) -> Iterator[None]:
    """Within the block the tensors of `gm`, fake ones, are in host memory.

    The fake tensors are AOTAutograd's own, and have their device again afterwards.
    """
    moved: list[tuple[torch.Tensor, torch.device]] = []
    for node in gm.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, on_host)
        node.kwargs = fx.node.map_aggregate(node.kwargs, on_host)
        for tensor in tensors((node.meta.get("val"),)):
            if tensor.device.type != HOST.type:
                moved.append((tensor, tensor.device))
                move_fake(tensor, HOST)
    try:
        yield
    finally:
        for tensor, device in moved:
            move_fake(tensor, device)
