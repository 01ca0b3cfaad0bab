"""`trnx eks`: what it prints, how it ends, and that `trnx` works without the extra."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from trnx import cli
from trnx.eks.cli import app
from trnx.eks.errors import EksError
from trnx.eks.rule_names import RULES
from trnx.errors import TrnxError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "scripts/eks/examples"
KERNEL = str(EXAMPLES / "kernel.yaml")

runner = CliRunner()


def test_render_prints_what_validate_takes() -> None:
    rendered = runner.invoke(app, ["render", KERNEL, "--set", "devices=4"])
    assert rendered.exit_code == 0
    (manifest,) = yaml.safe_load_all(rendered.stdout)
    assert manifest["kind"] == "Job"
    checked = runner.invoke(app, ["validate", "-"], input=rendered.stdout)
    assert checked.exit_code == 0
    assert "1 manifests hold: Job/kernel-bench" in checked.stdout


def test_an_empty_file_does_not_hold() -> None:
    result = runner.invoke(app, ["validate", "-"], input="---\n")
    assert result.exit_code == 1
    assert "[manifest] (the file): is empty" in result.stdout


def test_render_json_and_pod() -> None:
    result = runner.invoke(app, ["render", KERNEL, "--pod", "--json"])
    (pod,) = json.loads(result.stdout)["manifests"]
    assert pod["kind"] == "Pod"


def test_validate_tells_findings_and_ends_with_one() -> None:
    result = runner.invoke(app, ["validate", KERNEL, "--set", "devices=99"])
    assert result.exit_code == 1
    assert "[device-count] devices: " in result.stdout
    assert "fix: write one of 1, 2" in result.stdout
    as_json = runner.invoke(app, ["validate", KERNEL, "--set", "devices=99", "--json"])
    assert as_json.exit_code == 1
    (finding,) = json.loads(as_json.stdout)["findings"]
    assert finding["rule"] == "device-count"


def test_validate_says_what_it_could_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRNX_CRD_SCHEMAS", raising=False)
    result = runner.invoke(app, ["validate", str(EXAMPLES / "train.yaml"), "--strict"])
    assert result.exit_code == 0
    assert "1 manifests hold: JobSet/llama-fsdp" in result.stdout
    thing = "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\n"
    result = runner.invoke(app, ["validate", "-"], input=thing)
    assert result.exit_code == 1
    assert "no schema of Thing/a here" in result.stdout
    assert "error: [unchecked] Thing/a" in result.stdout
    result = runner.invoke(app, ["validate", "-", "--allow-unchecked"], input=thing)
    assert result.exit_code == 0
    assert "advice: [unchecked] Thing/a" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["render", KERNEL, "--set", "x"], "", "--set"),
        (["render", "-"], "a: 1\n---\nb: 1\n", "exactly one"),
        (["render", KERNEL, "--set", "image=trnx:latest", "--pod"], "", "pinned-image"),
        (["validate", "-", "--set", "a=1"], "apiVersion: v1\nkind: Pod\n", "job files"),
        (["validate", KERNEL, "--kubernetes", "0.9"], "", "no schemas"),
    ],
)
def test_named_errors(arguments: list[str], text: str, message: str) -> None:
    result = runner.invoke(app, arguments, input=text)
    assert isinstance(result.exception, EksError)
    assert message in str(result.exception)


def test_list_shows_every_rule() -> None:
    listing = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert listing["rules"] == RULES
    assert listing["kinds"]["train"] == ["jobset", "job", "trainjob"]
    table = runner.invoke(app, ["list"]).stdout
    assert all(name in table for name in ("trn2.48xlarge", "requests-equal-limits", "dra"))


def test_trnx_eks_reaches_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trnx", "eks", "render", KERNEL, "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["manifests"][0]["kind"] == "Job"
    monkeypatch.setattr(sys, "argv", ["trnx", "eks", "render", KERNEL, "--set", "nodes=0"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "trnx: JobRefusedError: 1 problem\n[job-file] nodes" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["error"], told["findings"][0]["field"]) == ("JobRefusedError", "nodes")


WITHOUT_EXTRA = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"yaml", "jsonschema", "kubernetes_validate"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from trnx import cli
sys.argv = ["trnx", *sys.argv[1:]]
cli.main()
"""


def test_trnx_works_without_the_extra_and_says_how_to_install_it() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_EXTRA, *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    shown = run("--help")
    assert shown.returncode == 0, shown.stderr
    assert "eks" in shown.stdout
    refused = run("eks", "list")
    assert refused.returncode == 1
    assert "MissingExtraError" in refused.stderr
    assert "pip install 'trnx[eks]'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_errors_have_one_root() -> None:
    assert issubclass(EksError, TrnxError)


def _commands(text: str) -> list[list[str]]:
    lines = re.findall(r"^ {4,}(\S.*)$", text, re.MULTILINE)
    parts = [part.strip() for line in lines for part in line.split(" | ")]
    return [shlex.split(part) for part in parts if part.startswith("trnx ")]


def _names() -> set[str]:
    return set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def _options(command: str) -> str:
    shown = runner.invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    return str(shown.stdout)


def test_every_command_of_the_guide_exists() -> None:
    text = (ROOT / "docs/eks.md").read_text()
    commands = _commands(text)
    in_tables = re.findall(
        r"^\| `([a-z-]+)` \|", text[: text.index("## The job file")], re.MULTILINE
    )
    assert set(in_tables) == _names()
    assert {command[2] for command in commands} == _names() - {"instance"}
    for command in commands:
        assert command[:2] == ["trnx", "eks"]
        shown = _options(command[2])
        for word in command[3:]:
            if word.startswith("-") and word != "-":
                assert re.search(rf"(^|\s){word}\b", shown), (command, word)


def test_options_that_the_guide_s_table_names_exist() -> None:
    text = (ROOT / "docs/eks.md").read_text()
    for name, row in re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", text, re.MULTILINE):
        if name in _names() and name != "warm-cache":
            for option in re.findall(r"`(--?[a-z-]+)[` ]", row):
                assert option in _options(name), (name, option)


def test_every_path_of_the_guide_exists() -> None:
    text = (ROOT / "docs/eks.md").read_text()
    paths = set(re.findall(r"scripts/[\w./-]*\w", text))
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", sorted({"render", "status", "logs", "delete", "doctor", "submit"}))
def test_every_command_prints_json(name: str) -> None:
    assert "--json" in _options(name)


def test_prerequisites_hold(custom_schemas: Path) -> None:  # noqa: ARG001
    for path in sorted((ROOT / "scripts/eks/prerequisites").glob("*.yaml")):
        result = runner.invoke(app, ["validate", str(path), "--json"])
        report = json.loads(result.stdout)
        assert report["findings"] == []
        # eksctl's own file is no manifest of a cluster's.
        assert report["unchecked"] == (["ClusterConfig/trnx"] if path.stem == "eksctl" else [])
    (cluster,) = yaml.safe_load_all((ROOT / "scripts/eks/prerequisites/eksctl.yaml").read_text())
    group = cluster["managedNodeGroups"][-1]
    assert len(group["availabilityZones"]) == 1
    assert group["efaEnabled"] is True
    assert group["taints"][0]["key"] == "aws.amazon.com/neuron"


def test_the_guide_names_every_rule_and_key() -> None:
    from trnx.eks.model import InstanceFacts, TrnxJob, Volume

    text = (ROOT / "docs/eks.md").read_text()
    models = (TrnxJob, Volume, InstanceFacts)
    names = [*RULES, *(field for model in models for field in model.model_fields)]
    assert [name for name in names if f"`{name}`" not in text] == []
