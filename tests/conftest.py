"""Shared by all tests: one thread, the `--slow` flag."""

from __future__ import annotations

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long suites too")


def pytest_configure() -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="long suite: runs with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
