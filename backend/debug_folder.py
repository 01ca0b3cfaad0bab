"""What a compiled graph leaves to read where torch collects artefacts of compilation
(`TORCH_COMPILE_DEBUG=1`): a folder for each graph beside torch's own and Inductor's.

    torch_compile_debug/run_DATE-pid_PID/trnx/graph_0.forward/
        captured.py    the graph that AOTAutograd gave
        canonical.py   the graph after trnx's passes, in which the regions are cut
        plan.txt       the ledger, and regions in order: engine, kernel and its file, ops
        report.json    what `trnx explain --json` says of the graph
        kernels/       the NKI source of each kernel, once
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import fx

from trnx.backend.report import GraphReport, RegionReport
from trnx.backend.torch_internals import debug_directory
from trnx.fx_passes.region import Plan, Region

log = logging.getLogger(__name__)


class DebugFolder:
    """The folder of one graph; nothing is written where torch collects nothing.

    Made before the passes change `gm`. Where the folder cannot be written a warning says so: that
    is no reason to fail a compilation.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self._root = debug_directory()
        self._captured = _readable(gm) if self._root is not None else ""

    def write(self, plan: Plan, report: GraphReport) -> None:
        """Write all files."""
        if self._root is None:
            return
        folder = self._root / "trnx" / report.name
        kernels = _kernel_files(report)
        texts = {
            "captured.py": self._captured,
            "canonical.py": _readable(plan.graph_module),
            "plan.txt": "\n".join(_plan_lines(plan, report, kernels)) + "\n",
            "report.json": json.dumps(report.to_dict(), indent=1) + "\n",
        }
        try:
            (folder / "kernels").mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="utf-8")
            for source, name in kernels.items():
                (folder / "kernels" / name).write_bytes(source.read_bytes())
        except OSError as error:
            log.warning("%s is not written: %s", folder, error)
        else:
            log.info("%s: graphs, plan, kernels and report are in %s", report.name, folder)


def _readable(gm: fx.GraphModule) -> str:
    return str(gm.print_readable(print_output=False))


def _kernel_files(report: GraphReport) -> Mapping[Path, str]:
    """The source file of each kernel -> its name in the folder: the file's, or with a number where
    files of two folders have one name."""
    found: dict[Path, str] = {}
    for region in report.regions:
        source = _source(region)
        if source is None or source in found:
            continue
        name, count = source.name, 1
        while name in found.values():
            count += 1
            name = f"{source.stem}_{count}{source.suffix}"
        found[source] = name
    return found


def _source(region: RegionReport) -> Path | None:
    """The file of the kernel for the sizes seen at capture; None where there is none to read."""
    launch = None if region.prediction is None else region.prediction.launch
    if launch is None:
        return None
    function = inspect.unwrap(getattr(launch.kernel, "function", launch.kernel))
    code = getattr(function, "__code__", None)
    file = None if code is None else Path(code.co_filename)
    return file if file is not None and file.is_file() else None


def _plan_lines(plan: Plan, report: GraphReport, kernels: Mapping[Path, str]) -> Iterator[str]:
    yield str(report)
    entries = {entry.name: entry for entry in report.regions}
    for region in plan.regions:
        yield ""
        yield from _region_lines(region, entries[region.name], kernels)


def _region_lines(
    region: Region, entry: RegionReport, kernels: Mapping[Path, str]
) -> Iterator[str]:
    source = _source(entry)
    file = f" (kernels/{kernels[source]})" if source is not None else ""
    yield f"{region.name}: {entry.where}" + (f", {entry.kernel}{file}" if entry.kernel else "")
    yield f"  predicted: {entry.predicted_seconds * 1e6:.1f} us ({entry.predicted_by})"
    if entry.source:
        yield f"  line: {entry.source}"
    for name, nodes in (("in", region.inputs), ("out", region.outputs)):
        yield f"  {name}: {', '.join(node.name for node in nodes)}"
    for node in region.nodes:
        yield f"    {node.format_node()}"
