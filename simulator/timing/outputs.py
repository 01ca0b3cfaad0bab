"""Whether a trace or plots can be written, asked before a run that may take long."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from trnx.simulator.timing.errors import OutputPathError, needs

# Names that the Perfetto UI and its tools give to the native format, which is what is written.
TRACE_SUFFIXES = (".pftrace", ".perfetto-trace", ".pb")
PAGE_SUFFIXES = (".html", ".htm")


def check_trace_path(path: Path) -> None:
    """Raises OutputPathError or ProfileDependencyError where no trace can be written to `path`."""
    if path.suffix not in TRACE_SUFFIXES:
        raise OutputPathError(
            f"{path}: a trace is written in Perfetto's native format; name it "
            f"{path.stem}{TRACE_SUFFIXES[0]} (or {', '.join(TRACE_SUFFIXES[1:])})"
        )
    _check_file(path, "the trace")
    _find("perfetto", "a trace")


def check_page_path(path: Path) -> None:
    """Raises OutputPathError where no page can be written to `path`."""
    if path.suffix not in PAGE_SUFFIXES:
        raise OutputPathError(f"{path}: the page is HTML; name it {path.stem}{PAGE_SUFFIXES[0]}")
    _check_file(path, "the page")


def _check_file(path: Path, what: str) -> None:
    if path.is_dir():
        raise OutputPathError(f"{path} is a folder; name a file for {what}")
    if not path.parent.is_dir():
        raise OutputPathError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputPathError(f"{path} may not be written; choose another place")


def check_plot_folder(folder: Path) -> None:
    """Raises OutputPathError or ProfileDependencyError where no plots can be written there."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise OutputPathError(f"{folder}: {existing} is a file; name a folder for the plots")
    if not os.access(existing, os.W_OK):
        raise OutputPathError(f"{folder}: {existing} may not be written; choose another place")
    _find("matplotlib", "a plot")


def _find(package: str, what: str) -> None:
    with needs(package, what):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(package)
