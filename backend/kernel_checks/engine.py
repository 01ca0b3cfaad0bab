"""The checks of kernels: of a list of specs, or of what a user's file registers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trnx.backend.kernel_checks.cases import SEED, Case, cases_of, tensors_of
from trnx.backend.kernel_checks.compare import Results, as_tuple, difference, in_eager, looks_like
from trnx.backend.kernel_checks.files import specs_in
from trnx.backend.kernel_checks.native import native_difference, native_simulator
from trnx.backend.kernel_checks.report import CheckReport, KernelReport, Time
from trnx.backend.kernel_checks.selection import missed
from trnx.backend.kernel_samples import operands
from trnx.backend.options import on_cores
from trnx.backend.prediction import estimated_seconds
from trnx.backend.programs import traced
from trnx.backend.runners import as_spec
from trnx.nki_kernels.errors import KernelCheckError
from trnx.nki_kernels.spec import (
    CORES,
    Bindings,
    KernelSpec,
    Launch,
    Pattern,
    Sample,
    kernel_parameters,
)
from trnx.simulator.errors import FindingError, TrnxError
from trnx.simulator.frontend.subset import check_subset
from trnx.simulator.hardware import Hardware, hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program
from trnx.simulator.timing.profile import predicted_seconds

TARGETS = ("trn1", "trn2", "trn3")

# Findings of the simulator that have a line of their own in the table.
_CHECK_OF = {
    "capacity": "capacity",
    "shared-hbm-order": "races",
    "deadlock": "races",
}
# Findings that say that elements were left out, or too many were touched.
_EDGES = ("uninitialised-read", "uninitialised-result", "out-of-bounds")


def check_file(file: str | Path, targets: Sequence[str] = TARGETS) -> CheckReport:
    """The kernels that `file` registers. A file that cannot be loaded is a finding too.

    Raises KernelCheckError where it registers none.
    """
    path = Path(file)
    try:
        specs = specs_in(path)
    except KernelCheckError:
        raise
    except Exception as error:  # noqa: BLE001  the user's file may raise anything
        report = KernelReport(path.name)
        for target in targets:
            report.add("spec", f"{type(error).__name__}: {error}", target)
        return CheckReport(tuple(targets), [report])
    return check_kernels(specs, targets)


def check_kernels(
    specs: Iterable[KernelSpec], targets: Sequence[str] = TARGETS, *, select: bool = True
) -> CheckReport:
    """Every check of every spec on every target; `select` asks torch.compile too.

    A case is left out where the pattern itself refuses it in eager, and counted as refused where
    the guard does.
    """
    return CheckReport(tuple(targets), [_Check(spec, targets, select).run() for spec in specs])


@dataclass(frozen=True)
class _Traced:
    launch: Launch
    program: Program


class _Check:
    """The checks of one kernel."""

    def __init__(self, spec: KernelSpec, targets: Sequence[str], select: bool) -> None:
        self.spec, self.targets, self.select = spec, targets, select
        self.report = KernelReport(spec.name)
        self.patterns: dict[Case, Pattern] = {}
        self.accepted: dict[str, list[Case]] = {target: [] for target in targets}
        self.parameters = kernel_parameters(spec.kernel)
        self.native = native_simulator()

    def run(self) -> KernelReport:
        self._everywhere("spec")
        try:
            samples = list(self.spec.samples(torch.Generator().manual_seed(SEED)))
        except Exception as error:  # noqa: BLE001  the user's function may raise anything
            self._everywhere("samples", f"samples raised {type(error).__name__}: {error}")
            return self.report
        if not samples:
            self._everywhere("samples", "there are none: yield Samples with edge sizes")
        for case in cases_of(self.spec, samples):
            expected = self._expected(case)
            if expected is not None:
                for hw in self._machines(case):
                    self._try(case, expected, hw)
        self._after()
        return self.report

    def _machines(self, case: Case) -> Iterator[Hardware]:
        """The targets; for samples of a kernel that shares its work also with both cores."""
        for target in self.targets:
            chip = hardware(target)
            yield chip
            if case.check == "samples" and 2 in chip.lnc and CORES in self.parameters:
                yield on_cores(target, 2)

    def _everywhere(self, check: str, message: str = "") -> None:
        for target in self.targets:
            self.report.tried(check, target)
            if message:
                self.report.add(check, message, target)

    def _after(self) -> None:
        if self.report.refused and not any(self.accepted.values()):
            reasons = dict.fromkeys(r for found in self.report.refused.values() for r in found)
            self._everywhere("guard", f"supports refuses every sample: {', '.join(reasons)}")
        for target, accepted in self.accepted.items():
            if self.select and accepted:
                self.report.tried("selection", target)
                self._select(min(accepted, key=_elements), target)

    def _select(self, case: Case, target: str) -> None:
        try:
            why = missed(self.spec, self.patterns[case], case, target)
        except Exception as error:  # noqa: BLE001  what torch.compile raises on the user's pattern
            why = f"torch.compile raised {type(error).__name__}: {error}"
        if why:
            self.report.add("selection", why, target)

    # -- what eager says -------------------------------------------------------------------------

    def _expected(self, case: Case) -> Results | None:
        """The results by the reference; None where eager refuses the case."""
        by_pattern, why = self._by_pattern(case)
        if by_pattern is None:
            if case.check == "samples":
                self._everywhere("samples", f"{case.note}: {why}")
            return None
        if any(tensor.is_meta for tensor in tensors_of(case.values).values()):
            return by_pattern
        expected = self._by_reference(case, by_pattern)
        return expected if any(tensor.numel() for tensor in expected) else None

    def _by_pattern(self, case: Case) -> tuple[Results | None, str]:
        """The results by the first pattern that takes the case, or None and why none does."""
        why = f"no pattern has the bindings {sorted(case.values)}"
        for pattern in _patterns_for(self.spec, case):
            try:
                found = as_tuple(pattern.function(**_arguments(pattern, case)))
            except Exception as error:  # noqa: BLE001  eager's own
                why = f"the pattern raised {type(error).__name__}: {error}"
            else:
                self.patterns[case] = pattern
                return found, ""
        return None, why

    def _by_reference(self, case: Case, by_pattern: Results) -> Results:
        """The reference's results; those of the pattern where it fails."""
        try:
            found = as_tuple(self.spec.reference(**case.values))
        except Exception as error:  # noqa: BLE001  the user's function may raise anything
            wrong = f"the reference raised {type(error).__name__}: {error}"
        else:
            # No kernel computes in float64, so a reference need not.
            is_wide = any(t.dtype is torch.float64 for t in tensors_of(case.values).values())
            within = in_eager(case, by_pattern)
            wrong = "" if is_wide else difference(found, by_pattern, within)
        message = f"{case.note}, {case.sizes}: {wrong} by the pattern in eager" if wrong else ""
        self._everywhere("reference", message)
        return by_pattern if wrong else found

    # -- what the kernel does --------------------------------------------------------------------

    def _try(self, case: Case, expected: Results, hw: Hardware) -> None:
        values = _as_launched(case.values, self.spec.strided)
        b = Bindings(
            {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
        )
        try:
            refusal = self.spec.supports(b, hw)
        except Exception as error:  # noqa: BLE001  the user's function may raise anything
            self._add("guard", case, f"supports raised {type(error).__name__}: {error}", hw)
            return
        if refusal is not None:
            self.report.refuse(hw.target, refusal.reason)
            return
        self.report.tried(case.check, hw.target)
        if case.check == "samples" and hw.cores == 1:
            self.accepted[hw.target].append(case)
        try:
            found = self._traced(b, hw)
            if not any(tensor.is_meta for tensor in tensors_of(values).values()):
                self._compare(case, values, found, expected, hw)
        except Exception as error:  # noqa: BLE001  the user's kernel may raise anything
            self._raised(case, error, hw)

    def _traced(self, b: Bindings, hw: Hardware) -> _Traced:
        launch = self.spec.launch(b, hw)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = traced(launch, hw.target)
        for check in ("capacity", "races", "guard"):
            self.report.tried(check, hw.target)
        self._check_source(launch, hw)
        self._check_aliasing(launch, program, hw)
        if hw.cores == 1:
            self._time(b, launch, program, hw)
        return _Traced(launch, program)

    def _check_source(self, launch: Launch, hw: Hardware) -> None:
        self.report.tried("source", hw.target)
        try:
            check_subset(launch.kernel)
        except FindingError as error:
            self.report.add("source", str(error), hw.target)

    def _check_aliasing(self, launch: Launch, program: Program, hw: Hardware) -> None:
        self.report.tried("aliasing", hw.target)
        for name, slot in zip(launch.tensor_names, program.slots, strict=False):
            if slot.is_written:
                message = (
                    f"the kernel writes to its input {name}, which others may still read: write to "
                    "a tensor of its own in nl.shared_hbm"
                )
                self.report.add("aliasing", message, hw.target)
        for index, result in enumerate(program.results):
            if result.argument >= 0:
                name = launch.tensor_names[result.argument]
                message = (
                    f"result {index} is memory of the input {name}: return a tensor of its own"
                )
                self.report.add("aliasing", message, hw.target)

    def _time(self, b: Bindings, launch: Launch, program: Program, hw: Hardware) -> None:
        known = next((time for time in self.report.times if time.target == hw.target), None)
        work = self.spec.cost(b)
        limit = estimated_seconds(launch, work, hw)
        if known is None or limit > known.limit_seconds:
            sizes = ", ".join(f"{n}{list(s.shape)}" for n, s in b.items() if _is_spec(s))
            seconds = predicted_seconds(program, hw)
            others = [time for time in self.report.times if time is not known]
            self.report.times = [*others, Time(hw.target, sizes, seconds, limit)]

    def _compare(
        self, case: Case, values: dict[str, Any], made: _Traced, expected: Results, hw: Hardware
    ) -> None:
        tensors = [values[name] for name in made.launch.tensor_names]
        program = made.program
        given = []
        for tensor, spec, slot in zip(tensors, program.inputs, program.slots, strict=False):
            # Other targets still need what a kernel writes to.
            given.append(as_spec(tensor.clone() if slot.is_written else tensor, spec))
        results = program.run(given)
        found = _in_form_of(expected, results)
        if self.native is not None and case.check == "samples":
            self._compare_native(case, made, results, hw)
        if wrong := difference(found, expected, case):
            failing = {one.check for one in self.report.findings if hw.target in one.targets}
            check, why = looks_like(self.spec, tuple(found), case, failing)
            self._add(check or case.check, case, wrong + (f"; {why}" if why else ""), hw)

    def _compare_native(self, case: Case, made: _Traced, results: Any, hw: Hardware) -> None:
        assert self.native is not None
        given = operands(made.launch, Sample(case.values))
        told = native_difference(self.native, made.launch, given, results, hw)
        self.report.tried("nki.simulate", hw.target)
        self.report.native = max(self.report.native, told.largest)
        if told.problem:
            self._add("nki.simulate", case, told.problem, hw)

    def _raised(self, case: Case, error: Exception, hw: Hardware) -> None:
        name = error.check if isinstance(error, FindingError) else ""
        if name == "legality" and "bytes per partition in" in str(error):
            name = "capacity"  # one tile that is larger than all of the memory
        message = str(error) if isinstance(error, TrnxError) else f"{type(error).__name__}: {error}"
        if name in _CHECK_OF:
            self._add(_CHECK_OF[name], case, message, hw)
        elif case.check == "samples" or (name in _EDGES and case.check != "capacity"):
            self._add(case.check, case, message, hw)
        else:
            self._add("guard", case, f"supports accepts it, and the kernel fails: {message}", hw)

    def _add(self, check: str, case: Case, message: str, hw: Hardware) -> None:
        advice = _ADVICE.get(check, "")
        self.report.add(check, f"{case.note}, {case.sizes}: {message}{advice}", hw.target)


_ADVICE = {
    "ragged edges": "; let the last tile be min(128, rows - start), or refuse such sizes in "
    "supports",
    "guard": "; return Reject(reason) from supports, or let the kernel take it",
    "strides": "; address the tensor by its strides, or take its name out of `strided`",
    "dtypes": "; compute in float32 and write in the dtype of the result, or refuse the dtype in "
    "supports",
    "capacity": "; take the tensor in parts that fit, or refuse such sizes in supports",
    "numbers": "; use the binding in the kernel, or refuse other numbers in supports",
    "values": "; look at constants such as eps: are they the pattern's?",
    "axis": "; reduce along the pattern's axis, or refuse others in supports",
    "bindings": "; look at the order of the names in `launch`",
}


def _elements(case: Case) -> int:
    return sum(tensor.numel() for tensor in tensors_of(case.values).values())


def _is_spec(value: Any) -> bool:
    return isinstance(value, TensorSpec)


def _patterns_for(spec: KernelSpec, case: Case) -> Iterator[Pattern]:
    """The patterns whose bindings and constants are the case's."""
    for pattern in spec.patterns:
        names = {*inspect.signature(pattern.function).parameters, *pattern.constants}
        equal = all(case.values.get(name) == value for name, value in pattern.constants.items())
        if equal and names == set(case.values):
            yield pattern


def _arguments(pattern: Pattern, case: Case) -> dict[str, Any]:
    return {name: value for name, value in case.values.items() if name not in pattern.constants}


def _as_launched(values: Any, strided: frozenset[str]) -> dict[str, Any]:
    """The tensors as the executable hands them over: contiguous, but for those of `strided`."""
    return {
        name: value.contiguous()
        if isinstance(value, torch.Tensor) and name not in strided
        else value
        for name, value in values.items()
    }


def _in_form_of(expected: Results, found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results of a kernel as eager has them: int64 from word pairs, no dimensions from one."""
    if len(found) != len(expected):
        return list(found)
    made = []
    for one, other in zip(found, expected, strict=True):
        if other.dtype is torch.int64 and one.dtype is torch.int32:
            one = one.contiguous().view(torch.int64).squeeze(-1)
        made.append(one.reshape(()) if other.ndim == 0 and one.shape == (1,) else one)
    return made
