"""`trnx check-kernels`: kernels on their samples, through all checks, against their references.

Every sample that a kernel takes on the target is run in trnx's simulator, with the checks on
memory, races and legality and with the front end's subset of Python, and its values are compared
with the reference. Where AWS's `nki` is installed, `nki.simulate` runs the same file on the same
operands, and every difference in values is shown.

It is made for the whole registry on one target. `trnx check` (`engine.py`) tries the kernels of one
file much harder: also with what the samples do not have, and on every target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trnx import simulator
from trnx.backend.kernel_checks.files import specs_in
from trnx.backend.kernel_checks.native import Simulate, native_difference, native_simulator
from trnx.backend.kernel_samples import difference, operands, samples_of
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import KernelSpec, Launch
from trnx.simulator.errors import Reject, TrnxError
from trnx.simulator.frontend.subset import check_subset
from trnx.simulator.hardware import Hardware, hardware


@dataclass(frozen=True)
class SampleCheck:
    """One sample of one kernel. `status` is `ok`, `refused` (by the kernel's guard) or `failed`;
    `largest` is the largest absolute difference from the reference, `native` that from AWS's
    simulator, None where that is not installed; `message` is the refusal, or what failed."""

    kernel: str
    note: str
    status: str
    message: str = ""
    largest: float = 0.0
    native: float | None = None


@dataclass(frozen=True)
class KernelChecks:
    """All samples; `simulators` are those that ran them."""

    target: str
    simulators: tuple[str, ...]
    samples: tuple[SampleCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether no sample failed, and each kernel ran at least one."""
        return not self.failed and not self.idle

    @property
    def failed(self) -> list[SampleCheck]:
        """The samples that failed."""
        return [sample for sample in self.samples if sample.status == "failed"]

    @property
    def idle(self) -> list[str]:
        """Kernels that refuse all their samples on the target."""
        ran = {sample.kernel for sample in self.samples if sample.status != "refused"}
        return sorted({sample.kernel for sample in self.samples} - ran)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ok": self.ok,
            "target": self.target,
            "simulators": self.simulators,
            "idle": self.idle,
            "samples": [asdict(sample) for sample in self.samples],
        }

    def __str__(self) -> str:
        lines = [f"kernels on {self.target}, simulated by {' and '.join(self.simulators)}"]
        for kernel in dict.fromkeys(sample.kernel for sample in self.samples):
            own = [sample for sample in self.samples if sample.kernel == kernel]
            counts = ", ".join(f"{n} {s}" for s, n in Counter(s.status for s in own).items())
            far = max(sample.largest for sample in own)
            lines.append(f"{kernel:<24} {counts}; differs from its reference by {far:.2g} at most")
            lines += [f"  {s.note}: {s.message}" for s in own if s.status == "failed"]
            lines += [
                f"  {s.note}: nki.simulate differs by up to {s.native:.3g}" for s in own if s.native
            ]
        lines += [f"{name} takes none of its samples on {self.target}" for name in self.idle]
        return "\n".join(lines)


def check_kernels(target: str, files: Iterable[Path] = ()) -> KernelChecks:
    """Check the kernels that `files` register, all of the registry where there is no file.

    Raises KernelCheckError for a file that is not there or registers no kernel.
    """
    hw = hardware(target)
    native = native_simulator()
    found = [check for spec in _chosen(files) for check in _checked(spec, hw, native)]
    simulators = ("trnx", "nki.simulate") if native else ("trnx",)
    return KernelChecks(hw.target, simulators, tuple(found))


def _chosen(files: Iterable[Path]) -> list[KernelSpec]:
    given = list(files)
    return [spec for path in given for spec in specs_in(path)] if given else list(kernels())


def _checked(spec: KernelSpec, hw: Hardware, native: Simulate | None) -> Iterator[SampleCheck]:
    for index, (sample, launch) in enumerate(samples_of(spec, hw)):
        note = sample.note or f"sample {index}"
        if isinstance(launch, Reject):
            yield SampleCheck(spec.name, note, "refused", launch.reason)
            continue
        try:
            found = _simulated(launch, operands(launch, sample), hw)
            told = difference(found, spec.reference(**sample.values), sample)
        except (TrnxError, RuntimeError, ValueError, TypeError) as error:
            message = f"{type(error).__name__}: {error}"
            yield SampleCheck(spec.name, note, "failed", message)
            continue
        theirs = None
        if native:
            theirs = native_difference(native, launch, operands(launch, sample), found, hw)
        problem = told.problem or (theirs.problem if theirs else "")
        yield SampleCheck(
            spec.name,
            note,
            "failed" if problem else "ok",
            problem,
            told.largest,
            theirs.largest if theirs else None,
        )


def _simulated(launch: Launch, given: list[Any], hw: Hardware) -> Any:
    check_subset(launch.kernel)
    with torch.no_grad():
        return simulator.simulate(launch.kernel, target=hw.target)(*given)
