"""A `ModelProfile` as text: what the time goes to, by kernel, by queue and by source line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnx.backend.model_profile import ENGINES
from trnx.simulator.timing.summary import band_text, range_text, rendered, time_text

if TYPE_CHECKING:
    from trnx.backend.model_profile import ModelProfile

_ROWS = 12  # of each table


def model_text(model: ModelProfile) -> str:
    """Summary and tables; times are those of one run of each graph."""
    parts = [_summary(model)]
    if len(model.graphs) > 1:
        parts.append(_graph_table(model))
    parts.append(_kernel_table(model))
    if model.profiles:
        parts += [_queue_table(model), _path_table(model)]
    return rendered(parts)


def _summary(model: ModelProfile) -> str:
    total = model.total_seconds
    parts = [f"launches {time_text(sum(model.launch_seconds))}"]
    parts += [
        f"{engine} {time_text(seconds)} ({seconds / total:.1%})"
        for engine in ENGINES
        if (seconds := model.seconds_on(engine))
    ]
    estimated = model.seconds_by("estimate")
    note = f"; estimated, not scheduled: {time_text(estimated)}" if estimated else ""
    return (
        f"{model.name} on {model.target}: {time_text(total)} predicted"
        f"{range_text(model.range_seconds)}, {len(model.graphs)} graph(s), "
        f"{len(model.regions)} regions\n{', '.join(parts)}; MFU {model.mfu:.1%}, "
        f"MBU {model.mbu:.1%}{note}\n{band_text(model.target)}"
    )


def _table(*columns: str, numbers: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table(*columns)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _graph_table(model: ModelProfile) -> Any:
    table = _table("graph", numbers=("time", "share", "runs"))
    total = model.total_seconds or 1.0
    for name, runs in zip(model.graphs, model.runs, strict=True):
        seconds = model.seconds_of(name)
        table.add_row(name, time_text(seconds), f"{seconds / total:.1%}", str(runs))
    return table


def _kernel_table(model: ModelProfile) -> Any:
    table = _table("kernel or ops", "engine", "by", numbers=("times", "each", "all", "share"))
    groups = sorted(model.groups().items(), key=lambda item: -item[0][3] * item[1])
    total = model.total_seconds or 1.0
    for (work, engine, by, seconds), count in groups[:_ROWS]:
        spent = seconds * count
        table.add_row(
            work, engine, by, str(count), time_text(seconds), time_text(spent),
            f"{spent / total:.1%}",
        )  # fmt: skip
    rest = groups[_ROWS:]
    if rest:
        spent = sum(key[3] * count for key, count in rest)
        times = str(sum(count for _, count in rest))
        table.add_row(
            f"{len(rest)} more", "", "", times, "", time_text(spent), f"{spent / total:.1%}"
        )
    return table


def _queue_table(model: ModelProfile) -> Any:
    table = _table("queue", numbers=("busy", "share", "stalled", "share"))
    total = model.total_seconds or 1.0
    for name, (busy, stalled) in model.queues.items():
        table.add_row(
            name, time_text(busy), f"{busy / total:.1%}", time_text(stalled),
            f"{stalled / total:.1%}",
        )  # fmt: skip
    return table


def _path_table(model: ModelProfile) -> Any:
    table = _table("critical path of the kernels", numbers=("time", "share"))
    total = model.total_seconds or 1.0
    for place, seconds in model.critical_path[:_ROWS]:
        table.add_row(str(place), time_text(seconds), f"{seconds / total:.1%}")
    return table
