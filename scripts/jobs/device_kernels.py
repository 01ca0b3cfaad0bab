"""Kernels on a Neuron device: the file of a kernel with the real `nki`, called on device tensors.

The registry holds twins of kernel files, whose `nki` is the simulator; here the same file is
executed once more with the `nki` that is installed. None of this has been seen on a device: it
follows the documentation of SDK 2.33 (kernels are called on tensors of device `neuron`), and is
tested with the simulator in the place of `nki`.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from trnx.backend.neuron.native import native_kernel
from trnx.jobs.devices import detect, has_neuron
from trnx.nki_kernels.spec import KernelSpec, Launch, Sample
from trnx.simulator.memory.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Measured:
    """Median seconds of a call, and "ok" or what is wrong with the results."""

    seconds: float | None
    status: str


def has_device() -> bool:
    """Whether kernels can be called on Neuron tensors here."""
    return has_neuron() and importlib.util.find_spec("nki") is not None


def _in_kernel_form(tensor: torch.Tensor) -> torch.Tensor:
    """NKI has no bool, nor 64-bit integers: bytes, and pairs of words."""
    if tensor.dtype == torch.bool:
        return tensor.view(torch.uint8)
    if tensor.dtype == torch.int64:
        return tensor.contiguous().unsqueeze(-1).view(torch.int32)
    return tensor


def _arguments(launch: Launch, sample: Sample, device: torch.device) -> tuple[Any, ...]:
    names = iter(launch.tensor_names)
    return tuple(
        _in_kernel_form(sample.values[next(names)]).to(device)
        if isinstance(argument, TensorSpec)
        else argument
        for argument in launch.arguments
    )


def _tensors(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _compare(found: Any, spec: KernelSpec, sample: Sample) -> str:
    expected = _tensors(spec.reference(**sample.values))
    for index, (ours, theirs) in enumerate(zip(_tensors(found), expected, strict=True)):
        value = ours.cpu().to(theirs.dtype)
        rtol = 1e-4 if theirs.dtype == torch.float32 else 2e-2
        if not torch.allclose(value, theirs, rtol=rtol, atol=rtol + sample.error, equal_nan=True):
            worst = float((value.double() - theirs.double()).abs().max())
            return f"result {index} differs from the reference by {worst:.3g}"
    return "ok"


def measure(spec: KernelSpec, launch: Launch, sample: Sample, runs: int) -> Measured:
    """Call the kernel on the device: once to compile and compare, then `runs` times."""
    device = detect().device
    kernel = native_kernel(launch.kernel)
    arguments = _arguments(launch, sample, device)
    status = _compare(kernel(*arguments), spec, sample)
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        kernel(*arguments)
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
    return Measured(statistics.median(seconds), status)
