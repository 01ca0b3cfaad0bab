"""Shared by all tests: one thread, one seed, no compile cache, the `--slow` flag."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

# Tests share `suites` with the scripts that measure.
SCRIPTS = str(Path(__file__).parents[1] / "scripts")
if SCRIPTS not in sys.path:
    sys.path.append(SCRIPTS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long suites too")


def pytest_configure() -> None:
    torch.set_num_threads(1)
    # What one test compiled must not serve another; tests of the cache have their own folders.
    os.environ["TRNX_CACHE_DIR"] = "off"
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="long suite: runs with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


# What a test draws without a seed of its own is the same in every run and order: as its module is
# imported, in fixtures of modules and sessions, in its own fixtures and in its body. The generator
# of the CPU alone: `torch.manual_seed` keeps a stack trace for each device that is not there.
def pytest_collectstart() -> None:
    torch.default_generator.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    # Tests share code, of helpers and of `Sequential.forward`; Dynamo compiles a code object eight
    # times and would then run it in eager, which compares eager with itself.
    torch.compiler.reset()


@pytest.fixture(scope="session")
def open_trace() -> Callable[[Path], Any]:
    """Opens a Perfetto trace in Perfetto's trace processor; see `trace_processor.py`."""
    path = Path(__file__).with_name("trace_processor.py")
    spec = importlib.util.spec_from_file_location("_trace_processor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.open_trace  # type: ignore[no-any-return]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every program that XLA compiles."""
    from trnx.fallback.program import Program

    found: list[int] = []
    make = Program.__init__

    def counted(self: Program, *args: Any) -> None:
        found.append(1)
        make(self, *args)

    monkeypatch.setattr(Program, "__init__", counted)
    return found
