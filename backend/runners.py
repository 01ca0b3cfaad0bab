"""What executes NKI regions: runners of one region at a time, with one protocol, and the device.

* `simulator` replays the traced kernel.
* `reference` runs the kernel's torch reference: fast, and the means to tell an error of a kernel
  from one of the plan.
* `neuron` is a runner of whole graphs: the plan becomes one graph of the device (`neuron/`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from trnx.backend.prediction import PREDICTIONS
from trnx.backend.programs import PROGRAMS, ProgramCache
from trnx.backend.proven_operators import operator_of
from trnx.backend.torch_internals import dispatch_modes, without_custom_op_check
from trnx.nki_kernels.spec import Bindings, Kernel
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

# Runs of a Program that another caller ran last, until a caller has its own slots.
_SHARED_RUNS = 3

RunFunction = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor | None]], None]
ComputeFunction = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor] | None]


@dataclass(frozen=True)
class Prepared:
    """A kernel ready for one set of concrete sizes.

    `run(inputs, outputs)`: inputs in the order of the tensor bindings; results are written to
    `outputs`, None where nobody uses a result. `compute(inputs)` gives all results in memory of
    their own in less time, or None where `run` has to do it (`proven_operators.py`).
    `matmul_flops` are those that a run executes, where that is known.
    """

    run: RunFunction
    matmul_flops: int | None = None
    program: Program | None = None
    compute: ComputeFunction | None = None


class Runner(Protocol):
    """Runs region by region: prepares kernels for concrete sizes."""

    @property
    def name(self) -> str:
        """The value of the option `runner`."""

    def prepare(self, kernel: Kernel, b: Bindings, hw: Hardware) -> Prepared:
        """Everything that can be done before there are tensors."""


def tensor_names(b: Bindings) -> tuple[str, ...]:
    """Names of the tensors among the bindings, in order."""
    return tuple(name for name, value in b.items() if isinstance(value, TensorSpec))


def _in_kernel_form(
    output: torch.Tensor | None, spec: TensorSpec, order: tuple[int, ...] | None
) -> torch.Tensor:
    """The memory of a result as kernels write it: its dimensions in `order`, and NKI has no bool,
    nor 64-bit integers."""
    if output is None:
        return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="cpu")
    if order is not None:
        output = output.permute(order)
    elif output.dtype is spec.dtype and output.shape == spec.shape:
        return output
    if spec.shape == (1,) and output.ndim == 0:
        output = output.view(1)  # HBM tensors have at least one dimension
    if output.dtype == torch.bool:
        return output.view(torch.uint8)
    if output.dtype == torch.int64:
        return output.unsqueeze(-1).view(torch.int32)
    return output


def as_spec(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """`tensor` as the launch wants to see it: a launch may name other sizes for the same memory."""
    if tensor.shape == spec.shape:
        return tensor
    return tensor.as_strided(spec.shape, spec.strides)


class SimulatorRunner:
    """Replays Programs of the simulator."""

    name = "simulator"

    def __init__(self, programs: ProgramCache = PROGRAMS) -> None:
        self._programs = programs

    def prepare(self, kernel: Kernel, b: Bindings, hw: Hardware) -> Prepared:
        """Trace the kernel, or find its Program."""
        launch = PREDICTIONS.launch(kernel, b, hw)
        names = tensor_names(b)
        operator = operator_of(kernel, b, launch, names)
        claim = None if operator is None else operator.claim
        program = self._programs.replayable(launch, hw.target, claim)
        order = [names.index(name) for name in launch.tensor_names]
        if operator is not None:
            operator = operator.proven_by(program, order)
        specs = program.inputs
        wanted = program.outputs
        orders = launch.result_orders or (None,) * len(wanted)
        # The usual kernel takes the tensors as they are bound.
        are_direct = order == list(range(len(names))) and all(
            b[name].shape == spec.shape for name, spec in zip(names, specs, strict=True)
        )

        # Layers that share a Program have their weights bound in turns, which takes as long as a
        # small product: a layer gets a replica when that has happened a few times.
        user = object()
        own, shared_runs = program, 0

        def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]) -> None:
            nonlocal own, shared_runs
            if not shared_runs:
                own = own.without(frozenset(i for i, one in enumerate(outputs) if one is None))
            if own.last_user is not user:
                shared_runs += 1
                if shared_runs == _SHARED_RUNS:
                    own = own.replica()
                own.last_user = user
            arguments = inputs
            if not are_direct:
                arguments = [as_spec(inputs[i], spec) for i, spec in zip(order, specs, strict=True)]
            results: list[torch.Tensor] = []
            for output, spec, axes in zip(outputs, wanted, orders, strict=True):
                if (
                    output is not None
                    and axes is None
                    and output.dtype is spec.dtype
                    and output.shape == spec.shape
                ):
                    results.append(output)
                else:
                    results.append(_in_kernel_form(output, spec, axes))
            if dispatch_modes():
                with without_custom_op_check():
                    own.replay(arguments, results)
            else:
                own.replay(arguments, results)

        compute = None if operator is None else operator.compute
        return Prepared(run, program.matmul_flops, program, compute)


class ReferenceRunner:
    """Runs the kernels' references in torch."""

    name = "reference"

    def prepare(self, kernel: Kernel, b: Bindings, hw: Hardware) -> Prepared:  # noqa: ARG002
        """Constants are bound now, tensors at each call."""
        names = tensor_names(b)
        constants = {name: value for name, value in b.items() if name not in names}

        def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]) -> None:
            found = kernel.reference(**constants, **dict(zip(names, inputs, strict=True)))
            results = (found,) if isinstance(found, torch.Tensor) else tuple(found)
            for result, output in zip(results, outputs, strict=True):
                if output is not None:
                    output.copy_(result)

        return Prepared(run)


class NeuronRunner:
    """The device, where TorchNeuron compiles whole graphs: it prepares no regions, and
    `neuron/executable.py` runs the plan."""

    name = "neuron"


def make_runner(name: str) -> Runner:
    """The runner of this machine that the option names."""
    return SimulatorRunner() if name == "simulator" else ReferenceRunner()
