"""`Profile`: the predicted time of a kernel on the chip, and where it goes.

    profile = trnx.profile(kernel, TensorSpec.dense((128, 4096), torch.bfloat16))
    print(profile)                          # a table; `profile.to_dict()` has the numbers
    profile.write_trace("kernel.pftrace")   # opens in the Perfetto UI
    profile.plot("plots")                   # roofline.png, memory.png

Nothing is executed: shapes and dtypes are enough. `docs/timing.md` says how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnx.simulator.errors import Location
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.program import Program
from trnx.simulator.timing.band import Band, error_band
from trnx.simulator.timing.compiler import PROGRAM_ORDER
from trnx.simulator.timing.schedule import Schedule, queue_name
from trnx.simulator.timing.scheduler import schedule
from trnx.simulator.timing.timeline import Timeline, wait_name

PICOSECONDS = 1e12


@dataclass(frozen=True)
class QueueTime:
    """One queue of one core: seconds busy, and seconds waiting by what it waits for.

    A key of `stalled` is the queue whose result is awaited, with "(memory)" where it still holds
    SBUF or PSUM space, "(port)" where it holds a shared port, "(partner)" for the other core.
    """

    name: str
    busy_seconds: float
    stalled: dict[str, float]

    @property
    def stalled_seconds(self) -> float:
        """All waiting."""
        return sum(self.stalled.values())


@dataclass(frozen=True)
class LineTime:
    """Share of one source line in the critical path."""

    location: Location
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The prediction. Rates are per second, utilisations between 0 and 1.

    `mfu` counts FLOPs of matrix products against the bfloat16 peak, `mbu` HBM bytes against the
    rate of the DMA engines, `dma_busy` the time in which these move data; all over the cores that
    the kernel uses. Peaks are bytes per partition live at once in predicted time. `band` is the
    error of the model on measurements that it was not made from, None where the chip has none;
    `assumptions` name what is taken for granted, such as the count of a loop that a run decides.
    Where the kernel writes one tile again and again, `total_seconds` takes it that the compiler
    gives each value a copy, as far as memory goes (`rewritten` are the lines), and that results go
    where a copy puts them at once (`copied`). `program_order_seconds` is the time without that.
    The compiler may re-order instructions, too, which the prediction does not: `busiest_seconds`,
    the work of the busiest queue, is the limit of that.
    """

    name: str
    target: str
    total_seconds: float
    instructions: int
    queues: tuple[QueueTime, ...]
    dma_busy: float
    dma_bytes: int
    hbm_bytes: int
    matmul_flops: int
    mfu: float
    mbu: float
    throttled_seconds: float
    peak_sbuf_bytes: int
    peak_psum_bytes: int
    critical_path: tuple[LineTime, ...]
    assumptions: tuple[str, ...]
    program_order_seconds: float
    busiest_seconds: float
    rewritten: tuple[Location, ...]
    copied: tuple[Location, ...]
    cores: int
    band: Band | None
    timeline: Timeline = field(repr=False, compare=False)

    @property
    def is_exact(self) -> bool:
        """False where something is assumed that only a run knows."""
        return not self.assumptions

    @property
    def hbm_bytes_per_second(self) -> float:
        """Average HBM traffic."""
        return self.hbm_bytes / self.total_seconds if self.total_seconds else 0.0

    @property
    def dma_bytes_per_second(self) -> float:
        """Average DMA traffic, on chip included."""
        return self.dma_bytes / self.total_seconds if self.total_seconds else 0.0

    @property
    def matmul_flops_per_second(self) -> float:
        """Average rate of matrix products."""
        return self.matmul_flops / self.total_seconds if self.total_seconds else 0.0

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs of matrix products per HBM byte."""
        return self.matmul_flops / self.hbm_bytes if self.hbm_bytes else 0.0

    @property
    def range_seconds(self) -> tuple[float, float] | None:
        """Between what and what the measured time would lie, by the error band."""
        return None if self.band is None else self.band.range_of(self.total_seconds)

    def busy(self, queue: str) -> float:
        """Seconds in which a queue ("tensor", or "core 1 tensor") is busy."""
        return sum(entry.busy_seconds for entry in self.queues if entry.name == queue)

    def utilisation(self, queue: str) -> float:
        """Share of the total in which a queue is busy."""
        return self.busy(queue) / self.total_seconds if self.total_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        from trnx.simulator.timing.summary import profile_dict

        return profile_dict(self)

    def __str__(self) -> str:
        from trnx.simulator.timing.summary import profile_text

        return profile_text(self)

    def write_trace(self, path: str | Path) -> Path:
        """A native Perfetto trace: engines, DMA queues and transfers, waits, memory, source lines.

        Needs the extra `profile`; raises ProfileDependencyError without it.
        """
        from trnx.simulator.timing.perfetto_trace import write_trace

        return write_trace(Path(path), self.name, self.target, [(self.timeline, 0)])

    def plot(self, folder: str | Path, suffix: str = "png") -> tuple[Path, Path]:
        """`roofline.png` and `memory.png` (or another suffix that matplotlib knows) in `folder`.

        Needs the extra `profile`; raises ProfileDependencyError without it.
        """
        from trnx.simulator.timing.plots import plot_memory, plot_roofline, roofline_point

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        chip = self.timeline.chip
        return (
            plot_roofline(
                folder / f"roofline.{suffix}", self.name, [roofline_point(self)], chip, self.cores
            ),
            plot_memory(
                folder / f"memory.{suffix}",
                self.name,
                [(self.timeline, 0)],
                self.timeline.schedule.total_ps,
            ),
        )


def predicted_seconds(program: Program, chip: Hardware, unknown_trips: int = 1) -> float:
    """The total alone, for a Program that was traced for this generation. A loop whose count only a
    run knows runs `unknown_trips` times."""
    return schedule(program.rows, chip, unknown_trips=unknown_trips).total_ps / PICOSECONDS


def predicted_work(
    rows: InstructionTable, chip: Hardware, unknown_trips: int = 1
) -> tuple[float, int, int]:
    """Seconds, FLOPs of matrix products and bytes of HBM of recorded instructions, which may be the
    first ones of a kernel."""
    result = schedule(rows, chip, unknown_trips=unknown_trips)
    flops = Timeline(rows, result, chip).matmul_flops
    return result.total_ps / PICOSECONDS, flops, result.hbm_bytes


def profile_program(program: Program, chip: Hardware, unknown_trips: int = 1) -> Profile:
    """The prediction for a Program that was traced for this generation, with as many turns of loops
    whose count only a run knows."""
    result = schedule(program.rows, chip, unknown_trips=unknown_trips)
    timeline = Timeline(program.rows, result, chip)
    total = result.total_ps / PICOSECONDS
    cores = len(result.cores)
    flops = timeline.matmul_flops
    rate = chip.dma_bytes_per_second * cores
    engines = chip.dma_engines * cores * result.total_ps
    peaks = timeline.peak_bytes()
    places = program.rows.locations()
    return Profile(
        name=program.name,
        target=chip.target,
        total_seconds=total,
        instructions=len(result.order),
        queues=_queue_times(result, cores > 1),
        dma_busy=result.dma_busy_ps / engines if engines else 0.0,
        dma_bytes=result.dma_bytes,
        hbm_bytes=result.hbm_bytes,
        matmul_flops=flops,
        mfu=flops / (total * chip.peak_bf16_flops * cores) if total else 0.0,
        mbu=result.hbm_bytes / (total * rate) if total else 0.0,
        throttled_seconds=result.throttled_ps / PICOSECONDS,
        peak_sbuf_bytes=peaks[MemoryRegion.sbuf],
        peak_psum_bytes=peaks[MemoryRegion.psum],
        critical_path=_critical_path(timeline),
        assumptions=result.assumptions,
        program_order_seconds=_program_order_ps(program, chip, result, unknown_trips) / PICOSECONDS,
        busiest_seconds=max(result.busy_ps.values(), default=0) / PICOSECONDS,
        rewritten=tuple(places[line] for line in result.changed.rewritten),
        copied=tuple(places[line] for line in result.changed.copies),
        cores=cores,
        band=error_band(chip.target),
        timeline=timeline,
    )


def _program_order_ps(
    program: Program, chip: Hardware, result: Schedule, unknown_trips: int
) -> int:
    if not any(result.changed):
        return result.total_ps
    ordered = schedule(program.rows, chip, unknown_trips=unknown_trips, passes=PROGRAM_ORDER)
    return ordered.total_ps


def _queue_times(result: Schedule, has_cores: bool) -> tuple[QueueTime, ...]:
    stalled = result.stalled_ps
    return tuple(
        QueueTime(
            queue_name(q, has_cores),
            busy / PICOSECONDS,
            {
                wait_name(reason, other, has_cores): ps / PICOSECONDS
                for (reason, other), ps in sorted(stalled.get(q, {}).items())
            },
        )
        for q, busy in result.busy_ps.items()
    )


def _critical_path(timeline: Timeline) -> tuple[LineTime, ...]:
    """Source lines by their time on the critical path; the times add up to the total."""
    rows, result = timeline.rows, timeline.schedule
    spent: dict[int, int] = {}
    for position, until in result.critical_path():
        line = rows.line[result.order[position]]
        spent[line] = spent.get(line, 0) + until - result.start[position]
    places: Sequence[Location] = rows.locations()
    return tuple(
        LineTime(places[line], ps / PICOSECONDS)
        for line, ps in sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    )
