"""pytest plugin for the process that collects nki-library's suite; `-p worker`.

In place of pytest's own loop it tells the driver, over the connection whose file descriptor is
`NKI_LIBRARY_CONNECTION`, what was collected, gets a plan, and runs it in forks (see the module
`fork_server`). A case that takes longer than its limit ends its fork: the simulator's
threads cannot be stopped from outside.
"""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from fork_server import Record, Server, receive, send
from stand_ins import install_stand_ins, name_packed_types
from suite import MAX_INPUT_BYTES, NOT_FOR_TARGET, TOO_LARGE

from trnx.simulator import install, install_cpu_simulator, simulate
from trnx.simulator.errors import CapacityError, FindingWarning
from trnx.simulator.frontend.nki_runtime import warning_of
from trnx.simulator.isa.mx import scales_before_0_5

# Of the cases that the suite draws as its files are imported: with values from other seeds, its
# generator of pairs may not end in minutes.
CASES_SEED = 0
# Of the inputs that a case draws.
INPUTS_SEED = int(os.environ.get("NKI_LIBRARY_SEED", "0"))
# A case's limit is in seconds of the processor; one that waits has as many times the limit.
_PATIENCE = 4
# Cases with these marks override the mode: they ask for the compiler. `trace_only` asks for its
# front end alone, whose place the simulator takes.
COMPILER_MARKS = ("compile_only", "compile_and_infer")

_collected: dict[str, Any] = {"cases": [], "others": [], "errors": {}}
# The record of the case that runs.
_current: dict[str, Any] = {}


def _prepare() -> None:
    """Make the suite's imports work; must happen before its conftest is imported."""
    install()
    install_cpu_simulator()
    install_stand_ins()
    name_packed_types()
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
        def run(warn: tuple[str, ...]) -> Any:
            with warning_of(warn):
                return self._simulation(**inputs)

        return measured(inputs.values(), run)


def measured(inputs: Iterable[Any], simulate: Callable[[tuple[str, ...]], Any]) -> Any:
    """`simulate(warn)`, unless the inputs are over the limit; notes that it began, that it goes on,
    and its time.

    What does not fit on the chip in program order runs once more with a warning: the device's
    compiler moves the rest to HBM (SDK/nki/get-started/about/memory-hierarchy-overview.rst).
    """
    size = sum(value.nbytes for value in inputs if isinstance(value, np.ndarray))
    _current["input_bytes"] = size
    if size > MAX_INPUT_BYTES:
        pytest.skip(f"{TOO_LARGE}: {size} bytes")
    _current.update(began=True, simulating=True)
    start = time.perf_counter()
    try:
        # The snapshot is older than NKI 0.5, and so are its golden values.
        with scales_before_0_5():
            try:
                result = simulate(())
            except CapacityError as error:
                _current["spills"] = str(error)[:2000]
                result = simulate(("capacity",))
    finally:
        _current["simulation"] = round(time.perf_counter() - start, 3)
    _current["simulating"] = False
    return result


_prepare()


# ---- collection ----


def pytest_collectstart(collector: Any) -> None:
    """Cases are drawn at random when a file is imported: each file gets the same start."""
    if isinstance(collector, pytest.Module):
        _seed(CASES_SEED)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def pytest_deselected(items: list[Any]) -> None:
    """Cases that are not for the platform."""
    _collected["others"] += [(item.nodeid, NOT_FOR_TARGET) for item in items]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Note what is left, which is for the platform."""
    for item in items:
        if any(item.get_closest_marker(mark) for mark in COMPILER_MARKS):
            _collected["others"].append((item.nodeid, "needs the compiler"))
        else:
            _collected["cases"].append(item.nodeid)


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be imported."""
    if report.failed:
        _collected["errors"][report.nodeid] = str(report.longrepr)[-4000:]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: Any) -> bool:
    """Do what the driver plans."""
    driver = Connection(int(os.environ["NKI_LIBRARY_CONNECTION"]))
    send(driver, _collected)
    plan = receive(driver)

    def run_case(item: Any, following: Any, tell: Callable[[Record], None]) -> None:
        _run_case(item, following, plan["seconds"], tell)

    items = {item.nodeid: item for item in session.items}
    server = Server(driver, items, session.config.option.output_directory, run_case)
    server.run(plan["chunks"], plan["jobs"], plan["gigabytes"])
    send(driver, {"done": True})
    return True


# ---- one case, in a fork ----


def _run_case(item: Any, following: Any, limit: int, tell: Callable[[Record], None]) -> None:
    """Run a case, the same way whichever ran before."""

    def time_out(*_: Any) -> None:
        _current.update(status="timeout", message=f"more than {limit} s", text=_stacks())
        measure()
        tell(_current)
        os._exit(1)

    def measure() -> None:
        _current["seconds"] = round(time.perf_counter() - clocks[0], 2)
        _current["processor"] = round(time.process_time() - clocks[1], 2)
        _current["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

    _current.clear()
    _current.update(case=item.nodeid, began=False, simulating=False, findings=[])
    _seed(INPUTS_SEED)
    signal.signal(signal.SIGPROF, time_out)
    signal.signal(signal.SIGALRM, time_out)
    clocks = time.perf_counter(), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit)
    signal.alarm(_PATIENCE * limit)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    measure()
    tell(_current)


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()[:6000]


def pytest_warning_recorded(warning_message: Any) -> None:
    """Findings that did not stop the kernel."""
    if issubclass(warning_message.category, FindingWarning) and _current:
        _current["findings"].append(str(warning_message.message)[:400])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: Any) -> Any:
    """The result of a case: of its call, or of the set-up that failed."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    message = ""
    if call.excinfo is not None:
        message = f"{call.excinfo.typename}: {call.excinfo.value}"
    text = "" if report.passed else report.longreprtext
    _current.update(status=report.outcome, message=message[:2000], text=text[-12000:])
