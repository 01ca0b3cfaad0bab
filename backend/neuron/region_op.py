"""An NKI region as a custom operator of torch, which TorchNeuron traces into the graph.

One operator for each different launch: kernel, sizes and constants. Its name is the kernel's and a
digest of the launch, equal in every process, so that caches of compiled graphs find it again. It
takes the tensors of the launch, contiguous and in the form that kernels see (int64 as pairs of
words, bool as bytes), returns new tensors, and writes to none.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trnx.backend.errors import KernelFailedError
from trnx.backend.neuron.errors import (
    NeuronConstantError,
    NeuronKernelError,
    NeuronLncError,
)
from trnx.backend.neuron.native import native_kernel
from trnx.backend.neuron.stack import LNC_VARIABLE, runtime_lnc
from trnx.nki_kernels.keys import key_of
from trnx.nki_kernels.spec import Launch
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

NAMESPACE = "trnx_nki"


@dataclass
class RegionOp:
    """The operator of a launch. `lines` are the user's lines of the regions that call it."""

    name: str
    kernel_name: str
    overload: Any
    outputs: tuple[TensorSpec, ...]
    lines: list[str] = field(default_factory=list)


_ops: dict[str, RegionOp] = {}
_lock = threading.Lock()


def lnc_of(launch: Launch) -> int:
    """The physical cores of a logical one that a launch asks for: its grid, or the kernel's own."""
    grid = getattr(launch.kernel, "grid", None) or (launch.grid,)
    total = 1
    for size in grid:
        total *= int(size)
    return total


def check_lnc(launch: Launch, name: str, target: str, configured: str | None) -> None:
    """Raises NeuronLncError where the runtime's LNC is another than the launch's."""
    check_cores(f"kernel {name} is", lnc_of(launch), target, configured)


def check_cores(who: str, wanted: int, target: str, configured: str | None) -> None:
    """Raises NeuronLncError where logical cores (`configured`, the value of
    NEURON_LOGICAL_NC_CONFIG) are not of `wanted` physical ones, on which `who` launched."""
    have = runtime_lnc(target, configured)
    if have != str(wanted):
        set_to = f"is {configured}" if configured else f"is not set, which means {have} on {target}"
        raise NeuronLncError(
            f"{who} launched on {wanted} physical core(s), and {LNC_VARIABLE} {set_to}: "
            f"export {LNC_VARIABLE}={wanted} before Python starts, or compile with "
            f"options={{'lnc': {have}}}"
        )


def check_dense(program: Program, name: str) -> None:
    """Raises KernelFailedError for a kernel that returns a view with strides."""
    if not all(spec.is_contiguous for spec in program.outputs):
        raise KernelFailedError(
            f"kernel {name} returns a strided view, and results on the device are contiguous: "
            "return the tensor itself"
        )


def constants_of(launch: Launch, name: str) -> tuple[Any, ...]:
    """The arguments that are no tensors, lists as tuples, TensorSpecs left in their places.

    Raises NeuronConstantError for one that cannot be hashed.
    """
    found = tuple(map(_frozen, launch.arguments))
    for value in found:
        try:
            hash(value)
        except TypeError:
            raise NeuronConstantError(
                f"kernel {name} has the constant {value!r}, which cannot be hashed; NKI compiles a "
                "kernel for each value of its constants: pass numbers, strings or tuples of them"
            ) from None
    return found


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def region_op(kernel_name: str, launch: Launch, program: Program, line: str) -> RegionOp:
    """The operator of `launch`, registered with TorchNeuron where it is new.

    `program` is the traced launch, whose inputs and outputs say what the kernel takes and gives.
    """
    arguments = constants_of(launch, kernel_name)
    name = f"{_identifier(kernel_name)}_{_digest(launch, arguments)}"
    with _lock:
        if name not in _ops:
            _ops[name] = _registered(name, kernel_name, launch, arguments, program)
        op = _ops[name]
        if line and line not in op.lines:
            op.lines.append(line)
        return op


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)[:80]


def _digest(launch: Launch, arguments: Sequence[Any]) -> str:
    function = inspect.unwrap(getattr(launch.kernel, "function", launch.kernel))
    code = function.__code__
    key = repr((code.co_name, lnc_of(launch), key_of(list(arguments))))
    source = Path(code.co_filename).read_bytes()
    return hashlib.sha256(source + key.encode()).hexdigest()[:12]


def _registered(
    name: str, kernel_name: str, launch: Launch, arguments: Sequence[Any], program: Program
) -> RegionOp:
    import torch_neuronx  # the runner has found that it is there

    op = RegionOp(name, kernel_name, None, program.outputs)
    launcher = _launcher(op, launch, arguments)
    # `register_fake` is torch.library's: nki_op's own would compile the kernel to learn the shapes.
    made = torch_neuronx.nki_op(f"{NAMESPACE}::{name}", launcher, mutates_args=())
    made.register_fake(_fake(op))
    op.overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return op


def _launcher(op: RegionOp, launch: Launch, arguments: Sequence[Any]) -> Callable[..., Any]:
    """A function with a typed signature, which calls the kernel as TorchNeuron wants it called."""
    call = _device_call(launch)

    def run(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        given = [next(rest) if isinstance(a, TensorSpec) else a for a in arguments]
        try:
            found = call(*given)
        except Exception as error:
            raise NeuronKernelError(
                f"kernel {op.kernel_name}, called for {' and '.join(op.lines) or 'unknown line'}, "
                f"was refused or failed: {type(error).__name__}: {error}. Use "
                "options={'select': 'none'} to leave kernels out, and report the kernel"
            ) from error
        return found if len(op.outputs) == 1 or isinstance(found, tuple) else tuple(found)

    count = sum(isinstance(a, TensorSpec) for a in arguments)
    run.__name__ = run.__qualname__ = op.name
    run.__signature__ = _signature(count, len(op.outputs))  # type: ignore[attr-defined]
    return run


def _device_call(launch: Launch) -> Callable[..., Any]:
    """The kernel with its logical cores where TorchNeuron wants them.

    The documentation calls `kernel[lnc](...)` on tensors. Earlier releases trace the call only
    through `wrap_nki`, and take the cores on the wrapper, as a tuple; on the kernel inside it
    2.11.3 ignored them.
    """
    import torch_neuronx

    kernel, lnc = native_kernel(launch.kernel), lnc_of(launch)
    wrap = getattr(torch_neuronx, "wrap_nki", None)
    found: Callable[..., Any] = kernel[lnc] if wrap is None else wrap(kernel)[(lnc,)]
    return found


def _signature(inputs: int, outputs: int) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(f"x{i}", kind, annotation=torch.Tensor) for i in range(inputs)]
    tensors: Any = tuple.__class_getitem__((torch.Tensor,) * outputs)
    returns = torch.Tensor if outputs == 1 else tensors
    return inspect.Signature(parameters, return_annotation=returns)


def _fake(op: RegionOp) -> Callable[..., Any]:
    """Shapes and dtypes of the results, known from the trace: no compiler is needed for them."""

    def run(*tensors: torch.Tensor) -> Any:
        made = tuple(
            torch.empty(spec.shape, dtype=spec.dtype, device=tensors[0].device)
            for spec in op.outputs
        )
        return made[0] if len(made) == 1 else made

    return run
