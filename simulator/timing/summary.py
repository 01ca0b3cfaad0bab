"""A profile as text and as plain data."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trnx.simulator.errors import Location
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.timing.band import error_band

if TYPE_CHECKING:
    from rich.table import Table

    from trnx.simulator.timing.profile import Profile

_LINES = 10  # of the critical path in the text
_REWRITTEN = 5  # lines that the compiler changes, in the text
_REASONS = 3  # that a queue waits for, in the text
_PARTS = 100  # stretches of time of `memory` in the data
_WIDTH = 110


def time_text(seconds: float) -> str:
    """With the unit that fits."""
    if seconds >= 1:
        return f"{seconds:.3f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3f} ms"
    return f"{seconds * 1e6:.2f} us"


def scaled_text(value: float, unit: str) -> str:
    """With three digits and the prefix of 1000 that fits: `312 MFLOP/s`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def bytes_text(size: float) -> str:
    """With three digits and the prefix of 1024 that fits: `24.5 KiB`."""
    for factor, prefix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{_three_digits(size / factor)} {prefix}"
    return f"{size:.0f} B"


def _three_digits(value: float) -> str:
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def range_text(bounds: tuple[float, float] | None) -> str:
    """Between what a measured time would lie, empty where there is no error band."""
    if bounds is None:
        return ""
    return f", {time_text(bounds[0])} to {time_text(bounds[1])} by the error band"


def band_text(target: str) -> str:
    """What the error band of a target rests on."""
    band = error_band(target)
    if band is None:
        return f"error band: none, no held-out measurement judges {target}"
    return f"error band: {band.note}"


def band_dict(target: str) -> dict[str, Any] | None:
    """The error band of a target as data."""
    band = error_band(target)
    if band is None:
        return None
    return {
        "low": band.low,
        "high": band.high,
        "median": band.median,
        "points": band.points,
        "judged_on": band.judged_on,
    }


def rendered(parts: Iterable[Any]) -> str:
    """Text and tables of rich without colours, for files and terminals alike."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=_WIDTH, color_system=None)
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(part)
    return stream.getvalue().rstrip()


def profile_text(profile: Profile) -> str:
    """Summary, queues, memory and critical path."""
    return rendered([_summary(profile), queue_table(profile), path_table(profile)])


def _summary(profile: Profile) -> str:
    chip = profile.timeline.chip
    lines = [
        f"{profile.name} on {profile.target}: {time_text(profile.total_seconds)} predicted"
        f"{range_text(profile.range_seconds)}, {profile.instructions} instructions",
        f"HBM {profile.hbm_bytes / 1e6:.3f} MB, {profile.hbm_bytes_per_second / 1e9:.1f} GB/s; "
        f"DMA {profile.dma_bytes / 1e6:.3f} MB, {profile.dma_bytes_per_second / 1e9:.1f} GB/s, "
        f"engines busy {profile.dma_busy:.1%}",
        f"MFU {profile.mfu:.1%}, MBU {profile.mbu:.1%}, {profile.arithmetic_intensity:.1f} "
        f"FLOP/byte; peak SBUF {_part(profile.peak_sbuf_bytes, chip.sbuf_partition_bytes)}, "
        f"PSUM {_part(profile.peak_psum_bytes, chip.psum_partition_bytes)} per partition",
        band_text(profile.target),
    ]
    if profile.throttled_seconds:
        lines.append(f"TensorE's throttle costs {time_text(profile.throttled_seconds)}")
    lines += [f"assumed: {note}" for note in profile.assumptions]
    lines += _compiler_text(profile)
    return "\n".join(lines)


def _compiler_text(profile: Profile) -> Iterator[str]:
    """What the compiler has to do for the predicted time."""
    if profile.rewritten:
        yield (
            f"in program order: {time_text(profile.program_order_seconds)}. The prediction takes "
            "it that the compiler gives each value of the tiles that are written anew at "
            f"{_places(profile.rewritten)} a copy; allocate a tile in each turn to be sure"
        )
    if profile.copied:
        yield (
            f"the copies at {_places(profile.copied)} are taken not to be made; give the "
            "instruction before its `dst` to be sure"
        )


def _places(found: Sequence[Location]) -> str:
    more = f" and {len(found) - _REWRITTEN} more" if len(found) > _REWRITTEN else ""
    return f"{', '.join(map(str, found[:_REWRITTEN]))}{more}"


def _part(used: int, limit: int) -> str:
    return f"{bytes_text(used)} of {bytes_text(limit)}"


def queue_table(profile: Profile) -> Table:
    """Of each queue: busy, waiting, and for what."""
    from rich.table import Table

    table = Table("queue")
    for column in ("busy", "share", "stalled", "share"):
        table.add_column(column, justify="right")
    table.add_column("waiting for")
    total = profile.total_seconds or 1.0
    for entry in profile.queues:
        reasons = sorted(entry.stalled.items(), key=lambda item: -item[1])[:_REASONS]
        table.add_row(
            entry.name,
            time_text(entry.busy_seconds),
            f"{entry.busy_seconds / total:.1%}",
            time_text(entry.stalled_seconds),
            f"{entry.stalled_seconds / total:.1%}",
            ", ".join(f"{name} {time_text(seconds)}" for name, seconds in reasons),
        )
    return table


def path_table(profile: Profile) -> Table:
    """Source lines by their time on the critical path."""
    from rich.table import Table

    table = Table("critical path")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    total = profile.total_seconds or 1.0
    for line in profile.critical_path[:_LINES]:
        table.add_row(str(line.location), time_text(line.seconds), f"{line.seconds / total:.1%}")
    rest = profile.critical_path[_LINES:]
    if rest:
        seconds = sum(line.seconds for line in rest)
        table.add_row(f"{len(rest)} more lines", time_text(seconds), f"{seconds / total:.1%}")
    return table


def profile_dict(profile: Profile) -> dict[str, Any]:
    """Everything as plain numbers and strings."""
    bounds = profile.range_seconds
    return {
        "name": profile.name,
        "target": profile.target,
        "total_seconds": profile.total_seconds,
        "range_seconds": None if bounds is None else list(bounds),
        "band": band_dict(profile.target),
        "instructions": profile.instructions,
        "cores": profile.cores,
        "queues": {
            entry.name: {
                "busy_seconds": entry.busy_seconds,
                "utilisation": profile.utilisation(entry.name),
                "stalled_seconds": entry.stalled,
            }
            for entry in profile.queues
        },
        "dma_busy": profile.dma_busy,
        "dma_bytes": profile.dma_bytes,
        "dma_bytes_per_second": profile.dma_bytes_per_second,
        "hbm_bytes": profile.hbm_bytes,
        "hbm_bytes_per_second": profile.hbm_bytes_per_second,
        "matmul_flops": profile.matmul_flops,
        "mfu": profile.mfu,
        "mbu": profile.mbu,
        "arithmetic_intensity": profile.arithmetic_intensity,
        "throttled_seconds": profile.throttled_seconds,
        "peak_sbuf_bytes": profile.peak_sbuf_bytes,
        "peak_psum_bytes": profile.peak_psum_bytes,
        "memory": _memory(profile),
        "critical_path": [
            {"location": str(line.location), "seconds": line.seconds}
            for line in profile.critical_path
        ],
        "assumptions": list(profile.assumptions),
        "is_exact": profile.is_exact,
        "program_order_seconds": profile.program_order_seconds,
        "busiest_seconds": profile.busiest_seconds,
        "rewritten": [str(place) for place in profile.rewritten],
        "copied": [str(place) for place in profile.copied],
    }


def _memory(profile: Profile) -> dict[str, Any]:
    """Peaks within equal stretches of the total, of each core."""
    timeline = profile.timeline
    return {
        "interval_seconds": profile.total_seconds / _PARTS,
        "peak_bytes": [
            {
                "core": core,
                "sbuf": timeline.peaks_over_time(core, MemoryRegion.sbuf, _PARTS),
                "psum": timeline.peaks_over_time(core, MemoryRegion.psum, _PARTS),
            }
            for core in timeline.schedule.cores
        ],
    }
