"""`trnx profile SCRIPT`: the predicted time of every kernel and compiled graph that a script runs.

The script is executed as by `trnx sim`: kernels run in the simulator, and models compiled by trnx
run as always, so that what the script does with results happens. Afterwards each different kernel
call and each graph is predicted once, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trnx.backend.errors import ExampleError
from trnx.backend.model_profile import ModelProfile, RegionTime, model_profile
from trnx.backend.report import Reports, collect_reports
from trnx.simulator.frontend.run_script import run_script
from trnx.simulator.hardware import hardware
from trnx.simulator.program.program import Program
from trnx.simulator.program.run_observers import observing_runs
from trnx.simulator.timing.profile import Profile, profile_program

_TARGET = "TRNX_TARGET"


class _Kernels:
    """Kernel calls of a script: one profile for each different one, and how often it ran."""

    def __init__(self) -> None:
        self.profiles: dict[Hashable, Profile] = {}
        self.counts: dict[Hashable, int] = {}

    def add(self, program: Program, target: str) -> None:
        chip = hardware(target)
        key = (
            program.name, chip.target, program.inputs, program.outputs, program.totals,
            tuple(program.rows.opcode_counts().items()),
        )  # fmt: skip
        if key not in self.profiles:
            self.profiles[key] = profile_program(program, chip)
        self.counts[key] = self.counts.get(key, 0) + 1

    def model(self, name: str, target: str) -> ModelProfile:
        """Each call as a graph of one region, which is launched by itself."""
        found = [(p, self.counts[key]) for key, p in self.profiles.items() if p.target == target]
        regions = [_kernel_region(index, profile) for index, (profile, _) in enumerate(found)]
        return ModelProfile(
            name,
            target,
            (hardware(target).launch_seconds,) * len(found),
            tuple(regions),
            tuple(region.graph for region in regions),
            tuple(count for _, count in found),
        )


def _kernel_region(index: int, profile: Profile) -> RegionTime:
    graph = f"kernel_{index}.{profile.name}"
    path = profile.critical_path
    source = str(path[0].location) if path else ""
    return RegionTime(
        graph, profile.name, "nki", profile.name, (), source, profile.total_seconds, "schedule",
        profile, profile.name, profile.name,
    )  # fmt: skip


def profile_script(
    script: str, arguments: Sequence[str] = (), *, target: str | None = None
) -> tuple[ModelProfile, ...]:
    """Run `script`, then predict what it ran: one ModelProfile for each target it used.

    `target` is that of kernels and of models that name none. Raises what the script raises, and
    ExampleError where it ran neither a kernel nor a graph.
    """
    kernels = _Kernels()
    with _default_target(target), collect_reports() as reports, observing_runs(kernels.add):
        try:
            run_script(script, arguments, target=target)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    found = tuple(_by_target(Path(script).name, kernels, reports))
    if not found:
        raise ExampleError(
            f"{script} ran no NKI kernel and no graph compiled with backend='trnx': there is "
            "nothing to profile"
        )
    return found


def _by_target(name: str, kernels: _Kernels, reports: Reports) -> Iterator[ModelProfile]:
    targets = [p.target for p in kernels.profiles.values()] + [r.target for r in reports]
    for target in dict.fromkeys(targets):
        own = [report for report in reports if report.target == target]
        yield kernels.model(name, target) + model_profile(name, target, own)


@contextmanager
def _default_target(target: str | None) -> Iterator[None]:
    """TRNX_TARGET while the script runs."""
    before = os.environ.get(_TARGET)
    if target is not None:
        os.environ[_TARGET] = hardware(target).target
    try:
        yield
    finally:
        if target is not None:
            os.environ.pop(_TARGET)
            if before is not None:
                os.environ[_TARGET] = before
