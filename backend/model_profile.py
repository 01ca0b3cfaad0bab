"""`ModelProfile`: the predicted time of compiled graphs on the chip, region by region.

A graph takes its launch and its regions, one after another. A kernel's region is the schedule of
its instructions; a region of the fallback is estimated from its work, and so is a kernel that is
too long to trace (`backend/prediction.py`). The error band holds for the scheduled part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnx.backend.options import on_cores
from trnx.backend.prediction import Prediction
from trnx.backend.programs import launch_key
from trnx.backend.report import GraphReport, RegionReport, counted
from trnx.simulator.errors import Location
from trnx.simulator.hardware import Hardware
from trnx.simulator.timing.band import error_band
from trnx.simulator.timing.profile import PICOSECONDS, Profile
from trnx.simulator.timing.summary import band_dict

ENGINES = ("nki", "xla", "eager", "collective")


@dataclass(frozen=True)
class RegionTime:
    """One region: `by` is `schedule` or `estimate`; `profile` is there for scheduled ones. `work`
    is the kernel (or the ops of a fallback) with its sizes, `label` the same after the layer.
    `cores` share the work; `alone` says why one of two has it."""

    graph: str
    name: str
    engine: str
    kernel: str | None
    ops: tuple[str, ...]
    source: str
    seconds: float
    by: str
    profile: Profile | None = field(repr=False, compare=False)
    work: str
    label: str
    reads: tuple[str, ...] = ()
    cores: int = 1
    alone: str = ""


@dataclass(frozen=True)
class ModelProfile:
    """The prediction for one run of each graph; `runs` says how often each ran, 0 if not at all.

    `mfu` and `mbu` are those of the whole time, launches included, on one logical core of `lnc`
    physical ones; FLOPs and bytes are those of scheduled kernels.
    """

    name: str
    target: str
    launch_seconds: tuple[float, ...]
    regions: tuple[RegionTime, ...]
    graphs: tuple[str, ...]
    runs: tuple[int, ...]
    lnc: int = 1

    def __add__(self, other: ModelProfile) -> ModelProfile:
        """Both, under the name of the first; for the same target."""
        assert (self.target, self.lnc) == (other.target, other.lnc)
        return ModelProfile(
            self.name,
            self.target,
            self.launch_seconds + other.launch_seconds,
            self.regions + other.regions,
            self.graphs + other.graphs,
            self.runs + other.runs,
            self.lnc,
        )

    @property
    def chip(self) -> Hardware:
        """The target's record, with the cores of a logical core."""
        return on_cores(self.target, self.lnc)

    @property
    def total_seconds(self) -> float:
        """Launches and regions."""
        return sum(self.launch_seconds) + sum(region.seconds for region in self.regions)

    @property
    def range_seconds(self) -> tuple[float, float] | None:
        """Between what and what the measured time would lie: the band on what is scheduled, the
        rest as predicted. None where the chip has no band."""
        return range_of(self.target, self.total_seconds, self.seconds_by("schedule"))

    def seconds_by(self, by: str) -> float:
        """Time of the regions whose prediction rests on a `schedule` or an `estimate`."""
        return sum(region.seconds for region in self.regions if region.by == by)

    def seconds_of(self, graph: str) -> float:
        """One run of a graph, its launch included."""
        launch = self.launch_seconds[self.graphs.index(graph)]
        return launch + sum(region.seconds for region in self.regions if region.graph == graph)

    def seconds_on(self, engine: str) -> float:
        """Time of the regions of `nki`, `xla` or `eager`."""
        return sum(region.seconds for region in self.regions if region.engine == engine)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Those of the scheduled regions, in order; equal kernels share one."""
        return tuple(region.profile for region in self.regions if region.profile is not None)

    @property
    def matmul_flops(self) -> int:
        """FLOPs of matrix products of scheduled kernels."""
        return sum(profile.matmul_flops for profile in self.profiles)

    @property
    def hbm_bytes(self) -> int:
        """HBM traffic of scheduled kernels."""
        return sum(profile.hbm_bytes for profile in self.profiles)

    @property
    def mfu(self) -> float:
        """Share of the bfloat16 peak."""
        total = self.total_seconds
        peak = self.lnc * self.chip.peak_bf16_flops
        return self.matmul_flops / (total * peak) if total else 0.0

    @property
    def mbu(self) -> float:
        """Share of the DMA rate."""
        total = self.total_seconds
        return self.hbm_bytes / (total * self.chip.stream_bytes_per_second) if total else 0.0

    @property
    def queues(self) -> dict[str, tuple[float, float]]:
        """(busy, stalled) seconds of each queue over all scheduled kernels."""
        found: dict[str, tuple[float, float]] = {}
        for profile in self.profiles:
            for entry in profile.queues:
                busy, stalled = found.get(entry.name, (0.0, 0.0))
                found[entry.name] = (
                    busy + entry.busy_seconds,
                    stalled + entry.stalled_seconds,
                )
        return found

    @property
    def critical_path(self) -> tuple[tuple[Location, float], ...]:
        """Kernels' source lines by seconds on the critical path of their regions."""
        found: dict[Location, float] = {}
        for profile in self.profiles:
            for line in profile.critical_path:
                found[line.location] = found.get(line.location, 0.0) + line.seconds
        return tuple(sorted(found.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        bounds, total = self.range_seconds, self.total_seconds
        return {
            "name": self.name,
            "target": self.target,
            "lnc": self.lnc,
            "chip": _chip_dict(self.chip),
            "total_seconds": total,
            "range_seconds": None if bounds is None else list(bounds),
            "band": band_dict(self.target),
            "launch_seconds": sum(self.launch_seconds),
            "seconds": {engine: self.seconds_on(engine) for engine in ENGINES},
            "matmul_flops": self.matmul_flops,
            "hbm_bytes": self.hbm_bytes,
            "mfu": self.mfu,
            "mbu": self.mbu,
            "queues": {
                name: {"busy_seconds": busy, "stalled_seconds": stalled}
                for name, (busy, stalled) in self.queues.items()
            },
            "graphs": [
                {
                    "name": name,
                    "seconds": self.seconds_of(name),
                    "launch_seconds": launch,
                    "runs": runs,
                }
                for name, launch, runs in zip(
                    self.graphs, self.launch_seconds, self.runs, strict=True
                )
            ],
            "regions": [_region_dict(region, total) for region in self.regions],
            "critical_path": [
                {"location": str(place), "seconds": seconds}
                for place, seconds in self.critical_path
            ],
        }

    def __str__(self) -> str:
        from trnx.backend.model_view import model_text

        return model_text(self)

    def groups(self) -> dict[tuple[str, str, str, float], int]:
        """(work, engine, by, seconds) of equal regions -> how many there are."""
        found: dict[tuple[str, str, str, float], int] = {}
        for region in self.regions:
            key = (region.work, region.engine, region.by, region.seconds)
            found[key] = found.get(key, 0) + 1
        return found

    def stretches(self) -> Iterator[tuple[RegionTime | str, int, int]]:
        """(region, or the graph that is launched; start and end in ps), in the order of a run."""
        at = 0
        for graph, launch in zip(self.graphs, self.launch_seconds, strict=True):
            end = at + round(launch * PICOSECONDS)
            yield graph, at, end
            at = end
            for region in self.regions:
                if region.graph == graph:
                    end = at + round(region.seconds * PICOSECONDS)
                    yield region, at, end
                    at = end

    def write_trace(self, path: str | Path) -> Path:
        """A Perfetto trace of one run: launches and regions, and beneath the kernels' engines.

        Needs the extra `profile`; raises ProfileDependencyError without it.
        """
        from trnx.simulator.timing.perfetto_trace import TimelineTracks, TraceFile

        path = Path(path)
        parts = [(p.timeline, start) for p, start in self._timelines()]
        with TraceFile(path) as file:
            root = file.track(f"{self.name} on {self.target}")
            regions = file.track("regions", root)
            for what, start, end in self.stretches():
                if isinstance(what, str):
                    file.slice(regions, f"launch of {what}", start, end)
                    continue
                file.slice(
                    regions, what.label, start, end, region=what.name, engine=what.engine,
                    by=what.by, ops=", ".join(counted(what.ops)), source=what.source,
                )  # fmt: skip
            tracks = TimelineTracks(file, root, parts)
            for timeline, start in parts:
                tracks.add(timeline, start)
        return path

    def _timelines(self) -> Iterator[tuple[Profile, int]]:
        """Scheduled kernels and when they start; copies of operands come before the kernel."""
        for what, _, end in self.stretches():
            if isinstance(what, RegionTime) and what.profile is not None:
                yield what.profile, end - what.profile.timeline.schedule.total_ps

    def write_html(self, path: str | Path) -> Path:
        """One page to look at, which needs nothing but a browser. Shows what `to_dict` gives."""
        from trnx.backend.html.page import write
        from trnx.backend.html.reports import profile_page

        return write(Path(path), profile_page({"targets": [self.to_dict()]}))

    def plot(self, folder: str | Path, suffix: str = "png") -> tuple[Path, ...]:
        """`roofline` with each different kernel, and `memory` over the whole run, in `folder`;
        nothing where no kernel is scheduled. Needs the extra `profile`."""
        from trnx.simulator.timing.plots import plot_memory, plot_roofline, roofline_point

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        parts = [(p.timeline, start) for p, start in self._timelines()]
        if not parts:
            return ()
        different: dict[int, tuple[Profile, str, int]] = {}
        for region in self.regions:
            if region.profile is not None:
                count = different.get(id(region.profile), (None, "", 0))[2] + 1
                different[id(region.profile)] = (region.profile, region.work, count)
        points = [
            roofline_point(p, f"{count} x {work}", count) for p, work, count in different.values()
        ]
        cores = max(profile.cores for profile in self.profiles)
        total = round(self.total_seconds * PICOSECONDS)
        return (
            plot_roofline(folder / f"roofline.{suffix}", self.name, points, self.chip, cores),
            plot_memory(folder / f"memory.{suffix}", self.name, parts, total),
        )


def range_of(target: str, total: float, scheduled: float) -> tuple[float, float] | None:
    """The band of the target on the scheduled part of a total."""
    band = error_band(target)
    if band is None:
        return None
    low, high = band.range_of(scheduled)
    return total - scheduled + low, total - scheduled + high


def _region_dict(region: RegionTime, total: float) -> dict[str, Any]:
    return {
        "graph": region.graph,
        "name": region.name,
        "label": region.label,
        "engine": region.engine,
        "kernel": region.kernel,
        "ops": list(region.ops),
        "source": region.source,
        "reads": list(region.reads),
        **_scheduled_dict(region.profile),
        "seconds": region.seconds,
        "share": region.seconds / total if total else 0.0,
        "work": region.work,
        "by": region.by,
        "cores": region.cores,
        "alone": region.alone,
    }


def _scheduled_dict(profile: Profile | None) -> dict[str, int | None]:
    """What the schedule of a kernel tells of its work and memory; None where there is none."""
    names = ("matmul_flops", "hbm_bytes", "peak_sbuf_bytes", "peak_psum_bytes")
    return {name: None if profile is None else getattr(profile, name) for name in names}


def _chip_dict(chip: Hardware) -> dict[str, float]:
    """The limits of one logical core."""
    return {
        "peak_bf16_flops": chip.cores * chip.peak_bf16_flops,
        "peak_fp32_flops": chip.cores * chip.peak_fp32_flops,
        "dma_bytes_per_second": chip.stream_bytes_per_second,
        "sbuf_partition_bytes": chip.sbuf_partition_bytes,
        "psum_partition_bytes": chip.psum_partition_bytes,
    }


def model_profile(name: str, target: str, reports: Iterable[GraphReport]) -> ModelProfile:
    """The prediction for one run of each graph; equal kernels are scheduled once."""
    known: dict[Any, Profile | None] = {}

    def profile_of(prediction: Prediction) -> Profile | None:
        if prediction.launch is None:
            return None
        key = launch_key(prediction.launch, prediction.hardware.target)
        if key not in known:
            known[key] = prediction.profile()
        return known[key]

    found: Sequence[GraphReport] = list(reports)
    return ModelProfile(
        name,
        target,
        tuple(report.launch_seconds for report in found),
        tuple(_region(report, entry, profile_of) for report in found for entry in report.regions),
        tuple(report.name for report in found),
        tuple(report.runs for report in found),
        found[0].lnc if found else 1,
    )


def _region(
    report: GraphReport,
    entry: RegionReport,
    profile_of: Callable[[Prediction], Profile | None],
) -> RegionTime:
    return RegionTime(
        report.name,
        entry.name,
        entry.engine,
        entry.kernel,
        tuple(entry.ops),
        entry.source,
        entry.predicted_seconds,
        entry.predicted_by,
        None if entry.prediction is None else profile_of(entry.prediction),
        entry.work,
        entry.label,
        entry.reads,
        entry.cores,
        entry.alone,
    )
