"""The documented part of torch-neuronx 2.13: `nki_op`, `wrap_nki`, and `neuron` as a backend of
Dynamo and of process groups."""

from __future__ import annotations

import neuron_device
import neuron_ranks

from torch_neuronx.nki_hop import nki_op, wrap_nki

__all__ = ["nki_op", "wrap_nki"]

neuron_device.register()
neuron_ranks.register()


def _autoload() -> None:
    """The entry point of `torch.backends`: importing this package registers the device."""
