"""`trnx.bisect`: which region of a compiled model is wrong, and a program that shows it alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trnx.backend.entry import trnx
from trnx.backend.errors import ExampleError
from trnx.backend.explain import options_of
from trnx.backend.model_state import copied, state_kept
from trnx.backend.options import Options, make_options
from trnx.backend.region_check import (
    Difference,
    Differences,
    Reference,
    Tolerance,
    collect_differences,
)
from trnx.backend.repro import check_folder, write_repro
from trnx.backend.torch_internals import compiled_with
from trnx.simulator.frontend.run_script import run_script

# Each holds a copy of a region's inputs.
_MOST_PROGRAMS = 10
_RUNNER = "TRNX_RUNNER"


@dataclass(frozen=True)
class Bisection:
    """What was compared, and what differs.

    `differences` are in the order in which regions ran; `programs` are the folders with the first
    ones as programs of their own. `skipped`: region -> why it was not compared. `whole_call` is the
    largest difference of a result or gradient from eager's, as a share of its largest element:
    large where no region differs, rounding adds up or a graph pass is wrong. None for a script.
    """

    against: Reference
    compared: int
    skipped: Mapping[str, str]
    differences: tuple[Difference, ...]
    programs: tuple[Path, ...]
    whole_call: float | None = None

    @property
    def first(self) -> Difference | None:
        """The first region that differs."""
        return self.differences[0] if self.differences else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "against": self.against,
            "compared": self.compared,
            "skipped": dict(self.skipped),
            "differences": [difference.to_dict() for difference in self.differences],
            "programs": [str(folder) for folder in self.programs],
            "whole_call": self.whole_call,
        }

    def __str__(self) -> str:
        lines = [f"{self.compared} region(s) compared with {self.against}"]
        if self.skipped:
            lines[0] += f", {len(self.skipped)} not:"
            lines += [f"  {region}: {reason}" for region, reason in self.skipped.items()]
        if not self.differences:
            lines.append("no region differs")
        for index, difference in enumerate(self.differences):
            lines.append(f"{'first to differ' if index == 0 else 'differs too'}: {difference}")
            if index < len(self.programs):
                lines.append(f"  run it alone: python {self.programs[index] / 'repro.py'}")
        if self.whole_call is not None:
            lines.append(
                f"the whole call is off by {self.whole_call:.2g} of eager's largest element"
            )
        return "\n".join(lines)


def bisect(
    function: Callable[..., Any],
    *args: Any,
    against: Reference = "float64",
    rtol: float | None = None,
    atol: float | None = None,
    folder: str | Path | None = None,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Bisection:
    """Compile `function`, run `function(*args, **kwargs)`, and compare every region with its ops.

    Each region is compared on the values that it was given, so that a region is named for its own
    error alone. `against` is `eager`, or `float64`: the same ops on the same values in float64,
    from which a region may be twice as far as eager is. `rtol` and `atol` are those of
    `torch.allclose`; see `Tolerance` for what None means. Where gradients are enabled and a result
    requires them, the sum of the results is differentiated and the backward graphs are compared
    too. What `torch.compile` returned stands for what it was given, with its options, as in
    `explain`. Kernels run in the simulator, or as their references where the options say so.

    With `folder` (new or empty) the first ten regions that differ are written as programs.
    Raises ReproError for a folder that cannot be used, ExampleError where nothing is compiled.
    """
    compiled_by = compiled_with(function)
    function = function if compiled_by is None else compiled_by.function
    chosen = options_of(compiled_by, options)
    if chosen.runner in ("auto", "neuron"):
        chosen = replace(chosen, runner="simulator")
    place = None if folder is None else Path(folder)
    if place is not None:
        check_folder(place)
    tolerance = Tolerance(rtol, atol)
    compiled = torch.compile(  # type: ignore[call-overload]  # torch's stubs lack the argument
        function,
        backend=trnx,
        options=chosen,
        dynamic=None if compiled_by is None else compiled_by.dynamic,
        isolate_recompiles=True,
    )
    with collect_differences(against, tolerance) as found:
        results = _run(compiled, function, args, kwargs)
    expected = _run(function, function, args, kwargs)
    _check_compiled(found, "the function")
    programs = _write(place, found, chosen)
    return _bisection(found, programs, max(map(_share, results, expected), default=0.0))


def bisect_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    against: Reference = "float64",
    rtol: float | None = None,
    atol: float | None = None,
    folder: Path | None = None,
) -> Bisection:
    """Run `script`, and compare the regions of every graph that it compiles with trnx.

    Raises what the script raises, ReproError, and ExampleError where it compiles nothing.
    """
    if folder is not None:
        check_folder(folder)
    with _on_host(), collect_differences(against, Tolerance(rtol, atol)) as found:
        try:
            run_script(script, arguments)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    _check_compiled(found, script)
    return _bisection(found, _write(folder, found, make_options()), None)


def _bisection(
    found: Differences, programs: tuple[Path, ...], whole_call: float | None
) -> Bisection:
    differences = tuple(failure.difference for failure in found.failures)
    compared = len(found.compared)
    return Bisection(found.against, compared, found.skipped, differences, programs, whole_call)


def _check_compiled(found: Differences, what: str) -> None:
    if not found.compared and not found.skipped:
        raise ExampleError(
            f"{what} ran no region of a graph compiled with backend='trnx': there is nothing to "
            "compare"
        )


@contextmanager
def _on_host() -> Iterator[None]:
    """Graphs whose options name no runner run in the simulator."""
    before = os.environ.get(_RUNNER)
    os.environ.setdefault(_RUNNER, "simulator")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_RUNNER, None)


def _run(
    call: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The tensors among the results, and the gradients of the arguments."""
    arguments, named = copied(args), copied(dict(kwargs))
    with state_kept(function):
        results = [x for x in tree_leaves(call(*arguments, **named)) if isinstance(x, torch.Tensor)]
        wanted = [x for x in results if x.requires_grad and x.is_floating_point()]
        if not wanted or not torch.is_grad_enabled():
            return [x.detach() for x in results]
        sources = [
            x
            for x in tree_leaves((arguments, named))
            if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        if isinstance(function, torch.nn.Module):
            sources += [p for p in function.parameters() if p.requires_grad]
        total = torch.stack([x.sum().float() for x in wanted]).sum()
        gradients = torch.autograd.grad(total, sources, allow_unused=True)
    return [x.detach() for x in (*results, *(g for g in gradients if g is not None))]


def _share(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a share of the largest expected element; NaN equals NaN."""
    if not expected.numel():
        return 0.0
    a, b = found.double(), expected.double()
    error = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    largest = b[b.isfinite()].abs().max() if bool(b.isfinite().any()) else torch.ones(())
    return float(error.nan_to_num(nan=float("inf")).max() / largest.clamp_min(1e-45))


def _write(folder: Path | None, found: Differences, options: Options) -> tuple[Path, ...]:
    if folder is None:
        return ()
    programs = []
    for failure in found.failures[:_MOST_PROGRAMS]:
        name = failure.difference.graph.replace(".", "_") + "_" + failure.difference.region
        write_repro(folder / name, failure, found, options)
        programs.append(folder / name)
    return tuple(programs)
