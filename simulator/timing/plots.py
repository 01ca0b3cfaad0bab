"""Plots of a prediction, PNG or SVG: the roofline of a chip with kernels on it, and the live bytes
of SBUF and PSUM over time with what the engines do meanwhile.

Figures are made without pyplot: no global state, no window system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.timing.errors import needs
from trnx.simulator.timing.schedule import queue_name
from trnx.simulator.timing.summary import bytes_text, scaled_text
from trnx.simulator.timing.timeline import Timeline

if TYPE_CHECKING:
    from trnx.simulator.timing.profile import Profile

_INK, _GRID = "#222222", "#d9d9d9"
_COLOURS = ("#1f5fa8", "#c4561a", "#2f8f5b", "#7a4fa3", "#b8860b", "#5b6770", "#a83248", "#3d9aa8")
_LISTED = 6  # kernels without matrix products
_BINS = 400  # stretches of time in the strip of engines


# A timeline, and the ps at which it begins.
Part = tuple[Timeline, int]


@dataclass(frozen=True)
class RooflinePoint:
    """A kernel on the roofline: FLOPs of matrix products per HBM byte, and per second; HBM bytes
    per second; the seconds that weigh it.
    """

    name: str
    intensity: float
    flops_per_second: float
    bytes_per_second: float
    seconds: float


def roofline_point(profile: Profile, name: str = "", times: int = 1) -> RooflinePoint:
    """Where a profile lies; `times` weighs it."""
    return RooflinePoint(
        name or profile.name,
        profile.arithmetic_intensity,
        profile.matmul_flops_per_second,
        profile.hbm_bytes_per_second,
        profile.total_seconds * times,
    )


def _figure(height: float) -> Any:
    with needs("matplotlib", "a plot"):
        from matplotlib.figure import Figure
    return Figure(figsize=(9.0, height), layout="constrained", facecolor="white")


def _style(axes: Any) -> None:
    axes.grid(True, which="major", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=9)


def plot_roofline(
    path: Path, title: str, points: Sequence[RooflinePoint], chip: Hardware, cores: int = 1
) -> Path:
    """Kernels under the peaks of TensorE and the DMA rate, of as many cores; `path` says the type.

    Kernels without matrix products have no place on it; the longest are listed beside it.
    """
    shown = [p for p in points if p.intensity and p.flops_per_second]
    hidden = sorted((p for p in points if p not in shown), key=lambda p: -p.seconds)
    peaks = _peaks(chip, cores)
    rate = chip.dma_bytes_per_second * cores
    low, high = _span(shown, peaks, rate)
    figure = _figure(5.6)
    axes = figure.add_subplot()
    x = np.geomspace(low, high, 200)
    for label, peak in peaks:
        ridge = peak / rate
        flat = x[x >= ridge]
        axes.plot([ridge, *flat], [peak] * (len(flat) + 1), color=_INK, linewidth=1.6)
        axes.annotate(
            f"{label} {scaled_text(peak, 'FLOP/s')}", (high, peak), xytext=(-4, 4),
            textcoords="offset points", ha="right", va="bottom", fontsize=9, color=_INK,
        )  # fmt: skip
    ridge = peaks[0][1] / rate
    slope = x[x <= ridge]
    axes.plot([*slope, ridge], [*(slope * rate), peaks[0][1]], color=_INK, linewidth=1.6)
    axes.annotate(
        f"DMA {scaled_text(rate, 'B/s')}", (slope[len(slope) // 3], slope[len(slope) // 3] * rate),
        xytext=(-6, 8), textcoords="offset points", ha="right", fontsize=9, color=_INK,
    )  # fmt: skip
    _draw_points(axes, shown)
    if hidden:
        lines = [f"{p.name}: {scaled_text(p.bytes_per_second, 'B/s')}" for p in hidden[:_LISTED]]
        more = [f"and {len(hidden) - _LISTED} more"] if len(hidden) > _LISTED else []
        axes.text(
            0.015, 0.98, "\n".join(["without matrix products", *lines, *more]), va="top",
            transform=axes.transAxes, fontsize=9, color=_INK, linespacing=1.5,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_xlabel("FLOP of matrix products per HBM byte")
    axes.set_ylabel("FLOP/s")
    where = chip.target if cores == 1 else f"{cores} cores of {chip.target}"
    axes.set_title(f"{title} on {where}: roofline", loc="left", fontsize=11)
    _style(axes)
    figure.savefig(path, dpi=150)
    return path


def _peaks(chip: Hardware, cores: int) -> list[tuple[str, float]]:
    """The flat parts of the roof, highest first."""
    found = [("bfloat16", chip.peak_bf16_flops * cores), ("float32", chip.peak_fp32_flops * cores)]
    if chip.peak_fp8_flops:
        found.insert(0, ("float8", chip.peak_fp8_flops * cores))
    return found


def _span(
    points: Sequence[RooflinePoint], peaks: Sequence[tuple[str, float]], rate: float
) -> tuple[float, float]:
    """Bounds of the axis: all points and all ridges, with room around them."""
    values = [p.intensity for p in points] + [peak / rate for _, peak in peaks]
    return min(values) / 6, max(values) * 6


def _draw_points(axes: Any, points: Sequence[RooflinePoint]) -> None:
    """Larger where more time is spent; the legend lists the longest first."""
    longest = max((p.seconds for p in points), default=1.0)
    for index, point in enumerate(sorted(points, key=lambda p: -p.seconds)):
        label = point.name if index < len(_COLOURS) else None
        axes.scatter(
            [point.intensity], [point.flops_per_second],
            s=30 + 170 * point.seconds / longest,
            color=_COLOURS[index] if label else "#999999", edgecolors="white", linewidths=0.8,
            zorder=3, label=label and f"{label}: {scaled_text(point.flops_per_second, 'FLOP/s')}",
        )  # fmt: skip
    if points:
        legend = axes.legend(loc="lower right", fontsize=9, edgecolor=_GRID, fancybox=False)
        for handle in legend.legend_handles:
            handle.set_sizes([40])


def plot_memory(path: Path, title: str, parts: Sequence[Part], total_ps: int) -> Path:
    """Live bytes per partition of SBUF and PSUM against their capacity, and the queues' work, of
    timelines that begin at their offsets.
    """
    chip = parts[0][0].chip
    cores = sorted({core for timeline, _ in parts for core in timeline.schedule.cores})
    unit, label = _time_unit(total_ps)
    figure = _figure(6.4)
    sbuf, psum, strip = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    limits = (chip.sbuf_partition_bytes, chip.psum_partition_bytes)
    regions = (MemoryRegion.sbuf, MemoryRegion.psum)
    for axes, region, limit in zip((sbuf, psum), regions, limits, strict=True):
        for core in cores:
            _draw_memory(axes, parts, core, region, unit)
        _draw_capacity(axes, region, limit)
        _style(axes)
    if len(cores) > 1:
        sbuf.legend(fontsize=9, frameon=False, loc="upper right")
    _draw_strip(strip, parts, total_ps, unit, len(cores) > 1)
    strip.set_xlabel(f"predicted time ({label})")
    strip.set_xlim(0, total_ps / unit or 1)
    sbuf.set_title(f"{title} on {chip.target}: memory over time", loc="left", fontsize=11)
    figure.savefig(path, dpi=150)
    return path


def _time_unit(total_ps: int) -> tuple[float, str]:
    for unit, label in ((1e12, "s"), (1e9, "ms"), (1e6, "us")):
        if total_ps >= unit:
            return unit, label
    return 1e3, "ns"


def _draw_memory(
    axes: Any, parts: Sequence[Part], core: int, region: MemoryRegion, unit: float
) -> None:
    x: list[float] = []
    y: list[float] = []
    for timeline, offset in parts:
        times, values = timeline.memory_of(core, region)
        x += [*((offset + t) / unit for t in times), (offset + timeline.schedule.total_ps) / unit]
        y += [*(v / 1024 for v in values), 0.0]
    colour = _COLOURS[core % len(_COLOURS)]
    axes.fill_between(x, y, step="post", color=colour, alpha=0.25, linewidth=0)
    axes.step(x, y, where="post", color=colour, linewidth=1.3, label=f"core {core}")
    peak = max(y)
    is_late = x[y.index(peak)] > x[-1] * 0.85
    axes.annotate(
        f"peak {bytes_text(peak * 1024)}", (x[y.index(peak)], peak),
        xytext=(-4 if is_late else 4, 4), textcoords="offset points", fontsize=9, color=colour,
        ha="right" if is_late else "left",
    )  # fmt: skip


def _draw_capacity(axes: Any, region: MemoryRegion, limit: int) -> None:
    """The capacity as a line where it is near; else in words, so that small use stays visible."""
    top = axes.get_ylim()[1]
    capacity = limit / 1024
    if top * 2.5 >= capacity:
        axes.axhline(capacity, color="#a83248", linewidth=1.2, linestyle="--")
        axes.set_ylim(0, capacity * 1.12)
    else:
        axes.set_ylim(0, top * 1.2)
    axes.set_ylabel(f"{region.value.upper()}\nKiB / partition\n(of {capacity:.0f})", fontsize=9)


def _draw_strip(
    axes: Any, parts: Sequence[Part], total_ps: int, unit: float, has_cores: bool
) -> None:
    """Each queue's busy share in stretches of time, dark where it is busy throughout."""
    queues = sorted({q for timeline, _ in parts for q in set(timeline.schedule.queue)})
    shares = np.zeros((max(len(queues), 1), _BINS))
    for row, queue in enumerate(queues):
        for timeline, offset in parts:
            shares[row] += _shares(timeline, offset, queue, total_ps)
    axes.imshow(
        shares, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest",
        extent=(0, total_ps / unit or 1, len(shares) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(queues)), [queue_name(q, has_cores) for q in queues], fontsize=9)
    axes.set_ylabel("busy", fontsize=9)
    axes.tick_params(colors=_INK, labelsize=9, left=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _shares(timeline: Timeline, offset: int, queue: int, total_ps: int) -> Any:
    """Busy share of a queue in each of equal stretches of the total."""
    schedule = timeline.schedule
    at = schedule.positions(queue)
    if not len(at):
        return np.zeros(_BINS)
    start = np.frombuffer(schedule.start, np.int64)[at].astype(np.float64) + offset
    free = np.frombuffer(schedule.free, np.int64)[at].astype(np.float64) + offset
    edges = np.linspace(0, total_ps, _BINS + 1)
    # Busy time until t, summed over instructions: linear within one, flat between two.
    times = np.stack([start, free], axis=1).ravel()
    done = np.repeat(np.cumsum(free - start), 2)
    done[0::2] -= free - start
    return np.diff(np.interp(edges, times, done, left=0.0)) / (total_ps / _BINS)
