"""`trnx cache`, and torch's artefacts: what is told, what moves, and what never does."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import trnx
from trnx.backend import prediction
from trnx.backend.cache.cache import KINDS, PREDICTION, SOURCE, Cache, Codec
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Entry, Key, Kind, read_entry
from trnx.cli import app
from trnx.errors import CacheArchiveError, CacheOffError
from trnx.nki_kernels.generator import kernel as generator
from trnx.simulator.frontend import subset

PLAIN = Codec(lambda value: value, lambda value: value)
EXAMPLE = """
import torch

def example(rows=4, features=32):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(features, 8), torch.nn.Sigmoid())
    return model, (torch.randn(rows, features),)

def longer():
    return example(rows=5)
"""


@pytest.fixture(autouse=True)
def _own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRNX_CACHE_DIR", str(folder))
    fresh()
    yield
    fresh()


def fresh() -> None:
    torch.compiler.reset()
    prediction.PREDICTIONS.clear()
    for known in (generator._SOURCES, generator._NODES, subset._FINDINGS):
        known.clear()


@pytest.fixture
def example(tmp_path: Path) -> str:
    file = tmp_path / "model.py"
    file.write_text(EXAMPLE)
    return f"{file}:example"


def filled(cache: Cache) -> dict[str, Path]:
    """One entry of each kind."""
    found = {}
    for kind in KINDS.values():
        key = Key(kind, {"part": kind.name})
        cache.get_or_make(key, lambda kind=kind: [kind.name], PLAIN)
        found[kind.name] = cache.folder.place(kind.name, key.digest)
    return found


def ours() -> Cache:
    cache = current()
    assert cache is not None
    return cache


def answer(*arguments: str, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["cache", *arguments, "--json"])
    assert result.exit_code == status, result.output
    return json.loads(result.output.splitlines()[-1])


def test_stats(folder: Path) -> None:
    assert answer("stats")["entries"] == dict.fromkeys(KINDS, 0)
    assert "nothing is kept" in CliRunner().invoke(app, ["cache", "stats"]).output
    files = filled(ours())
    found = answer("stats")
    assert found["folder"] == str(folder)
    assert found["is_private"] is True
    assert found["entries"] == dict.fromkeys(KINDS, 1)
    assert found["nbytes"] == {kind: file.stat().st_size for kind, file in files.items()}
    folder.chmod(0o777)
    assert answer("stats")["is_private"] is False
    assert "others can write" in CliRunner().invoke(app, ["cache", "stats"]).output


def test_verify_names_what_is_damaged() -> None:
    files = filled(ours())
    assert answer("verify")["damaged"] == {}
    files["plan"].write_text("{}")
    files["source"].write_bytes(files["prediction"].read_bytes())
    damaged = answer("verify", status=1)["damaged"]
    assert damaged.keys() == {str(files["plan"]), str(files["source"])}
    assert answer("verify", "--remove", status=1)["damaged"].keys() == damaged.keys()
    left = KINDS.keys() - {"plan", "source"}
    assert answer("verify") == {**answer("verify"), "entries": len(left), "damaged": {}}
    assert {kind for kind, file in files.items() if file.exists()} == left


def test_gc() -> None:
    filled(ours())
    assert answer("gc")["removed"] == 0
    found = answer("gc", "--megabytes", "0")
    assert (found["removed"], found["left_bytes"]) == (len(KINDS), 0)


def test_export_and_import_move_all_but_code(tmp_path: Path) -> None:
    files = filled(ours())
    before = {kind: file.read_bytes() for kind, file in files.items()}
    archive = str(tmp_path / "cache.jsonl")
    assert answer("export", archive)["entries"] == 3
    answer("gc", "--megabytes", "0")
    assert answer("import", archive)["entries"] == 3
    for kind in ("source", "program", "graph"):
        assert not files.pop(kind).exists()
    assert all(file.read_bytes() == before[kind] for kind, file in files.items())


def test_an_import_takes_no_code_and_nothing_damaged(tmp_path: Path) -> None:
    archive = tmp_path / "cache.jsonl"
    code = Entry(Key(SOURCE, {"a": "1"}), {"source": "import os", "orders": []}).to_bytes()
    good = Entry(Key(PREDICTION, {"a": "1"}), {"seconds": "0x1p0"}).to_bytes()
    head = b'{"format": "trnx-cache-archive", "version": 1}'
    archive.write_bytes(b"\n".join([head, code, good.replace(b"0x1p0", b"0x2p0"), good, b"{"]))
    found = answer("import", str(archive))
    assert found["entries"] == 1
    assert sum(found["left_out"].values()) == 3
    assert answer("stats")["entries"] == {**dict.fromkeys(KINDS, 0), "prediction": 1}


@pytest.mark.parametrize("text", [b"", b"{}\n", b"\x80\x04", b'{"format": "trnx-cache-archive"}'])
def test_what_is_no_archive_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "cache.jsonl"
    file.write_bytes(text)
    result = CliRunner().invoke(app, ["cache", "import", str(file)])
    assert isinstance(result.exception, CacheArchiveError)
    missing = CliRunner().invoke(app, ["cache", "import", str(tmp_path / "none")])
    assert isinstance(missing.exception, CacheArchiveError)


def test_commands_say_that_the_cache_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNX_CACHE_DIR", "off")
    result = CliRunner().invoke(app, ["cache", "stats"])
    assert isinstance(result.exception, CacheOffError)
    assert "TRNX_CACHE_DIR" in str(result.exception)


def test_explain_names_the_part_that_missed(example: str, folder: Path) -> None:
    cold = answer("explain", example, "--inference")
    assert cold["hits"] == 0
    assert {one["reason"] for one in cold["questions"]} == {
        f"no {kind} was ever kept here" for kind in ("graph", "plan", "prediction")
    }
    assert not folder.exists()  # it writes nothing
    fresh()
    assert CliRunner().invoke(app, ["explain", example, "--inference"]).exit_code == 0
    fresh()
    warm = answer("explain", example, "--inference")
    assert {one["outcome"] for one in warm["questions"]} == {"hit"}
    fresh()
    other = answer("explain", example.replace(":example", ":longer"), "--inference")
    (plan,) = (one for one in other["questions"] if one["kind"] == "plan")
    assert [change["part"] for change in plan["changes"]] == ["shapes"]
    fresh()
    target = answer("explain", example, "--inference", "--target", "trn1")
    (plan,) = (one for one in target["questions"] if one["kind"] == "plan")
    assert plan["changes"] == [{"part": "target", "here": "trn1", "there": "trn2"}]
    assert plan["reason"] == "differs in target (trn1; kept: trn2)"
    fresh()
    text = CliRunner().invoke(app, ["cache", "explain", example, "--select", "legal"]).output
    assert "differs in select (legal; kept: profit)" in text


def test_explain_names_versions(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CliRunner().invoke(app, ["explain", example, "--inference"])
    fresh()
    from trnx.backend.cache import findings, graphs, plans, predictions

    old = plans.versions()
    for module in (findings, graphs, plans, predictions):
        monkeypatch.setattr(module, "versions", lambda: {**old, "trnx": "0.1.0 0123456789abcdef"})
    found = answer("explain", example, "--inference")
    assert {change["part"] for one in found["questions"] for change in one["changes"]} == {"trnx"}


def test_explain_tells_what_is_damaged(example: str, folder: Path) -> None:
    CliRunner().invoke(app, ["explain", example, "--inference"])
    fresh()
    for file in (folder / "plan").rglob("*.json"):
        file.write_text("{}")
    asked = answer("explain", example, "--inference")["questions"]
    (plan,) = (one for one in asked if one["kind"] == "plan")
    assert (plan["outcome"], plan["reason"]) == ("damaged", "is damaged, and is made again")


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Softsign(), torch.nn.LayerNorm(16))


def test_artefacts_of_torch_carry_the_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 16)
    with torch.no_grad(), torch.compiler._cache.CacheArtifactManager.with_fresh_cache():
        expected = torch.compile(_model(), backend="trnx")(x)
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    data, info = saved
    kinds = answer("stats")["entries"]
    code = {name for name, kind in KINDS.items() if kind.is_code}
    assert min(kinds[name] for name in code) > 0
    carried = {name: 0 if name in code else count for name, count in kinds.items()}
    assert len(info.artifacts["trnx"]) == sum(carried.values())

    (tmp_path / "other").mkdir(mode=0o700)
    monkeypatch.setenv("TRNX_CACHE_DIR", str(tmp_path / "other" / "cache"))
    fresh()
    loaded = torch.compiler.load_cache_artifacts(data)
    assert loaded is not None
    assert sorted(loaded.artifacts["trnx"]) == sorted(info.artifacts["trnx"])
    assert answer("stats")["entries"] == carried
    with torch.no_grad(), trnx.collect_reports() as reports:
        got = torch.compile(_model(), backend="trnx")(x)
    assert reports[0].regions
    assert ours().counts["hit"] > 0
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [SOURCE, PREDICTION], ids=["code", "damaged"])
def test_artefacts_bring_neither_code_nor_damage(
    kind: Kind, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from trnx.backend.cache import current as module

    entry = Entry(Key(kind, {"a": "1"}), {"source": "import os", "orders": []})
    data = entry.to_bytes() if kind is SOURCE else entry.to_bytes()[:-9]
    with caplog.at_level(logging.WARNING):
        module._load(entry.key.digest, data)
    assert "not taken" in caplog.text
    assert not folder.exists()


def test_an_entry_on_disk_is_json_alone() -> None:
    for file in filled(ours()).values():
        assert isinstance(json.loads(file.read_bytes()), dict)
        assert read_entry(file.read_bytes(), KINDS).value == [file.parts[-3]]
