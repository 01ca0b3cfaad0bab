"""`trnx.explain`: where every op of a model would run, why, and at what cost, without a kernel run.

The model runs once in eager on copies of the arguments, so that Dynamo captures what a real call
would; its buffers and the random state are put back. Where gradients are enabled the backward
graphs are explained too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from trnx.backend.entry import compile_captured, trnx
from trnx.backend.errors import CoverageError, ExampleError
from trnx.backend.html.page import write
from trnx.backend.html.reports import explanation_page
from trnx.backend.model_profile import ENGINES, range_of
from trnx.backend.model_state import copied, state_kept
from trnx.backend.neuron.choice import explained_runner
from trnx.backend.options import Options, make_options, option_names
from trnx.backend.report import (
    GraphReport,
    RegionReport,
    Reports,
    collect_reports,
    counted,
    ledger_lines,
    percent,
)
from trnx.backend.torch_internals import (
    Compiled,
    GraphBreak,
    compiled_with,
    eager_backward_compile,
    graph_breaks,
)
from trnx.backend.versions import check_versions
from trnx.fx_passes.source import innermost_line
from trnx.simulator.timing.summary import band_dict, band_text, range_text, time_text

_SHARES = {"flops": "FLOPs", "bytes": "bytes", "ops": "ops", "seconds": "predicted seconds"}
_NOTHING = {
    "flops": "matrix products",
    "bytes": "compute nodes",
    "ops": "compute nodes",
    "seconds": "regions",
}


# What ends a graph (as Dynamo's reason begins) and need not.
_FIXES = {"Attempted to wrap RNN": "set torch._dynamo.config.allow_rnn = True"}


@dataclass(frozen=True)
class Explanation:
    """The reports of all graphs, and where Dynamo ended one: (reason, user's line) -> how often.

    `runner` is what would run the plan on this machine, and why.
    """

    target: str
    reports: Reports
    graph_breaks: Mapping[tuple[str, str], int]
    runner: str = ""

    @property
    def flops_on_nki(self) -> float | None:
        """Share of the matrix products' FLOPs on NKI, 0 to 1; None where there are none."""
        return self.reports.flops_on_nki

    @property
    def predicted_range_seconds(self) -> tuple[float, float] | None:
        """Between what and what the time on the chip would lie: the error band of the timing model
        on scheduled kernels, the rest as predicted; None where the target has no band."""
        total = self.reports.predicted_seconds
        return range_of(self.target, total, self.reports.scheduled_seconds)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: totals, graphs with regions, fallbacks and near misses, graph breaks."""
        return {
            "target": self.target,
            "runner": self.runner,
            "flops_on_nki": self.reports.flops_on_nki,
            "bytes_on_nki": self.reports.bytes_on_nki,
            "nodes_on_nki": self.reports.nodes_on_nki,
            "seconds_on_nki": self.reports.seconds_on_nki,
            "predicted_seconds": self.reports.predicted_seconds,
            "predicted_range_seconds": self.predicted_range_seconds,
            "band": band_dict(self.target),
            "compile_seconds": self.reports.compile_seconds,
            "graph_breaks": [
                {"reason": reason, "source": source, "count": count}
                for (reason, source), count in self.graph_breaks.items()
            ],
            "graphs": [report.to_dict() for report in self.reports],
        }

    def write_html(self, path: str | Path) -> Path:
        """One page to look at, which needs nothing but a browser. Shows what `to_dict` gives."""
        return write(Path(path), explanation_page(self.to_dict()))

    def fail_under(
        self,
        flops: float | None = None,
        *,
        bytes: float | None = None,
        ops: float | None = None,
        seconds: float | None = None,
    ) -> None:
        """A gate for CI. Raises CoverageError where less than that percentage of the matrix
        products' FLOPs, of the compute nodes' bytes, of the compute nodes or of the predicted
        seconds is on NKI, and where there is nothing of which to take a percentage."""
        asked = {"flops": flops, "bytes": bytes, "ops": ops, "seconds": seconds}
        missed = [
            _missed(name, wanted, self.reports.on_nki[name])
            for name, wanted in asked.items()
            if wanted is not None and not _reaches(self.reports.on_nki[name], wanted)
        ]
        if missed:
            lines = [f"  {line}" for line in ledger_lines(self.reports.fallbacks)]
            raise CoverageError("\n".join([*missed, *(["Not on NKI:"] if lines else []), *lines]))

    def __str__(self) -> str:
        shares = self.reports.on_nki
        lines = [
            f"{len(self.reports)} graph(s) for {self.target}; on NKI: "
            + ", ".join(f"{percent(shares[key])} of {name}" for key, name in _SHARES.items()),
            _time_line(self.reports, self.predicted_range_seconds),
            band_text(self.target),
            f"runner: {self.runner}",
        ]
        for report in self.reports:
            lines += ["", *_graph_lines(report)]
        if self.graph_breaks:
            lines += ["", "graph breaks:"]
            lines += _break_lines(self.graph_breaks)
        return "\n".join(lines)


def _reaches(found: float | None, wanted: float) -> bool:
    return found is not None and 100 * found >= wanted


def _missed(name: str, wanted: float, found: float | None) -> str:
    if found is None:
        others = ", ".join(f"{other}=" for other in _SHARES if other != name)
        return (
            f"fail_under({name}={wanted:g}) has nothing to measure: there are no "
            f"{_NOTHING[name]}; ask for {others} instead"
        )
    return (
        f"{100 * found:.1f} % of the {_SHARES[name]} run on NKI, less than the required "
        f"{wanted:g} %."
    )


def _time_line(reports: Reports, bounds: tuple[float, float] | None) -> str:
    """Predicted time, what it is made of, and what it rests on."""
    total = reports.predicted_seconds
    parts = [("launches", sum(report.launch_seconds for report in reports))]
    parts += [(engine, reports.predicted_seconds_on(engine)) for engine in ENGINES]
    made_of = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in parts if seconds)
    estimated = sum(seconds for _, seconds in parts[1:]) - reports.scheduled_seconds
    note = f"; {time_text(estimated)} of it estimated" if estimated > 1e-12 else ""
    return f"predicted time: {time_text(total)}{range_text(bounds)} ({made_of}{note})"


def _graph_lines(report: GraphReport) -> list[str]:
    rows = [("region", "engine", "MFLOPs", "us", "share", "by", "layer: kernel or ops, sizes")]
    total = report.predicted_seconds or 1.0
    for region in report.regions:
        seconds = region.predicted_seconds
        rows.append(
            (
                region.name,
                region.engine,
                f"{region.flops / 1e6:.2f}",
                f"{seconds * 1e6:.1f}",
                f"{seconds / total:.1%}",
                region.predicted_by,
                region.label,
            )
        )
    lines = [f"{report.name}: {time_text(report.predicted_seconds)}", *_table(rows)]
    if sized := [region for region in report.regions if region.padding]:
        lines.append("dynamic sizes:")
        lines += [f"  {line}" for line in counted(_padding_line(region) for region in sized)]
    if report.lnc > 1:
        lines += _core_lines(report)
    if report.fallbacks:
        lines.append("not on NKI:")
        lines += [f"  {line}" for line in ledger_lines(report.fallbacks)]
    if report.collectives:
        lines.append("between ranks:")
        lines += [f"  {line}" for line in counted(map(str, report.collectives))]
    if report.near_misses:
        lines.append("on NKI, but not in a bigger kernel:")
        lines += [f"  {line}" for line in ledger_lines(report.near_misses)]
    return lines


def _core_lines(report: GraphReport) -> list[str]:
    """Which kernels' work both cores share, and why one core has that of the others."""
    kernels = [region for region in report.regions if region.engine == "nki"]
    alone = [f"one core of two: {r.work}: {r.alone}" for r in kernels if r.alone]
    shared = len(kernels) - len(alone)
    lines = [f"logical cores of {report.lnc}: {shared} of {len(kernels)} kernels on both"]
    return lines + [f"  {line}" for line in counted(alone)]


def _padding_line(region: RegionReport) -> str:
    """Padded regions together by their sizes, each exact one by its name."""
    if region.padding.startswith("exact"):
        return f"{region.name} ({region.source or 'unknown line'}) {region.padding}"
    return f"buckets: {region.padding}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return [
        "  " + "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def _break_lines(breaks: Mapping[tuple[str, str], int]) -> list[str]:
    """Most frequent first."""
    rows = sorted(breaks.items(), key=lambda item: -item[1])
    return [
        f"  {count} x {reason}" + (f" at {source}" if source else "") + _fix_of(reason)
        for (reason, source), count in rows
    ]


def _fix_of(reason: str) -> str:
    fix = next((fix for start, fix in _FIXES.items() if reason.startswith(start)), "")
    return f" -> {fix}" if fix else ""


def _by_line(breaks: Mapping[GraphBreak, int]) -> dict[tuple[str, str], int]:
    """Graph breaks by reason and user's line."""
    found: Counter[tuple[str, str]] = Counter()
    for cause, count in breaks.items():
        found[cause.reason, innermost_line(cause.stack)] += count
    return dict(found)


def _nothing_captured(breaks: Mapping[tuple[str, str], int]) -> str:
    """Without a graph every share would read as 100 %, and a gate on it would pass."""
    why = "".join(f"\n  graph break:{line}" for line in _break_lines(breaks))
    return (
        "Dynamo captured no graph, so there is nothing to explain: the function runs no tensor "
        f"operation, or Dynamo skipped it.{why}"
    )


def explain(
    function: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Explanation:
    """Explain `function(*args, **kwargs)`; `options` are those of the backend. What `torch.compile`
    returned stands for what it was given: its function, its `dynamic`, and where trnx was the
    backend its options, over which `options` are laid.

    With `fallback="error"` the ledger is reported as under `auto`, instead of raised. Raises
    ExampleError where `function` cannot be called, or where Dynamo captures no graph of it.
    """
    check_versions()
    if not callable(function):
        raise ExampleError(
            f"explain takes a model or a function, and its arguments; {type(function).__name__} "
            "cannot be called"
        )
    compiled_by = compiled_with(function)
    function = function if compiled_by is None else compiled_by.function
    chosen = options_of(compiled_by, options)
    if chosen.fallback == "error":
        chosen = replace(chosen, fallback="auto")

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_captured(gm, inputs, chosen, None)

    # Isolated: explaining often must not count towards the function's recompile limit.
    compiled = torch.compile(  # type: ignore[call-overload]  # torch's stubs lack the argument
        function,
        backend=backend,
        dynamic=None if compiled_by is None else compiled_by.dynamic,
        isolate_recompiles=True,
    )
    with (
        collect_reports() as reports,
        graph_breaks() as breaks,
        eager_backward_compile(),
        state_kept(function),
    ):
        compiled(*copied(args), **copied(kwargs))
    if not reports:
        raise ExampleError(_nothing_captured(_by_line(breaks)))
    runner = explained_runner(chosen.runner, chosen.target)
    return Explanation(chosen.target, reports, _by_line(breaks), runner)


def options_of(compiled: Compiled | None, options: Mapping[str, Any] | Options | None) -> Options:
    """`options` over those that trnx was given when the function was compiled."""
    given = compiled.options if compiled is not None and compiled.backend is trnx else None
    if given is None or isinstance(options, Options):
        return make_options(options)
    if isinstance(given, Options):
        given = {name: getattr(given, name) for name in option_names()}
    return make_options({**given, **(options or {})})
