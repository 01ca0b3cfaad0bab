"""`profile`: the predicted time of a kernel on the chip, and where it goes.

    print(trnx.profile(kernel, TensorSpec.dense((128, 4096), torch.bfloat16)))

Nothing is executed: shapes and dtypes are enough.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from trnx.simulator.errors import Location
from trnx.simulator.hardware import Hardware, hardware
from trnx.simulator.program import Program
from trnx.simulator.timing.schedule import Schedule, queue_name
from trnx.simulator.timing.scheduler import schedule
from trnx.simulator.tracing import Grid, trace

_LINES = 10  # of the critical path in the text table


@dataclass(frozen=True)
class QueueTime:
    """One queue of one core. `stalled` is time in seconds waiting for results, by their queue."""

    name: str
    busy_seconds: float
    stalled: dict[str, float]


@dataclass(frozen=True)
class LineTime:
    """Share of one source line in the critical path."""

    location: Location
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The prediction. Rates are per second, utilisations between 0 and 1.

    `mfu` counts FLOPs of matrix products against the bfloat16 peak, `mbu` HBM bytes against the
    rate of the DMA engines. `is_exact` is False where a loop's trip count is known to a run alone:
    such a body counts once.
    """

    name: str
    target: str
    total_seconds: float
    instructions: int
    queues: tuple[QueueTime, ...]
    dma_busy: float
    hbm_bytes: int
    matmul_flops: int
    mfu: float
    mbu: float
    throttled_seconds: float
    peak_sbuf_bytes: int
    peak_psum_bytes: int
    critical_path: tuple[LineTime, ...]
    is_exact: bool

    @property
    def hbm_bytes_per_second(self) -> float:
        """Average HBM traffic."""
        return self.hbm_bytes / self.total_seconds if self.total_seconds else 0.0

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs of matrix products per HBM byte."""
        return self.matmul_flops / self.hbm_bytes if self.hbm_bytes else 0.0

    def busy(self, queue: str) -> float:
        """Seconds in which a queue ("tensor", or "core 1 tensor") is busy."""
        return sum(entry.busy_seconds for entry in self.queues if entry.name == queue)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        return {
            "name": self.name,
            "target": self.target,
            "total_seconds": self.total_seconds,
            "instructions": self.instructions,
            "queues": {
                entry.name: {"busy_seconds": entry.busy_seconds, "stalled_seconds": entry.stalled}
                for entry in self.queues
            },
            "dma_busy": self.dma_busy,
            "hbm_bytes": self.hbm_bytes,
            "hbm_bytes_per_second": self.hbm_bytes_per_second,
            "matmul_flops": self.matmul_flops,
            "mfu": self.mfu,
            "mbu": self.mbu,
            "arithmetic_intensity": self.arithmetic_intensity,
            "throttled_seconds": self.throttled_seconds,
            "peak_sbuf_bytes": self.peak_sbuf_bytes,
            "peak_psum_bytes": self.peak_psum_bytes,
            "critical_path": [
                {"location": str(line.location), "seconds": line.seconds}
                for line in self.critical_path
            ],
            "is_exact": self.is_exact,
        }

    def __str__(self) -> str:
        from rich.console import Console

        stream = io.StringIO()
        console = Console(file=stream, width=110, color_system=None)
        console.print(self._summary(), markup=False, highlight=False)
        console.print(self._queue_table())
        console.print(self._path_table())
        return stream.getvalue().rstrip()

    def _summary(self) -> str:
        note = "" if self.is_exact else "\nA loop whose count only a run knows is counted once."
        return (
            f"{self.name} on {self.target}: {_time(self.total_seconds)} predicted, "
            f"{self.instructions} instructions\n"
            f"HBM {self.hbm_bytes / 1e6:.3f} MB, {self.hbm_bytes_per_second / 1e9:.1f} GB/s; "
            f"MFU {self.mfu:.1%}, MBU {self.mbu:.1%}, DMA engines busy {self.dma_busy:.1%}, "
            f"{self.arithmetic_intensity:.1f} FLOP/byte{note}"
        )

    def _queue_table(self) -> Any:
        from rich.table import Table

        table = Table("queue", "busy", "", "stalled", "waiting for")
        for entry in self.queues:
            share = entry.busy_seconds / self.total_seconds if self.total_seconds else 0.0
            reasons = sorted(entry.stalled.items(), key=lambda item: -item[1])[:3]
            table.add_row(
                entry.name,
                _time(entry.busy_seconds),
                f"{share:.1%}",
                _time(sum(entry.stalled.values())),
                ", ".join(f"{name} {_time(seconds)}" for name, seconds in reasons),
            )
        return table

    def _path_table(self) -> Any:
        from rich.table import Table

        table = Table("critical path", "time", "")
        for line in self.critical_path[:_LINES]:
            share = line.seconds / self.total_seconds if self.total_seconds else 0.0
            table.add_row(str(line.location), _time(line.seconds), f"{share:.1%}")
        return table


def profile(kernel: Any, *args: Any, target: str = "trn2", grid: Grid = None) -> Profile:
    """The prediction for `kernel` with these positional arguments (tensors, TensorSpecs or
    constants) on `target`. Raises what tracing the kernel raises.
    """
    return profile_program(trace(kernel, args, target=target, grid=grid), hardware(target))


def profile_program(program: Program, chip: Hardware) -> Profile:
    """The prediction for a Program that was traced for this generation."""
    result = schedule(program.rows, chip)
    total = result.total_ps / 1e12
    cores = result.cores
    flops = sum(program.rows.flops[row] for row in result.order)
    rate = chip.dma_bytes_per_second * len(cores)
    engines = chip.dma_engines * len(cores) * result.total_ps
    return Profile(
        name=program.name,
        target=chip.target,
        total_seconds=total,
        instructions=len(result.order),
        queues=_queue_times(result, len(cores) > 1),
        dma_busy=result.dma_busy_ps / engines if engines else 0.0,
        hbm_bytes=result.hbm_bytes,
        matmul_flops=flops,
        mfu=flops / (total * chip.peak_bf16_flops * len(cores)) if total else 0.0,
        mbu=result.hbm_bytes / (total * rate) if total else 0.0,
        throttled_seconds=result.throttled_ps / 1e12,
        peak_sbuf_bytes=program.peak_sbuf_bytes,
        peak_psum_bytes=program.peak_psum_bytes,
        critical_path=_critical_path(program, result),
        is_exact=result.is_exact,
    )


def _queue_times(result: Schedule, has_cores: bool) -> tuple[QueueTime, ...]:
    stalled = result.stalled_ps
    times = []
    for q, busy in result.busy_ps.items():
        reasons: dict[str, float] = {}
        for (_, other), ps in stalled[q].items():
            name = queue_name(other, has_cores)
            reasons[name] = reasons.get(name, 0.0) + ps / 1e12
        times.append(QueueTime(queue_name(q, has_cores), busy / 1e12, reasons))
    return tuple(times)


def _critical_path(program: Program, result: Schedule) -> tuple[LineTime, ...]:
    """Time by source line of what held things up; the times add up to the total."""
    rows = program.rows
    spent: dict[int, int] = {}
    for position, until in result.critical_path():
        line = rows.line[result.order[position]]
        spent[line] = spent.get(line, 0) + until - result.start[position]
    locations = rows.locations()
    return tuple(
        LineTime(locations[line], ps / 1e12)
        for line, ps in sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    )


def _time(seconds: float) -> str:
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3f} ms"
    return f"{seconds * 1e6:.2f} us"


def predicted_seconds(program: Program, chip: Hardware) -> float:
    """The total alone, for a Program that was traced for this generation."""
    return schedule(program.rows, chip).total_ps / 1e12
