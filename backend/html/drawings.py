"""SVG drawings of regions: which reads which, when each runs, the roofline, memory over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from trnx.backend.html.page import COLOURS
from trnx.simulator.timing.summary import bytes_text, scaled_text, time_text

WIDTH = 1140
_ROW = 22
_CHARACTER = 7.0  # width of one in 12 px, on the wide side


@dataclass(frozen=True)
class Stretch:
    """A launch or a region on the time axis, in seconds."""

    engine: str
    label: str
    start: float
    seconds: float
    region: Mapping[str, Any] | None = None


def _svg(height: float, parts: Iterator[str] | Sequence[str], name: str) -> str:
    return (
        f'<svg role="img" aria-label="{name}" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}">{"".join(parts)}</svg>\n'
    )


def shortened(text: str, width: float) -> str:
    """As much of a text as fits into so many pixels."""
    room = int(width / _CHARACTER)
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def region_graph(regions: Sequence[Mapping[str, Any]]) -> str:
    """One row a region in the order of a run, in its engine's colour; a curve leads from each
    region to those that read its results."""
    rows = {region["name"]: index for index, region in enumerate(regions)}
    left = 150.0

    def parts() -> Iterator[str]:
        for region in regions:
            end = rows[region["name"]]
            for name in region["reads"]:
                start = rows[name]
                reach = min(8.0 + 6.0 * (end - start), left - 8)
                y0, y1 = (_ROW * (row + 0.5) for row in (start, end))
                yield (
                    f'<path d="M{left} {y0} C{left - reach} {y0} {left - reach} {y1} {left} {y1}" '
                    f'fill="none" stroke="#9aa3ab"/>'
                )
        for region in regions:
            y = _ROW * rows[region["name"]]
            title = f"{region['name']}: {region['label']}"
            yield (
                f'<g data-region="{escape(region["name"])}"><title>{escape(title)}</title>'
                f'<rect x="{left}" y="{y + 3}" width="14" height="{_ROW - 6}" rx="3" '
                f'fill="{COLOURS[region["engine"]]}"/>'
                f"{_text(left + 22, y + 15, shortened(region['label'], WIDTH - left - 30))}</g>"
            )

    return _svg(_ROW * max(len(regions), 1), parts(), "graph of regions")


def timeline(stretches: Sequence[Stretch]) -> str:
    """Launches and regions one after another, as wide as they take; names are tooltips."""
    total = sum(one.seconds for one in stretches) or 1.0

    def parts() -> Iterator[str]:
        for one in stretches:
            x, width = (WIDTH * part / total for part in (one.start, one.seconds))
            title = f"{one.label}: {time_text(one.seconds)}"
            yield (
                f'<rect x="{x:.2f}" y="4" width="{max(width, 0.4):.2f}" height="30" '
                f'fill="{COLOURS[one.engine]}" stroke="#fff" stroke-width="0.4" '
                f'data-seconds="{one.seconds!r}"><title>{escape(title)}</title></rect>'
            )
        yield from _time_axis(total, 34.0)

    return _svg(56, parts(), "timeline")


def _time_axis(total: float, y: float) -> Iterator[str]:
    for step in range(5):
        anchor = {0: "start", 4: "end"}.get(step, "middle")
        yield f'<path d="M{WIDTH * step / 4:.1f} {y}v4" stroke="#222"/>'
        yield _text(WIDTH * step / 4, y + 17, time_text(total * step / 4), anchor)


def memory(stretches: Sequence[Stretch], key: str, capacity: int, name: str) -> str:
    """The peak of each region while it runs, of the capacity of a partition."""
    total = sum(one.seconds for one in stretches) or 1.0
    height = 110.0
    known = [one for one in stretches if one.region is not None and one.region[key] is not None]
    peak = max((one.region[key] for one in known if one.region is not None), default=0)
    top = capacity if peak * 2.5 >= capacity else max(peak * 1.25, 1)

    def parts() -> Iterator[str]:
        for one in known:
            assert one.region is not None
            size = one.region[key]
            x, width = (WIDTH * part / total for part in (one.start, one.seconds))
            tall = height * size / top
            title = f"{one.label}: {bytes_text(size)}"
            yield (
                f'<rect x="{x:.2f}" y="{20 + height - tall:.2f}" width="{max(width, 0.4):.2f}" '
                f'height="{tall:.2f}" fill="{COLOURS[one.engine]}" data-bytes="{size}">'
                f"<title>{escape(title)}</title></rect>"
            )
        yield f'<path d="M0 {20 + height}H{WIDTH}" stroke="#222"/>'
        words = f"{name}: peak {bytes_text(peak)} of {bytes_text(capacity)} per partition"
        yield _text(0, 14, words)
        yield from _time_axis(total, 20 + height)

    return _svg(height + 44, parts(), f"memory of {name}")


@dataclass(frozen=True)
class Point:
    """A kernel on the roofline: FLOPs per HBM byte and per second, `number` in the list."""

    number: int
    label: str
    intensity: float
    flops_per_second: float


def roofline(points: Sequence[Point], chip: Mapping[str, Any]) -> str:
    """Kernels with matrix products under the peaks and the DMA rate of a core; they are numbered
    as in the table."""
    rate = chip["dma_bytes_per_second"]
    peaks = {"bfloat16": chip["peak_bf16_flops"], "float32": chip["peak_fp32_flops"]}
    ridges = [peak / rate for peak in peaks.values()]
    low = min([p.intensity for p in points] + ridges) / 6
    high = max([p.intensity for p in points] + ridges) * 6
    top = max(peaks.values()) * 3
    bottom = min([p.flops_per_second for p in points] + [low * rate]) / 3
    height = 340.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low) / math.log(high / low)
        up = math.log(y / bottom) / math.log(top / bottom)
        return 10 + (WIDTH - 20) * across, height - (height - 10) * up

    def parts() -> Iterator[str]:
        for name, peak in peaks.items():
            (x0, y0), (x1, _) = place(peak / rate, peak), place(high, peak)
            yield f'<path d="M{x0:.1f} {y0:.1f}H{x1:.1f}" stroke="#222" fill="none"/>'
            yield _text(x1, y0 - 5, f"{name} {scaled_text(peak, 'FLOP/s')}", "end")
        (x0, y0), (x1, y1) = place(low, low * rate), place(max(ridges), max(peaks.values()))
        yield f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="#222"/>'
        yield _text(x0 + 4, y0 - 34, f"DMA {scaled_text(rate, 'B/s')}")
        yield f'<path d="M10 {height}H{WIDTH - 10}" stroke="#222"/>'
        yield from _decades(low, high, height, place)
        yield from _numbered(points, place)

    return _svg(height + 42, parts(), "roofline")


def _decades(low: float, high: float, height: float, place: Any) -> Iterator[str]:
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        x, _ = place(10.0**power, 1.0)
        yield f'<path d="M{x:.1f} {height}v4" stroke="#222"/>'
        yield _text(x, height + 17, f"{10.0**power:g}", "middle")
    yield _text(WIDTH / 2, height + 36, "FLOP of matrix products per HBM byte", "middle")


def _numbered(points: Sequence[Point], place: Any) -> Iterator[str]:
    """Dots, and numbers that move aside where another one stands."""
    taken: list[tuple[float, float]] = []
    for point in points:
        x, y = place(point.intensity, point.flops_per_second)
        at = x + 8, y + 4
        while any(abs(at[0] - a) < 20 and abs(at[1] - b) < 13 for a, b in taken):
            at = at[0] + 20, at[1]
        taken.append(at)
        title = f"{point.label}: {scaled_text(point.flops_per_second, 'FLOP/s')}"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS["nki"]}" fill-opacity="0.75">'
            f"<title>{escape(title)}</title></circle>{_text(*at, str(point.number))}"
        )
