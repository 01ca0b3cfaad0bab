"""Run a kernel as plain Python and record what it does: `trace`, `simulate`.

HBM arguments keep their strides. An int64 tensor arrives as int32 `[..., 2]` (low, high word), a
bool tensor as uint8, a 0-dimensional tensor with shape (1,). numpy arrays of types that torch lacks
(float8_e4m3, packed types) keep their type.
"""

from __future__ import annotations

import contextvars
import dis
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from trnx.simulator.arrays import from_numpy, kind_of, to_numpy
from trnx.simulator.checks.findings import Findings
from trnx.simulator.context import enter, has_run
from trnx.simulator.cores import Core
from trnx.simulator.dtypes import DType
from trnx.simulator.errors import FindingError, Location
from trnx.simulator.hardware import hardware
from trnx.simulator.kernel import Kernel
from trnx.simulator.precision import FullPrecision
from trnx.simulator.program import Output, Program
from trnx.simulator.ranks import SINGLE, Rank
from trnx.simulator.simulator import Simulator
from trnx.simulator.spec import TensorSpec, contiguous_strides
from trnx.simulator.storage import MemoryRegion
from trnx.simulator.subset import cached_findings
from trnx.simulator.tensor import NkiTensor
from trnx.simulator.twins import load

Grid = int | Sequence[int] | None


class KernelResultError(FindingError):
    """A kernel returns something that is not a tensor in shared HBM or an argument."""


def trace(
    kernel: Any,
    arguments: Sequence[Any],
    *,
    target: str = "trn2",
    grid: Grid = None,
    values: bool = False,
    strict: bool = True,
    warn: Collection[str] = (),
) -> Program:
    """The Program of `kernel` for these positional arguments.

    A tensor argument is a TensorSpec or a tensor (`values=True` needs tensors: the steps are
    executed while they are recorded); anything else is a constant. Raises FindingError for what a
    check finds; `strict=False`, or the check's name in `warn`, makes it a FindingWarning where the
    kernel can go on.
    """
    findings = Findings(strict, warn)
    program, _ = _trace(kernel, tuple(arguments), {}, target, grid, values, findings)
    program.release()
    return program


def simulate(
    kernel: Any,
    target: str = "trn2",
    grid: Grid = None,
    *,
    strict: bool = True,
    warn: Collection[str] = (),
    rank: Rank = SINGLE,
) -> Callable[..., Any]:
    """`simulate(kernel)(*args)` runs the kernel with values and all checks.

    Tensors may be torch or numpy; results are of the kind of the first tensor argument. `strict`
    and `warn` as in `trace`; `rank` is for `ranks.simulate_ranks`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        as_numpy = any(isinstance(a, np.ndarray) for a in (*args, *kwargs.values()))
        findings = Findings(strict, warn)
        program, results = _trace(kernel, args, kwargs, target, grid, True, findings, rank)
        has_run(program, target)
        if not as_numpy:
            return results.tensors[0] if results.is_single else results.tensors
        arrays = tuple(map(to_numpy, results.tensors, results.dtypes))
        return arrays[0] if results.is_single else arrays

    return call


class _Results:
    """What a kernel returned, as tensors."""

    def __init__(
        self, tensors: tuple[torch.Tensor, ...], dtypes: tuple[DType, ...], is_single: bool
    ) -> None:
        self.tensors = tensors
        self.dtypes = dtypes
        self.is_single = is_single


class _Arguments:
    """Converts arguments: every tensor, also inside of tuples, lists and dicts, becomes an
    NkiTensor.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.specs: list[TensorSpec] = []
        self.tensors: list[NkiTensor] = []
        self.given: list[torch.Tensor | None] = []

    def convert(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            tensor = from_numpy(value)
            return self._add(TensorSpec.of(tensor), tensor, kind_of(value))
        if isinstance(value, torch.Tensor):
            return self._add(TensorSpec.of(value), value)
        if isinstance(value, TensorSpec):
            return self._add(value, None)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.convert(item) for item in value))
        if isinstance(value, list | tuple):
            return type(value)(self.convert(item) for item in value)
        if isinstance(value, dict):
            return {key: self.convert(item) for key, item in value.items()}
        return value

    def _add(
        self, spec: TensorSpec, tensor: torch.Tensor | None, kind: DType | None = None
    ) -> NkiTensor:
        if tensor is None and self._simulator.values:
            raise TypeError("tracing with values needs tensors, got a TensorSpec")
        view = self._simulator.argument(spec, tensor, kind)
        self.specs.append(spec)
        self.tensors.append(view)
        self.given.append(tensor)
        return view


def _trace(
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: str,
    grid: Grid,
    values: bool,
    findings: Findings,
    rank: Rank = SINGLE,
) -> tuple[Program, _Results]:
    """Trace in a context of its own, so that nothing is to be reset, whatever is raised."""
    is_grad_enabled = torch.is_grad_enabled()
    work = functools.partial(
        _trace_here, kernel, args, kwargs, target, grid, values, findings, rank
    )
    try:
        return contextvars.copy_context().run(work)
    except BaseException:
        # An interrupt may strike while torch leaves a mode.
        torch.set_grad_enabled(is_grad_enabled)
        raise


def _trace_here(
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: str,
    grid: Grid,
    values: bool,
    findings: Findings,
    rank: Rank,
) -> tuple[Program, _Results]:
    function, sizes, is_kernel = _resolve(kernel, grid)
    if is_kernel:
        for finding in cached_findings(function):
            findings.report(finding)
    with torch.inference_mode(False), torch.no_grad(), FullPrecision():
        simulator = Simulator(hardware(target), sizes, values, findings, rank)
        arguments = _Arguments(simulator)
        positional = [arguments.convert(value) for value in args]
        keywords = {name: arguments.convert(value) for name, value in kwargs.items()}

        def body(core: Core) -> Any:
            return _run_program(simulator, function, core, positional, keywords)

        returned = simulator.cores.run(body)
        tensors = _returned_tensors(returned, function, findings)
        program = _program(simulator, function, arguments, tensors)
        is_single = isinstance(returned, NkiTensor)
        results = _read_results(tensors, arguments) if values else ()
        dtypes = tuple(tensor.dtype for tensor in tensors)
        return program, _Results(results, dtypes, is_single)


def _run_program(
    simulator: Simulator,
    function: Callable[..., Any],
    core: Core,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    enter(simulator)
    returned = function(*args, **kwargs)
    simulator.end_program(core)
    return returned


def _resolve(kernel: Any, grid: Grid) -> tuple[Callable[..., Any], tuple[int, ...], bool]:
    twin = load(kernel)
    sizes = twin.grid if isinstance(twin, Kernel) else None
    if grid is not None:
        sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    function = twin.function if isinstance(twin, Kernel) else twin
    return inspect.unwrap(function), sizes or (), isinstance(twin, Kernel)


def _returned_tensors(
    returned: Any, function: Callable[..., Any], findings: Findings
) -> tuple[NkiTensor, ...]:
    items = returned if isinstance(returned, tuple | list) else (returned,)
    if returned is None:
        items = ()
    for item in items:
        if not isinstance(item, NkiTensor):
            raise KernelResultError(
                "result",
                f"the kernel returns {item!r}; return tensors in nl.shared_hbm",
                _return_location(function),
            )
        if item.buffer is not MemoryRegion.shared_hbm or item.is_indirect():
            raise KernelResultError(
                "result",
                f"the kernel returns {item.describe()}; a result must be in nl.shared_hbm",
                _return_location(function),
            )
        if not item.storage.written.covers(item):
            findings.report(
                KernelResultError(
                    "uninitialised-result",
                    f"the kernel returns {item.describe()} with elements that nothing has written",
                    _return_location(function),
                )
            )
    return tuple(items)


def _return_location(function: Callable[..., Any]) -> Location | None:
    """The kernel's last `return`."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    lines = [code.co_firstlineno]
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.opname.startswith("RETURN_"):
            lines.append(instruction.positions.lineno or code.co_firstlineno)
    return Location(code.co_filename, max(lines), code.co_name)


def _program(
    simulator: Simulator,
    function: Callable[..., Any],
    arguments: _Arguments,
    returned: tuple[NkiTensor, ...],
) -> Program:
    slots = []
    for tensor in arguments.tensors:
        assert tensor.storage.slot is not None
        slots.append(tensor.storage.slot)
    return Program(
        getattr(function, "__name__", "kernel"),
        tuple(arguments.specs),
        tuple(slots),
        tuple(_output(tensor, arguments) for tensor in returned),
        simulator.all_steps(),
        simulator.rows,
        simulator.totals(),
    )


def _output(tensor: NkiTensor, arguments: _Arguments) -> Output:
    storage = tensor.storage
    assert storage.slot is not None
    argument = -1
    for i, candidate in enumerate(arguments.tensors):
        if candidate.storage is storage:
            argument = i
    spec = TensorSpec(tensor.shape, tensor.dtype.torch, tensor.strides)
    if tensor.is_contiguous():
        spec = TensorSpec(tensor.shape, tensor.dtype.torch, contiguous_strides(tensor.shape))
    if argument >= 0 and tensor.same_elements(arguments.tensors[argument]):
        spec = arguments.specs[argument]
        return Output(storage.slot, spec, 0, argument, spec)
    # The memory of a result is allocated with the shape of the result that covers it, else flat.
    flat = TensorSpec.dense((storage.pitch,), storage.dtype.torch)
    is_whole = tensor.size == storage.pitch and tensor.dtype.itemsize == storage.dtype.itemsize
    whole = spec if is_whole and spec.is_contiguous else flat
    return Output(storage.slot, spec, tensor.offset, argument, whole)


def _read_results(
    returned: tuple[NkiTensor, ...], arguments: _Arguments
) -> tuple[torch.Tensor, ...]:
    """Copies of the results as they are after the first run."""
    results = []
    for tensor in returned:
        same = [
            given
            for view, given in zip(arguments.tensors, arguments.given, strict=True)
            if tensor.same_elements(view)
        ]
        if same and same[0] is not None:
            results.append(same[0])
        else:
            results.append(tensor.torch_view().clone(memory_format=torch.contiguous_format))
    return tuple(results)
