"""`trnx explain` on a user's file, and how the command ends on bad input."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import trnx
from trnx import cli
from trnx.backend.errors import ExampleError
from trnx.backend.example import load_example

MODEL = """
import torch

def example():
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.randn(3, 8),)

def keywords():
    return torch.nn.Linear(8, 4), (), {"input": torch.randn(3, 8)}

def wrong():
    return 7
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `trnx ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["trnx", *arguments])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_versions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    shown = capsys.readouterr().out
    assert version("trnx") in shown
    assert version("torch") in shown


@pytest.mark.parametrize("example", ["uses.sibling:example", "uses/sibling.py:example"])
def test_explain_finds_what_lies_beside(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The current folder for a module, the file's own for a file; also for imports in `forward`."""
    (tmp_path / "uses").mkdir()
    for folder in (tmp_path, tmp_path / "uses"):
        (folder / "explained_parts.py").write_text("SCALE = 3.0\n")
        (folder / "explained_late.py").write_text("SHIFT = 1.0\n")
    (tmp_path / "uses" / "sibling.py").write_text(
        "import torch\nfrom explained_parts import SCALE\n"
        "def function(x):\n"
        "    import explained_late\n"
        "    return (x * SCALE + explained_late.SHIFT).relu()\n"
        "def example():\n"
        "    return function, (torch.ones(3, 8),)\n"
    )
    monkeypatch.chdir(tmp_path)
    # What an installed command sees: its own folder, not the current one.
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert run(monkeypatch, "explain", example, "--json") == 0
    assert json.loads(capsys.readouterr().out)["nodes_on_nki"] == 1.0
    for name in ("explained_parts", "explained_late", "uses", "uses.sibling"):
        sys.modules.pop(name, None)


def test_explain_prints_the_plan(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "explain", f"{model}:example", "--fail-under", "95") == 0
    shown = capsys.readouterr().out
    assert "100.0 % of FLOPs" in shown
    assert "linear" in shown


def test_explain_prints_one_json_object(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "explain", f"{model}:keywords", "--json", "--target", "trn1") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == "trn1"
    assert found["flops_on_nki"] == 1.0


def test_a_missed_threshold_fails(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "explain", f"{model}:example", "--fail-under", "101") == 1
    assert "CoverageError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("model.py", "names no example"),
        ("no/such/file.py:example", "there is no file"),
        ("no_such_module:example", "cannot import"),
        ("json:no_such_function", "defines no function"),
    ],
)
def test_bad_examples_are_named_errors(example: str, message: str) -> None:
    with pytest.raises(ExampleError, match=message):
        load_example(example)


def test_an_example_returns_model_and_arguments(model: str) -> None:
    with pytest.raises(ExampleError, match="returned int"):
        load_example(f"{model}:wrong")


@pytest.mark.parametrize(
    ("function", "message"), [(3, "int cannot be called"), (lambda: 7, "captured no graph")]
)
def test_nothing_to_explain_is_an_error(function: Any, message: str) -> None:
    with pytest.raises(ExampleError, match=message):
        trnx.explain(function)


def test_explain_takes_the_options_of_the_backend(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = ("--inference", "--dynamic", "--select", "none", "--fallback", "eager", "--json")
    assert run(monkeypatch, "explain", f"{model}:example", *shapes) == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert graph["kind"] == "inference"
    assert [region["engine"] for region in graph["regions"]] == ["eager"]


@pytest.mark.parametrize(
    ("gates", "status"),
    [(["95", "bytes=90"], 0), (["flops=95", "seconds=101"], 1), (["x=1"], 2), (["bytes=a"], 2)],
)
def test_gates(model: str, gates: list[str], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [item for gate in gates for item in ("--fail-under", gate)]
    assert run(monkeypatch, "explain", f"{model}:example", *options) == status


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text("import sys\nprint(sys.argv[1:])\n")
    return str(path)


@pytest.mark.parametrize("behind", [("--target", "trn5"), ("a", "--target=trn1"), ("--trace",)])
def test_an_option_behind_the_script_is_an_error(
    script: str,
    behind: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "sim", script, *behind) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "ArgumentOrderError" in shown.err
    options = " ".join(item for item in behind if item != "a")
    assert f"trnx sim {options} {script}" in shown.err
    assert f"trnx sim {script} -- {' '.join(behind)}" in shown.err


def test_arguments_of_the_script(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "sim", script, "--", "--target", "x") == 0
    assert run(monkeypatch, "sim", script, "--of-the-script", "--", "--target") == 0
    assert capsys.readouterr().out == ("['--target', 'x']\n['--of-the-script', '--', '--target']\n")


@pytest.mark.parametrize(
    ("option", "place", "message"),
    [
        ("--trace", "trace.json", "trace.pftrace"),
        ("--trace", "absent/trace.pftrace", "no folder"),
        ("--trace", ".", "name it"),
        ("--plot", "script.py", "is a file"),
        ("--plot", "script.py/plots", "is a file"),
        ("--html", "page.txt", "page.html"),
        ("--html", "absent/page.html", "no folder"),
    ],
)
def test_output_is_refused_before_the_run(
    script: str,
    option: str,
    place: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = str(Path(script).parent / place)
    assert run(monkeypatch, "profile", option, asked, script) == 1
    shown = capsys.readouterr()
    assert shown.out == ""  # the script did not run
    assert "OutputPathError" in shown.err
    assert message in shown.err
