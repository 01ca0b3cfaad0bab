"""A registered kernel as it is launched for given values, simulated and traced."""

from __future__ import annotations

from typing import Any

import torch

from trnx import simulator
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program


def bindings(values: dict[str, Any]) -> Bindings:
    """With the specs of tensors."""
    return Bindings(
        {k: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    )


def launch_of(spec: KernelSpec, values: dict[str, Any], target: str = "trn2") -> Launch:
    """How the kernel, which has to support them, is launched for these values."""
    bound = bindings(values)
    assert spec.supports(bound, hardware(target)) is None
    return spec.launch(bound, hardware(target))


def simulated(
    spec: KernelSpec, values: dict[str, Any], target: str = "trn2"
) -> tuple[torch.Tensor, ...]:
    """The results."""
    launch = launch_of(spec, values, target)
    names = iter(launch.tensor_names)
    arguments = [values[next(names)] if isinstance(a, TensorSpec) else a for a in launch.arguments]
    results = simulator.simulate(launch.kernel, target=target)(*arguments)
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def traced(spec: KernelSpec, values: dict[str, Any], target: str = "trn2") -> Program:
    """The Program, from shapes alone."""
    launch = launch_of(spec, values, target)
    program = simulator.trace(launch.kernel, launch.arguments, target=target, values=False)
    assert isinstance(program, Program)
    return program
