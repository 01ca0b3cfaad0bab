"""scripts/bench/kernels.py: how its bars are applied."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "scripts/bench"
NAMES = ("bench_kernels", "convolution_layers", "scans")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        # Tests of the simulator have modules that are named kernels, too.
        spec = importlib.util.spec_from_file_location(NAMES[0], FOLDER / "kernels.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[NAMES[0]] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            sys.modules.pop(name, None)


def row(script: ModuleType, **given: Any) -> Any:
    """10 us where the limit allows 8, on two cores 6; these could share all but 3."""
    fields: dict[str, Any] = {
        "name": "row", "target": "trn2", "us": 10.0, "limit_us": 8.0, "limit": "DMA", "share": 0.8,
        "bar": 0.6, "reached": True, "regions": 1, "busiest": "", "missing": (), "family": "",
        "two_us": 6.0, "two_limit_us": 3.0,
    }  # fmt: skip
    return script.Result(**fields | given)


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({}, True),
        ({"reached": False}, False),
        ({"missing": ("aten.sort.default",)}, False),
        ({"two_us": 7.0}, False),  # 1.43 times as fast
        ({"limit": "tensor"}, False),  # 1.67 times, of 1.8
        ({"two_us": 7.0, "two_limit_us": 6.5}, True),  # nothing is left that they could share
        ({"two_us": None}, True),
    ],
)
def test_a_row_has_the_bar_of_two_cores_too(
    script: ModuleType, given: dict[str, Any], holds: bool
) -> None:
    assert script.all_hold([row(script), row(script, **given)]) is holds


@pytest.mark.parametrize(("failing", "holds"), [(2, True), (3, False)])
@pytest.mark.parametrize("given", [{"reached": False}, {"missing": ("aten.sort.default",)}])
def test_of_a_family_four_fifths_reach_their_share(
    script: ModuleType, capsys: Any, given: dict[str, Any], failing: int, holds: bool
) -> None:
    rows = [row(script, family="f", **(given if k < failing else {})) for k in range(10)]
    assert script.all_hold(rows) is holds
    said = capsys.readouterr().out
    assert said.startswith(f"f: {10 - failing} of 10 {'holds' if holds else 'FAILS'}")


def test_two_cores_are_counted_for_a_family(script: ModuleType, capsys: Any) -> None:
    assert script.all_hold([row(script, family="f", two_us=9.0), row(script, family="f")])
    assert capsys.readouterr().out == "f: 2 of 2 holds; two cores: 1 of 2\n"
