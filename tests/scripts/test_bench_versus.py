"""scripts/bench/versus_aws.py: the same problem on both sides, refusals, and its bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator.frontend.kernel_sources import is_nki

FOLDER = Path(__file__).resolve().parents[2] / "scripts/bench"
# Rows one after another: slower than the kernel that `torch.compile` plans.
KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def double(x, limit=10**6):
    assert x.shape[0] <= limit, "too many rows"
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(nl.program_id(0), x.shape[0], nl.num_programs(0)):
        tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + 1])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[row : row + 1], src=tile)
    return out
"""
# Rounds each sum to float32; eager adds in float64.
ROUNDING = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def sums(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    zeros = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_tensor_scan(dst=tile, data0=tile, data1=zeros, initial=0.0, op0=nl.add, op1=nl.add)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    path, modules = list(sys.path), dict(sys.modules)
    sys.path.insert(0, str(FOLDER))
    import versus_aws

    yield versus_aws
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        if is_nki(name) or name.startswith(("versus_", "_versus_", "nkilib_src")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkouts")
    library, tutorials = folder / "library", folder / "sdk"
    for file, source in (
        (library / "src/nkilib_src/nkilib/core/doubled.py", KERNEL),
        (tutorials / "nki/examples/doubled/doubled.py", KERNEL),
        (tutorials / "nki/examples/sums/sums.py", ROUNDING),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(source)
    return [library, tutorials]


def problem(kernel: str, rows: int = 64, **more: Any) -> Any:
    from versus_problems import Input, Problem

    x = Input((rows, 256))
    return Problem(
        f"double {rows} {kernel}", lambda x: x * 2, (x,), kernel,
        lambda _checkouts, _lnc: {"x": x.spec, **more}, (1,) if "py" in kernel else (1, 2),
    )  # fmt: skip


def run(
    script: ModuleType, checkouts: list[Path], monkeypatch: pytest.MonkeyPatch, *options: str
) -> int:
    named = [text for path in checkouts for text in ("--checkout", str(path))]
    monkeypatch.setattr(sys, "argv", ["versus_aws.py", *named, "--json", *options])
    status: int = script.main()
    return status


def test_both_sides_of_a_problem(
    script: ModuleType, checkouts: list[Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = [
        problem("core.doubled:double"),
        problem("doubled/doubled.py:double"),
        problem("core.doubled:double", 32, limit=16),
    ]
    monkeypatch.setattr(script, "problems", lambda: iter(found))
    assert run(script, checkouts, monkeypatch) == 1  # too few problems
    printed = capsys.readouterr().out
    numbers = json.loads(printed.splitlines()[-1])
    rows = {row["name"]: row for row in numbers["rows"]}
    assert [row["lnc"] for row in numbers["rows"]] == [1, 2, 1, 1, 2]
    one, two, tutorial, refused, _ = rows.values()
    assert one["theirs"]["us"] == tutorial["theirs"]["us"] > two["theirs"]["us"]
    assert one["ours"]["us"] == tutorial["ours"]["us"]
    assert one["ratio"] == one["ours"]["us"] / one["theirs"]["us"] < 1
    assert refused["theirs"] is None
    assert "too many rows" in refused["refused"]
    assert (numbers["problems"], numbers["refused"]) == (2, 2)
    assert numbers["bars"] == {"problems": False, "not_slower": True, "worst": True, "median": True}


def test_a_kernel_that_is_not_as_exact_is_compared_in_errors_too(
    script: ModuleType, checkouts: list[Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from versus_problems import F32, Input, Problem

    x = Input((32, 2048), F32)
    sums = Problem(
        "sums", lambda x: x.cumsum(-1), (x,), "sums/sums.py:sums", lambda *_: {"x": x.spec}, (1,),
        inexact="x",
    )  # fmt: skip
    exact = problem("doubled/doubled.py:double")
    monkeypatch.setattr(script, "problems", lambda: iter([sums, exact]))
    run(script, checkouts, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    inexact_row, exact_row = json.loads(lines[-1])["rows"]
    assert set(inexact_row["errors"]) == {"random", "cancelling"}
    assert exact_row["errors"] == {}
    for found in inexact_row["errors"].values():
        assert found["ours"] <= 2
        assert found["theirs"] > 4
    assert "error against float64" in lines[1]
    # Only said: neither the ratio nor what counts as slower knows it.
    assert inexact_row["ratio"] == inexact_row["ours"]["us"] / inexact_row["theirs"]["us"]


def test_only_rows_that_are_asked_for(
    script: ModuleType, checkouts: list[Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = [problem("doubled/doubled.py:double", rows) for rows in (8, 16)]
    monkeypatch.setattr(script, "problems", lambda: iter(found))
    run(script, checkouts[1:], monkeypatch, "--rows", "double 16")
    numbers = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["problem"] for row in numbers["rows"]] == [found[1].name]


def test_a_run_that_was_cut_off_goes_on(
    script: ModuleType, checkouts: list[Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    found = [problem("core.doubled:double"), problem("core.doubled:double", 32, limit=16)]
    kept = ("--keep", str(tmp_path / "rows"))
    monkeypatch.setattr(script, "problems", lambda: iter(found))
    run(script, checkouts, monkeypatch, "--rows", "LNC 1", *kept)
    assert len((tmp_path / "rows").read_text().splitlines()) == 2
    capsys.readouterr()
    measured = []
    compared = script.compared
    monkeypatch.setattr(script, "compared", lambda *of: measured.append(of[2]) or compared(*of))
    run(script, checkouts, monkeypatch, *kept)
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert measured == [2, 2]
    monkeypatch.setattr(script, "compared", compared)
    run(script, checkouts, monkeypatch)
    anew = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again == anew


@pytest.mark.usefixtures("script")
def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    from versus_checkouts import Checkouts, MissingCheckoutError

    with pytest.raises(MissingCheckoutError, match="has neither"):
        Checkouts([tmp_path], tmp_path)


def rows(script: ModuleType, ratios: list[float]) -> list[Any]:
    return [
        script.Row(f"problem {i}", 1, script.Time(ratio, ""), script.Time(1.0, ""))
        for i, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ("ratios", "failing"),
    [
        ([0.8] * 54 + [1.1] * 6, None),
        ([0.8] * 59, "problems"),
        ([0.8] * 53 + [1.05] * 7, "not_slower"),
        ([0.8] * 59 + [1.11], "worst"),
        ([0.9] * 60, "median"),
    ],
)
def test_bars(script: ModuleType, ratios: list[float], failing: str | None) -> None:
    bars = script.verdict(rows(script, ratios))["bars"]
    assert [name for name, holds in bars.items() if not holds] == ([failing] if failing else [])


def test_a_row_with_a_part_off_nki_counts_as_slower(script: ModuleType) -> None:
    off = script.Row("off", 1, script.Time(0.1, "", ("topk",)), script.Time(1.0, ""))
    assert off.is_slower
    assert script.verdict([*rows(script, [0.5] * 3), off])["not_slower"] == 0.75


def test_refused_rows_count_for_neither_side(script: ModuleType) -> None:
    known = rows(script, [0.5] * 60)
    refused = script.Row("refused", 1, script.Time(1.0, ""), None, refused="why")
    numbers = script.verdict([*known, refused])
    assert (numbers["problems"], numbers["compared"], numbers["refused"]) == (60, 60, 1)
    assert numbers["median"] == 0.5


def test_every_problem_has_arguments_of_its_inputs(script: ModuleType) -> None:
    """Names are unique, and operands are not so large that a trace takes long."""
    found = list(script.problems())
    assert len({one.name for one in found}) == len(found) >= script.PROBLEMS
    for one in found:
        elements = sum(torch.Size(given.shape).numel() for given in one.inputs)
        assert elements < 2**26, one.name
