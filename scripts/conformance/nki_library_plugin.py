"""pytest plugin for one process that runs cases of nki-library's suite; `-p nki_library_plugin`.

Environment: `NKI_LIBRARY_RECORDS` is the file to which one JSON object a line is appended. With
`NKI_LIBRARY_CASES` (a JSON file) only the cases listed there run, each within
`NKI_LIBRARY_SECONDS`; without it they are collected only. A case that takes longer ends the
process with status 17: the simulator's threads cannot be stopped from outside.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
from nki_library_stand_ins import install_stand_ins
from nki_library_workers import TOO_LARGE

from trnx.simulator import install, install_cpu_simulator, simulate
from trnx.simulator.errors import FindingWarning

MAX_INPUT_BYTES = 2 << 30
TIMEOUT_STATUS = 17
SEED = 0
# Cases with these marks override the mode: they ask for the compiler. `trace_only` asks for its
# front end alone, whose place the simulator takes.
COMPILER_MARKS = ("compile_only", "compile_and_infer")

_records = Path(os.environ["NKI_LIBRARY_RECORDS"])
_limit = int(os.environ.get("NKI_LIBRARY_SECONDS", "600"))
_current: dict[str, Any] = {}


def _write(**record: Any) -> None:
    with _records.open("a") as file:
        file.write(json.dumps(record) + "\n")


def _prepare() -> None:
    """Make the suite's imports work; must happen before its conftest is imported."""
    gigabytes = int(os.environ.get("NKI_LIBRARY_GIGABYTES", "0"))
    if gigabytes:
        resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
    install()
    install_cpu_simulator()
    install_stand_ins()
    dtype = ModuleType("neuronxcc.starfish.support.dtype")
    dtype.static_cast = sys.modules["neuron_dtypes"].static_cast  # type: ignore[attr-defined]
    for name in ("neuronxcc.starfish", "neuronxcc.starfish.support"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules.setdefault(dtype.__name__, dtype)
    frontend = ModuleType("nki.compiler.frontend")
    vars(frontend).update(NKIFrontend=object, ParserFrontend=ParserFrontend)
    sys.modules[frontend.__name__] = frontend
    nki = sys.modules["nki_cpu_simulator.nki"]
    start = nki.cpu_simulate

    def cpu_simulate(kernel: Any) -> Any:
        return _Measured(start(kernel))

    nki.cpu_simulate = cpu_simulate  # type: ignore[attr-defined]


class ParserFrontend:
    """The place of the compiler's front end: kernels of `trace_only` cases are traced with all
    checks.
    """

    def compile(self, kernel: Any, inputs: dict[str, Any], target: str, lnc: int, **_: Any) -> None:
        """Raise what the simulator finds."""
        simulate(kernel, target, lnc)(**inputs)


class _Measured:
    """A simulation that refuses inputs over the limit, and notes that it began."""

    def __init__(self, simulation: Any) -> None:
        self._simulation = simulation

    def __getitem__(self, programs: int) -> _Measured:
        return _Measured(self._simulation[programs])

    def __call__(self, **inputs: Any) -> Any:
        return measured(inputs.values(), lambda: self._simulation(**inputs))


def measured(inputs: Iterable[Any], simulate: Callable[[], Any]) -> Any:
    """`simulate()`, unless the inputs are over the limit; notes that it began, and its time."""
    size = sum(value.nbytes for value in inputs if isinstance(value, np.ndarray))
    _current["input_bytes"] = size
    if size > MAX_INPUT_BYTES:
        pytest.skip(f"{TOO_LARGE}: {size} bytes")
    _current["began"] = True
    start = time.perf_counter()
    try:
        return simulate()
    finally:
        _current["simulation"] = round(time.perf_counter() - start, 3)


_prepare()


def pytest_collectstart(collector: Any) -> None:
    """Cases are drawn at random when a file is imported: each file gets the same start."""
    if isinstance(collector, pytest.Module):
        random.seed(SEED)
        np.random.seed(SEED)


def pytest_deselected(items: list[Any]) -> None:
    """Cases that are not for the platform."""
    if "NKI_LIBRARY_CASES" not in os.environ:
        for item in items:
            _write(case=item.nodeid, collected="not for trn2")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the cases that are asked for."""
    listed = os.environ.get("NKI_LIBRARY_CASES")
    if listed is not None:
        order = {case: i for i, case in enumerate(json.loads(Path(listed).read_text()))}
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])
        return
    for item in items:
        marked = any(item.get_closest_marker(mark) for mark in COMPILER_MARKS)
        _write(case=item.nodeid, collected="needs the compiler" if marked else "trn2")


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be imported."""
    if report.failed:
        _write(file=report.nodeid, error=str(report.longrepr)[-4000:])


def _timed_out(_number: int, _frame: FrameType | None) -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        stack = file.read()
    _write(**_current, status="timeout", message=f"more than {_limit} s", text=stack[-6000:])
    os._exit(TIMEOUT_STATUS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    """Start of a case."""
    _current.clear()
    _current.update(case=item.nodeid, began=False, findings=[], started=time.time())
    _current["processor"] = time.process_time()
    _write(case=item.nodeid, started=True)
    signal.signal(signal.SIGALRM, _timed_out)
    signal.alarm(_limit)


def pytest_warning_recorded(warning_message: Any, nodeid: str) -> None:
    """Findings that did not stop the kernel."""
    if issubclass(warning_message.category, FindingWarning):
        _write(case=nodeid, finding=str(warning_message.message)[:400])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: Any) -> Any:
    """The result of a case: of its call, or of the set-up that failed."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "teardown":
        return
    if report.when == "setup" and report.passed:
        return
    signal.alarm(0)
    seconds = round(time.time() - _current["started"], 2)
    _current["processor"] = round(time.process_time() - _current["processor"], 2)
    text = "" if report.passed else report.longreprtext
    message = ""
    if call.excinfo is not None:
        message = f"{call.excinfo.typename}: {call.excinfo.value}"
    _write(
        **_current,
        status=report.outcome,
        seconds=seconds,
        message=message[:2000],
        text=text[-12000:],
        resident=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    )
