"""Run a kernel as plain Python and record what it does: `trace`, `simulate`.

HBM arguments keep their strides in `trace`, and are dense in `simulate`, as on a device. An int64
tensor arrives as int32 `[..., 2]` (low, high word), a bool tensor as uint8, a 0-dimensional tensor
with shape (1,). numpy arrays of types that torch lacks (float8_e4m3, packed types) keep their type.
"""

from __future__ import annotations

import contextvars
import dis
import functools
import inspect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trnx.simulator.errors import FindingError, Location
from trnx.simulator.findings import Findings
from trnx.simulator.frontend.arguments import Arguments
from trnx.simulator.frontend.beginnings import Beginning, record_beginning
from trnx.simulator.frontend.kernel import Kernel
from trnx.simulator.frontend.options import Grid, Passing, TraceOptions
from trnx.simulator.frontend.purity import PURITY, Reads
from trnx.simulator.frontend.replays import REPLAYS, Replay, key_of, signature_of
from trnx.simulator.frontend.results import Results, results_of
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.frontend.subset import cached_findings, defined_at
from trnx.simulator.frontend.twins import load
from trnx.simulator.hardware import DEFAULT_TARGET, Hardware, hardware
from trnx.simulator.language.recorder import CURRENT
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.memory.tensor_spec import TensorSpec, contiguous_strides
from trnx.simulator.multicore.cores import Core
from trnx.simulator.multicore.ranks import SINGLE, Rank
from trnx.simulator.older_dialects import GUIDE
from trnx.simulator.precision import FullPrecision
from trnx.simulator.program.program import Output, Program
from trnx.simulator.program.run_observers import has_run


class LaunchError(FindingError):
    """A launch that the target does not have."""


class KernelResultError(FindingError):
    """A kernel returns something that is not a tensor in shared HBM or an argument."""


def trace(
    kernel: Any,
    arguments: Sequence[Any],
    *,
    target: str = DEFAULT_TARGET,
    grid: Grid = None,
    values: bool = False,
    strict: bool = True,
    warn: Collection[str] = (),
    rank: Rank = SINGLE,
) -> Program:
    """The Program of `kernel` for these positional arguments.

    A tensor argument is a TensorSpec or a tensor (`values=True` needs tensors: the steps are
    executed while they are recorded); anything else is a constant. Raises FindingError for what a
    check finds; `strict=False`, or the check's name in `warn`, makes it a FindingWarning where the
    kernel can go on. `rank` is for kernels with collectives: `ranks.one_of(n)`.
    """
    options = TraceOptions(target, grid, values, strict, warn, rank)
    program = record(kernel, tuple(arguments), {}, options).program
    program.release()
    return program


def trace_beginning(
    kernel: Any,
    arguments: Sequence[Any],
    most: int,
    *,
    target: str = DEFAULT_TARGET,
    grid: Grid = None,
) -> Beginning:
    """The first `most` instructions of each program of a launch, for shapes alone: of a kernel that
    takes long to trace. Raises what `trace` raises, where the kernel gets so far."""
    options = TraceOptions(target, grid)
    function, sizes, _ = _resolve(kernel, options)
    return record_beginning(function, arguments, sizes, options, most)


def simulate(
    kernel: Any,
    target: str = DEFAULT_TARGET,
    grid: Grid = None,
    *,
    strict: bool = True,
    warn: Collection[str] = (),
    rank: Rank = SINGLE,
    borrow: bool = False,
    keep_strides: bool = False,
) -> Callable[..., Any]:
    """`simulate(kernel)(*args)` runs the kernel with values and all checks.

    Tensors may be torch or numpy; results are of the kind of the first tensor argument. The kernel
    gets them contiguous, as on a device; with `keep_strides` as they are, for kernels that ask for
    `x.strides`. The caller finds in an argument what the kernel wrote there; with `borrow` the
    caller's tensors stay as they are, and what the kernel writes is in the results alone. `strict`
    and `warn` as in `trace`; `rank` is for `rank_programs`. The second call with the same signature
    runs no Python of the kernel; see the module `replays`.
    """
    owned = Passing.as_given if keep_strides else Passing.dense
    passing = Passing.borrowed if borrow else owned
    options = TraceOptions(target, grid, True, strict, warn, rank, passing)
    return functools.partial(run_kernel, kernel, options)


def run_kernel(kernel: Any, options: TraceOptions, /, *args: Any, **kwargs: Any) -> Any:
    """Call a kernel with these options: record it, or replay what was recorded."""
    borrows = options.passing is Passing.borrowed
    signature = None
    if options.rank is SINGLE and not borrows:
        called = _resolve(kernel, options)
        is_dense = options.passing is Passing.dense
        signature = signature_of(called[0], (*called, options), args, kwargs, is_dense)
    replay = None if signature is None else REPLAYS.find(signature)
    if signature is not None and replay is not None:
        results = replay.call(signature.passed)
        has_run(replay.program, options.target)
        return results
    run = record(kernel, args, kwargs, options)
    has_run(run.program, options.target)
    if borrows:
        # Copies of what was written live no longer than the results that need them.
        run.program.release()
    elif signature is not None and run.is_repeatable:
        REPLAYS.keep(signature, Replay(run.program, run.results, run.names))
    return run.returned


@dataclass(frozen=True)
class Run:
    """A recorded call: its Program and, with values, what the kernel returned. A replay does the
    same, checks included, where it `is_repeatable`.
    """

    program: Program
    results: Results
    returned: Any
    names: tuple[str, ...]
    is_repeatable: bool


def record(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: TraceOptions
) -> Run:
    """Run a kernel's Python and record it. In a context of its own, so that nothing is to be reset,
    whatever is raised.
    """
    is_grad_enabled = torch.is_grad_enabled()
    work = functools.partial(_trace_here, kernel, args, kwargs, options)
    try:
        return contextvars.copy_context().run(work)
    except BaseException:
        # An interrupt may strike while torch leaves a mode.
        torch.set_grad_enabled(is_grad_enabled)
        raise


def _trace_here(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: TraceOptions
) -> Run:
    function, sizes, is_kernel = _resolve(kernel, options)
    findings = Findings(options.strict, options.warn)
    _check_grid(function, sizes, hardware(options.target), findings)
    reads = Reads()
    if is_kernel:
        reads = _reads(function, args, kwargs, options)
        for finding in (*cached_findings(function), *reads.stale):
            findings.report(finding)
    with torch.inference_mode(False), torch.no_grad(), FullPrecision():
        simulator = Simulator(options, sizes, findings)
        arguments = Arguments(simulator)
        positional, keywords = arguments.convert_all(function, args, kwargs)

        def body(core: Core) -> Any:
            return _run_program(simulator, function, core, positional, keywords)

        returned = simulator.cores.run(body)
        options.rank.note(len(simulator.steps))
        tensors = _returned_tensors(returned, function, simulator)
        _check_arguments(arguments, simulator)
        program = _program(simulator, function, arguments, tensors)
        is_single = isinstance(returned, NkiTensor)
        results = results_of(tensors, arguments, is_single, options.makes_numpy)
        found = None
        if options.values:
            arguments.write_back()
            # The tensors' own memory, as a Program binds other memory when it runs.
            found = results.of([t.torch_view().detach() for t in tensors], arguments.result)
        simulator.forget()
        reads.keep()
        is_repeatable = _is_repeatable(simulator, findings)
        return Run(program, results, found, tuple(arguments.names), is_repeatable)


def _reads(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: TraceOptions,
) -> Reads:
    """What a call of somebody's own reads; regions are compiled anew for each graph."""
    given = key_of(args, kwargs, options.passing is Passing.dense)
    if not options.values or options.passing is Passing.borrowed or given is None:
        return Reads()
    return PURITY.reads(function, (options.target, options.grid, given))


def _is_repeatable(simulator: Simulator, findings: Findings) -> bool:
    """True where no finding was let pass, and none may depend on the values of this run."""
    races = simulator.races
    if findings.passed or races is None:
        return not findings.passed
    rows = simulator.rows
    rows.seal()
    return not (races.has_compared_values or rows.loops or any(rows.dynamic))


def _run_program(
    simulator: Simulator,
    function: Callable[..., Any],
    core: Core,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    CURRENT.set(simulator)
    returned = function(*args, **kwargs)
    simulator.end_program(core)
    return returned


def _resolve(
    kernel: Any, options: TraceOptions
) -> tuple[Callable[..., Any], tuple[int, ...], bool]:
    """A kernel's function and launch grid, and whether it is a `Kernel`."""
    twin = load(kernel)
    is_kernel = isinstance(twin, Kernel)
    sizes = options.launch_grid(twin.grid if is_kernel else None)
    return inspect.unwrap(twin.function if is_kernel else twin), sizes, is_kernel


def _check_grid(
    function: Callable[..., Any], sizes: tuple[int, ...], target: Hardware, findings: Findings
) -> None:
    """The brackets of a launch hold one number, the logical core's physical cores. Source:
    SDK/nki/get-started/about/lnc.rst.
    """
    programs = math.prod(sizes)
    if len(sizes) <= 1 and programs in target.lnc:
        return
    allowed = " or ".join(map(str, target.lnc))
    message = (
        f"the kernel is launched with {list(sizes)}; {target.target} takes one number, {allowed}. "
        "NKI 0.1 launched a program for each tile: loop over the tiles in the kernel (`trnx "
        f"migrate FILE` writes such loops; {GUIDE}#nki-migrate-0-4-to-0-5)"
    )
    findings.report(LaunchError("launch-grid", message, defined_at(function)))


def _returned_tensors(
    returned: Any, function: Callable[..., Any], simulator: Simulator
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
        if item.storage.buffer is not MemoryRegion.shared_hbm or item.is_indirect():
            raise KernelResultError(
                "result",
                f"the kernel returns {item.describe()}; a result must be in nl.shared_hbm",
                _return_location(function),
            )
        if simulator.initialised.covers(item):
            continue
        skipped = (f"the kernel's result {item.describe()}", _return_location(function))
        if simulator.lacks_values(item, skipped):
            simulator.findings.report(
                simulator.initialised.undefined(item)
                or KernelResultError(
                    "uninitialised-result",
                    f"the kernel returns {item.describe()} with elements that nothing has written",
                    _return_location(function),
                )
            )
    return tuple(items)


def _check_arguments(arguments: Arguments, simulator: Simulator) -> None:
    """What a kernel wrote into an argument is a result as well."""
    for tensor in arguments.tensors:
        if simulator.initialised.covers(tensor):
            continue
        undefined = simulator.initialised.undefined(tensor)
        skipped = (f"the kernel's argument {tensor.describe()}", None)
        if simulator.lacks_values(tensor, skipped) and undefined is not None:
            simulator.findings.report(undefined)


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
    arguments: Arguments,
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
        is_part=simulator.rank.has_partners,
        blank=simulator.pool.blank(),
    )


def _output(tensor: NkiTensor, arguments: Arguments) -> Output:
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
