"""The fuzzer: a short run, and that it finds what it looks for."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from nki_reference import table
from nki_reference.choices import SeededChoices
from nki_reference.differential import check, plan_snapshots
from nki_reference.machine import reduce_rows
from nki_reference.numbers import STORED
from nki_reference.program import Program
from nki_reference.program_builder import ProgramBuilder

from trnx.simulator import uninstall

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "fuzz" / "simulator.py"


@pytest.fixture(scope="module")
def fuzzer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_simulator", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_simulator"] = module
    spec.loader.exec_module(module)
    return module


def one_call(name: str, target: str = "trn2") -> Program:
    builder = ProgramBuilder(SeededChoices(f"one {name}"), target)
    table.ENTRIES[name].draw(builder)
    return builder.program()


def test_programs_agree_or_are_refused(fuzzer: ModuleType) -> None:
    outcomes = fuzzer.run_all(seed=2024, count=200, jobs=1, timeout=120)
    assert [one for one in outcomes if one.is_failure] == []
    statuses = {(one.kind, one.status) for one in outcomes}
    assert statuses == {("legal", "agreed"), ("wild", "agreed"), ("wild", "refused")}


@pytest.mark.slow
def test_many_programs_agree_or_are_refused(fuzzer: ModuleType) -> None:
    outcomes = fuzzer.run_all(seed=7, count=3000, jobs=2, timeout=120)
    assert [one for one in outcomes if one.is_failure] == []


def test_programs_have_loops_and_addresses_of_every_kind(fuzzer: ModuleType) -> None:
    programs = [fuzzer.make_program(1, number) for number in range(250)]
    loops = [program.loop for program in programs if program.loop is not None]
    assert {loop.kind for loop in loops} == {"fori", "dynamic", "while"}
    assert {0, 1, 3} <= {int(loop.count.values[0, 0]) for loop in loops}
    texts = [program.source() for program in programs]
    for part in (
        ".indirect(t",
        "address=(32, ",
        "nl.ds(turn, ",
        "vector_offset=",
        "scalar_offset=",
    ):
        assert any(part in text for text in texts), part
    for method in ("slice", "select", "squeeze_dim", "expand_dim", "rearrange", "flatten_dims"):
        assert any(f".{method}(" in text for text in texts), method


def test_a_seed_always_makes_the_same_programs(fuzzer: ModuleType) -> None:
    for number in range(10):
        first, second = fuzzer.make_program(5, number), fuzzer.make_program(5, number)
        assert first.source() == second.source()
        for a, b in zip(first.inputs(), second.inputs(), strict=True):
            assert np.array_equal(a, b)


def test_a_program_is_printed_as_a_file_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = one_call("tensor_tensor")
    plan_snapshots(program)
    try:
        exec(compile(program.script(), "printed", "exec"), {"__name__": "printed"})
    finally:
        uninstall()
    assert "array" in capsys.readouterr().out


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = table.ENTRIES["memset"]

    def wrong(m: Any, dst: Any, value: Any, **more: Any) -> None:
        right.apply(m, dst, value, **more)
        m.put(dst, np.full(dst.shape, 3).astype(STORED[dst.dtype]))

    changed = dataclasses.replace(right, apply=wrong)
    monkeypatch.setitem(table.ENTRIES, "memset", changed)
    assert check(one_call("memset"), must_run=True).status == "disagrees"


def test_refusing_and_accepting_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = one_call("memset")
    program.calls[0].arguments["value"] = "a word"
    assert check(program, must_run=True).status == "reference refused"
    program.is_wild = True
    assert check(program, must_run=False).status == "refused"
    right = table.ENTRIES["memset"]

    def never_legal(m: Any, **_: Any) -> None:
        m.require(False, "not today")

    monkeypatch.setitem(table.ENTRIES, "memset", dataclasses.replace(right, apply=never_legal))
    assert check(one_call("memset"), must_run=False).status == "wrongly accepted"


def test_a_crash_and_a_hang_are_found(fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    program = one_call("memset")

    def crashes(*_: Any, **__: Any) -> None:
        raise RuntimeError("inside")

    def hangs(*_: Any, **__: Any) -> None:
        time.sleep(30)

    monkeypatch.setattr(fuzzer, "check", crashes)
    assert fuzzer.judge(program, 5).status == "crash"
    monkeypatch.setattr(fuzzer, "check", hangs)
    assert fuzzer.judge(program, 0.2).status == "hang"


def test_the_sign_of_alike_magnitudes_is_open() -> None:
    """tanh of large numbers is 1 and -1 in float32, and something less in the reference."""
    rows = np.array([[1 - 2.0**-40, -1.0], [0.5, -1.0], [1.0, 1.0 - 2.0**-40]])
    result, error = reduce_rows("abs_max", rows)
    np.testing.assert_array_equal(result, [-1.0, -1.0, 1.0])
    np.testing.assert_array_equal(error, [2.0, 0.0, 0.0])
    np.testing.assert_allclose(reduce_rows("abs_min", -rows)[1], [2.0, 0.0, 0.0])
