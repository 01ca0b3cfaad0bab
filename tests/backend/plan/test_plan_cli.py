"""`trnx plan` as a user calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trnx import cli

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1024,
}  # fmt: skip
EXAMPLE = f"""
import torch
import transformers

def example():
    config = transformers.LlamaConfig(**{CONFIG!r})
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config), (torch.empty(1, 8, dtype=torch.int64),)

def without_config():
    return torch.nn.Linear(2, 2), ()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "models.py").write_text(EXAMPLE)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `trnx plan ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["trnx", "plan", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_two_machines_as_json_and_a_job_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = ["--batch=32", "--sequence=128", "--price=2", "--json"]
    write = ["--write", str(folder / "job.yaml"), "--image=registry/image:1"]
    assert run(monkeypatch, str(folder), "--instance=trn1.2xlarge", *same, *write) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])["plans"]
    assert (folder / "job.yaml").read_text().count("--batch=32") == 1
    names = ["--instance=trn1.2xlarge", "--instance=trn2.3xlarge", "--price=1"]
    assert run(monkeypatch, f"{folder / 'models.py'}:example", *names, *same) == 0
    plans = json.loads(capsys.readouterr().out.splitlines()[-1])["plans"]
    assert [plan["instance"] for plan in plans] == ["trn1.2xlarge", "trn2.3xlarge"]
    assert plans[0]["best"]["step_seconds"] == first[0]["best"]["step_seconds"]
    assert plans[0]["parameters"] == first[0]["parameters"] > 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["no-such-model"], 1, "UnknownModelError"),
        (["llama-3-8b", "--instance=p5.48xlarge"], 1, "PlanError"),
        (["llama-3-8b", "--mode=decode", "--batch=1"], 1, "NoMeshError"),
        (["llama-3-8b", "--price=1", "--price=2"], 2, "2 --price for 1 --instance"),
        (["llama-3-8b", "--write=job.yaml"], 2, "--write needs --image"),
        (["FOLDER/models.py:without_config"], 1, "without a Hugging Face"),
    ],
)
def test_bad_input_is_named(
    arguments: list[str],
    status: int,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [argument.replace("FOLDER", str(folder)) for argument in arguments]
    assert run(monkeypatch, *asked) == status
    assert message in capsys.readouterr().err


def test_nothing_that_fits_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "llama-3-70b", "--instance=trn1.2xlarge", "--batch=2") == 1
    assert "no mesh fits" in capsys.readouterr().out
