"""What the checks of kernels found: one table, and each finding in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trnx.simulator.timing.summary import rendered, time_text

# The checks, in the order of the table.
CHECKS = {
    "spec": "the parts of the spec fit together",
    "samples": "the samples run and equal the reference",
    "reference": "the reference equals the pattern in eager",
    "bindings": "every argument is the binding that it should be",
    "axis": "the axis is the pattern's",
    "values": "also for small values",
    "numbers": "also for other numbers",
    "ragged edges": "also for sizes of 1, 127, 128, 129",
    "dtypes": "also in other floating dtypes",
    "strides": "also for tensors that are not contiguous",
    "guard": "what supports accepts runs",
    "capacity": "it fits into SBUF and PSUM, also for large sizes",
    "aliasing": "inputs stay as they are, results are new",
    "races": "the cores agree on who writes when",
    "nki.simulate": "AWS's simulator, where it is installed, takes the samples",
    "source": "the device's front end can parse it",
    "selection": "torch.compile finds the pattern",
}


@dataclass(frozen=True)
class Finding:
    """One mistake: which check found it, on which targets, and what to do."""

    kernel: str
    check: str
    message: str
    targets: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kernel}: {self.check} ({', '.join(self.targets)}): {self.message}"


@dataclass(frozen=True)
class Time:
    """Predicted seconds of the largest sample on a target, and the least that the kernel's cost
    allows there."""

    target: str
    sizes: str
    seconds: float
    limit_seconds: float


@dataclass
class KernelReport:
    """One kernel. `cases` counts for each check and target what was tried; `refused` counts what
    the guard refused, with a reason; `native` is the largest difference of AWS's simulator."""

    name: str
    cases: dict[tuple[str, str], int] = field(default_factory=dict)
    refused: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    times: list[Time] = field(default_factory=list)
    native: float = 0.0

    def tried(self, check: str, target: str) -> None:
        """Count one case."""
        self.cases[check, target] = self.cases.get((check, target), 0) + 1

    def refuse(self, target: str, reason: str) -> None:
        """Count a case that the guard refused."""
        reasons = self.refused.setdefault(target, {})
        reasons[reason] = reasons.get(reason, 0) + 1

    def add(self, check: str, message: str, target: str) -> None:
        """A finding; one check that fails the same way, or again, is told once with its targets."""
        for index, known in enumerate(self.findings):
            if known.check == check and target in known.targets:
                return
            if known.check == check and known.message == message:
                targets = (*known.targets, target)
                self.findings[index] = Finding(self.name, check, message, targets)
                return
        self.findings.append(Finding(self.name, check, message, (target,)))

    def state(self, check: str, target: str) -> str:
        """A cell of the table."""
        if any(f.check == check and target in f.targets for f in self.findings):
            return "FAILS"
        count = self.cases.get((check, target), 0)
        if check == "samples" and not count and target in self.refused:
            return "refused"
        return f"ok ({count})" if count else "-"


@dataclass(frozen=True)
class CheckReport:
    """Every kernel that was checked."""

    targets: tuple[str, ...]
    kernels: Sequence[KernelReport]

    @property
    def findings(self) -> list[Finding]:
        """Those of all kernels."""
        return [finding for kernel in self.kernels for finding in kernel.findings]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "targets": list(self.targets),
            "kernels": [
                {
                    "name": kernel.name,
                    "checks": {
                        check: {target: kernel.state(check, target) for target in self.targets}
                        for check in CHECKS
                    },
                    "refused": kernel.refused,
                    "findings": [asdict(finding) for finding in kernel.findings],
                    "native": kernel.native,
                    "times": [asdict(time) for time in kernel.times],
                }
                for kernel in self.kernels
            ],
        }

    def __str__(self) -> str:
        parts = [part for kernel in self.kernels for part in self._parts(kernel)]
        count = len(self.findings)
        end = f"{count} finding(s)" if count else "no findings"
        return rendered([*parts, f"{len(self.kernels)} kernel(s) checked: {end}"])

    def _parts(self, kernel: KernelReport) -> list[Any]:
        from rich.table import Table

        table = Table(kernel.name, *self.targets, "what is checked")
        for check, meaning in CHECKS.items():
            cells = [kernel.state(check, target) for target in self.targets]
            if set(cells) != {"-"}:
                table.add_row(check, *cells, meaning)
        times = {time.target: time for time in kernel.times}
        if times:
            found = [times.get(target) for target in self.targets]
            seconds = [time_text(one.seconds) if one else "-" for one in found]
            limits = [time_text(one.limit_seconds) if one else "-" for one in found]
            table.add_row("predicted time", *seconds, next(iter(times.values())).sizes)
            table.add_row("limit", *limits, "by the kernel's cost")
        lines = [str(finding) for finding in kernel.findings]
        if kernel.native:
            lines.append(f"nki.simulate differs by up to {kernel.native:.3g} from trnx's simulator")
        return [table, *lines, *_refusals(kernel)]


def _refusals(kernel: KernelReport) -> list[str]:
    """What the guard refused, the most frequent reasons of each target."""
    by_reason: dict[str, list[str]] = {}
    for target, reasons in kernel.refused.items():
        for reason in sorted(reasons, key=lambda one: -reasons[one])[:3]:
            by_reason.setdefault(reason, []).append(target)
    return [f"refused ({', '.join(on)}): {reason}" for reason, on in by_reason.items()]
