"""A look at the registry and the simulator together, for `trnx doctor`."""

from __future__ import annotations

import torch

from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator import TensorSpec, trace
from trnx.simulator.hardware import DEFAULT_TARGET, hardware


def traced_instructions() -> int:
    """Instructions of the softmax kernel for its first sample, traced with all checks.

    Raises what tracing raises.
    """
    spec = next(kernel for kernel in kernels() if kernel.name == "softmax")
    sample = next(iter(spec.samples(torch.Generator().manual_seed(0))))
    values = {
        name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
        for name, value in sample.values.items()
    }
    launch = spec.launch(Bindings(values), hardware(DEFAULT_TARGET))
    return trace(launch.kernel, launch.arguments).instruction_count
