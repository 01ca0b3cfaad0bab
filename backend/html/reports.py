"""The pages of an explanation and of profiles, made of what their `to_dict` gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from trnx.backend.html.drawings import (
    Point,
    Stretch,
    memory,
    region_graph,
    roofline,
    timeline,
)
from trnx.backend.html.page import Number, document, heading, legend, table
from trnx.backend.report import percent
from trnx.simulator.timing.summary import bytes_text, scaled_text, time_text

_ENGINES = ("nki", "xla", "eager", "collective")


def explanation_page(data: dict[str, Any]) -> str:
    """The page of `Explanation.to_dict()`."""
    shares = ", ".join(
        f"{percent(data[f'{key}_on_nki'])} of {name}"
        for key, name in (("flops", "FLOPs"), ("bytes", "bytes"), ("nodes", "ops"),
                          ("seconds", "predicted seconds"))
    )  # fmt: skip
    title = f"trnx explain for {data['target']}"
    head = f"on NKI: {shares}; runner: {data['runner']}"
    graphs = [
        {
            **graph,
            "seconds": graph["predicted_seconds"],
            "regions": list(map(_timed, graph["regions"])),
        }
        for graph in data["graphs"]
    ]
    sections = [_head(title, head), *_body(graphs, data["target"])]
    entries = [
        (
            entry["engine"],
            (entry["op"], entry["engine"], entry["reason"], entry["advice"], entry["source"]),
        )
        for graph in data["graphs"]
        for entry in graph["fallbacks"]
    ]
    sections.append(heading("Not on NKI", "" if entries else "nothing"))
    if entries:
        columns = ("op", "engine", "reason", "what to do", "source")
        sections.append(table("ledger", columns, entries, filters=True))
    breaks = [("", (b["reason"], b["source"], Number(b["count"], str(b["count"]))))
              for b in data["graph_breaks"]]  # fmt: skip
    if breaks:
        sections += [
            heading("Graph breaks"),
            table("breaks", ("reason", "source", "count"), breaks),
        ]
    return document(title, data, sections)


def _timed(region: Mapping[str, Any]) -> dict[str, Any]:
    """A region of a report under the names that a profile has."""
    return {
        **region,
        "seconds": region["predicted_seconds"],
        "by": region["predicted_by"],
        "share": region["predicted_share"],
    }


def profile_page(data: dict[str, Any]) -> str:
    """The page of `{"targets": [ModelProfile.to_dict(), ...]}`."""
    names = ", ".join(dict.fromkeys(one["name"] for one in data["targets"]))
    sections = [_head(f"trnx profile of {names}", "")]
    for index, one in enumerate(data["targets"]):
        sections += _profile(one, f"-{index}" if index else "")
    return document(f"trnx profile of {names}", data, sections)


def _profile(data: Mapping[str, Any], suffix: str) -> Iterator[str]:
    regions: dict[str, list[dict[str, Any]]] = {graph["name"]: [] for graph in data["graphs"]}
    for region in data["regions"]:
        regions[region["graph"]].append(region)
    graphs = [{**graph, "regions": regions[graph["name"]]} for graph in data["graphs"]]
    yield from _body(graphs, data["target"], suffix)
    stretches = list(_stretches(graphs))
    chip = data["chip"]
    scheduled = [region for region in data["regions"] if region["hbm_bytes"] is not None]
    if not scheduled:
        return
    yield heading(
        f"Roofline of one core of {data['target']}", "Numbers are those of the list below."
    )
    listed = _different(scheduled)
    points = [
        Point(number, region["label"], region["matmul_flops"] / region["hbm_bytes"],
              region["matmul_flops"] / region["seconds"])
        for number, region in listed.items()
        if region["matmul_flops"] and region["hbm_bytes"] and region["seconds"]
    ]  # fmt: skip
    yield roofline(points, chip)
    rows = [("nki", _roofline_row(number, region)) for number, region in listed.items()]
    names = ("kernel", "number", "FLOPs of products", "FLOP/s", "HBM bytes", "B/s")
    yield table(f"roofline{suffix}", names, rows)
    yield heading("Memory on chip", "The peak of each kernel while it runs.")
    for key, name in (("sbuf", "SBUF"), ("psum", "PSUM")):
        yield memory(stretches, f"peak_{key}_bytes", chip[f"{key}_partition_bytes"], name)
    yield heading("Queues")
    columns = ("queue", "busy", "stalled")
    yield table(f"queues{suffix}", columns, [
        ("", (name, _time(one["busy_seconds"]), _time(one["stalled_seconds"])))
        for name, one in data["queues"].items()
    ])  # fmt: skip
    yield heading("Critical path of the kernels")
    yield table(f"path{suffix}", ("line", "time"), [
        ("", (one["location"], _time(one["seconds"]))) for one in data["critical_path"]
    ])  # fmt: skip


def _different(regions: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Regions of equal work once, numbered from 1, the longest first."""
    found: dict[Any, Mapping[str, Any]] = {}
    for region in sorted(regions, key=lambda one: -one["seconds"]):
        found.setdefault((region["work"], region["seconds"]), region)
    return dict(enumerate(found.values(), 1))


def _roofline_row(number: int, region: Mapping[str, Any]) -> tuple[str | Number, ...]:
    flops, size, seconds = region["matmul_flops"], region["hbm_bytes"], region["seconds"] or 1.0
    return (
        region["label"],
        Number(number, str(number)),
        Number(flops, scaled_text(flops, "FLOP")),
        Number(flops / seconds, scaled_text(flops / seconds, "FLOP/s")),
        Number(size, bytes_text(size)),
        Number(size / seconds, scaled_text(size / seconds, "B/s")),
    )


def _head(title: str, note: str) -> str:
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h1>{escape(title)}</h1>{below}\n"


def _time(seconds: float) -> Number:
    return Number(seconds, time_text(seconds))


def _stretches(graphs: Sequence[Mapping[str, Any]]) -> Iterator[Stretch]:
    """Each graph's launch and regions, in the order of a run."""
    at = 0.0
    for graph in graphs:
        yield Stretch("launch", f"launch of {graph['name']}", at, graph["launch_seconds"])
        at += graph["launch_seconds"]
        for region in graph["regions"]:
            yield Stretch(region["engine"], region["label"], at, region["seconds"], region)
            at += region["seconds"]


def _body(graphs: Sequence[Mapping[str, Any]], target: str, suffix: str = "") -> Iterator[str]:
    """Timeline, graphs of regions and the table that explanations and profiles share."""
    stretches = list(_stretches(graphs))
    total = sum(one.seconds for one in stretches)
    yield heading(
        f"Predicted time on {target}: {time_text(total)}",
        "One run of each graph; the launches are the host's, apart from the kernels.",
    )
    yield legend([
        (engine, f"{_NAMES[engine]} {time_text(seconds)}")
        for engine in ("launch", *_ENGINES)
        if (seconds := sum(one.seconds for one in stretches if one.engine == engine))
    ])  # fmt: skip
    yield timeline(stretches)
    yield table(f"graphs{suffix}", ("graph", "regions", "launch", "time with launch"), [
        ("", (graph["name"], Number(len(graph["regions"]), str(len(graph["regions"]))),
              _time(graph["launch_seconds"]), _time(graph["seconds"])))
        for graph in graphs
    ])  # fmt: skip
    for graph in graphs:
        yield heading(f"Regions of {graph['name']}")
        yield region_graph(graph["regions"])
    yield heading("All regions")
    columns = ("region", "graph", "time", "share", "by", "layer, kernel or ops, sizes", "source")
    rows = [
        (region["engine"], (
            region["name"], graph["name"], _time(region["seconds"]),
            Number(region["share"], percent(region["share"])), region["by"], region["label"],
            region["source"]))
        for graph in graphs
        for region in graph["regions"]
    ]  # fmt: skip
    yield table(f"regions{suffix}", columns, rows, filters=True)


_NAMES = {
    "launch": "launches",
    "nki": "NKI kernels",
    "xla": "XLA",
    "eager": "eager",
    "collective": "collectives",
}
