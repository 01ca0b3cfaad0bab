"""Manifests that trnx did not write: 60 right ones have no error, 100 broken ones are told so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import manifests_of_others as others
import pytest
import yaml
from broken_manifests import (
    BOX,
    BROKEN,
    DROP,
    ERROR,
    GANG,
    GANGS,
    JOB,
    Edits,
    change,
)
from typer.testing import CliRunner

from trnx.eks import documents
from trnx.eks.cli import app
from trnx.eks.levels import Level
from trnx.eks.loading import load_job
from trnx.eks.render import render_pod
from trnx.eks.rule_names import RULES
from trnx.eks.rules_security import restricted_problems
from trnx.eks.validate import render_checked, validate
from trnx.eks.views import line_of

CORRECT: dict[str, Callable[[], list[dict[str, Any]]]] = others.CORRECT
ROOT = Path(__file__).resolve().parents[2]
NEURON, EFA, TYPE = others.NEURON, others.EFA, others.TYPE
runner = CliRunner()


@pytest.fixture(autouse=True)
def shipped_schemas_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRNX_CRD_SCHEMAS", raising=False)


@pytest.mark.parametrize("name", CORRECT)
def test_correct_manifests_have_no_error(name: str) -> None:
    report = validate(CORRECT[name](), "1.34")
    assert report.unchecked == ()
    assert [found for found in report.findings if found.level == ERROR] == []


def test_there_are_enough() -> None:
    assert len(CORRECT) >= 60
    assert len(BROKEN) >= 100
    assert len({(name, repr(edits)) for name, edits, *_ in BROKEN}) == len(BROKEN)


@pytest.mark.parametrize(("name", "edits", "rule", "level", "field"), BROKEN)
def test_broken_manifests_are_told(
    name: str, edits: Edits, rule: str, level: Level, field: str
) -> None:
    before = [
        found.rule for found in validate(CORRECT[name](), "1.34").findings if found.level == level
    ]
    manifests = documents.parse(documents.dump(CORRECT[name]()), "text")
    for path, value in edits.items():
        change(manifests, path, value)
    found = validate(manifests, "1.34").all_findings()
    matching = [item for item in found if (item.rule, item.level) == (rule, level)]
    assert [item for item in matching if field in item.field], found
    assert len(matching) > before.count(rule) or rule == "rollout"
    assert all(item.message and len(item.fix) > 4 and item.to_dict()["page"] for item in found)
    if level == ERROR:
        assert {item.rule for item in found if item.level == ERROR} >= {rule}


def _file(tmp_path: Path, manifests: list[dict[str, Any]]) -> Path:
    path = tmp_path / "others.yaml"
    path.write_text(documents.dump(manifests))
    return path


def test_levels_set_the_exit_status(tmp_path: Path) -> None:
    file = str(_file(tmp_path, CORRECT[JOB]()))
    assert runner.invoke(app, ["validate", file]).exit_code == 0
    strict = runner.invoke(app, ["validate", file, "--strict"])
    assert strict.exit_code == 1
    assert "warning: [preemption] Job/work spec.podFailurePolicy" in strict.stdout
    allowed = runner.invoke(app, ["validate", file, "--strict", "--allow", "preemption"])
    assert allowed.exit_code == 0, allowed.stdout
    assert "advice: [pod-security]" in allowed.stdout
    as_json = json.loads(runner.invoke(app, ["validate", file, "--strict", "--json"]).stdout)
    assert as_json["failed"] is True
    assert {(f["rule"], f["level"]) for f in as_json["findings"]} >= {("preemption", "warning")}
    assert all(f["page"] == f"docs/eks.md#{f['rule']}" for f in as_json["findings"])
    wrong = runner.invoke(app, ["validate", file, "--allow", "preemptions"])
    assert "no such rule" in str(wrong.exception)


@pytest.mark.parametrize("place", ["0.metadata.annotations", "0.spec.template.metadata"])
def test_annotations_allow_a_rule(tmp_path: Path, place: str) -> None:
    manifests = CORRECT["a test with the host's /dev/shm"]()
    said = {"trnx/allow": "host-access, preemption\nschema"}
    change(manifests, place, said if "annotations" in place else {"annotations": said})
    other = others.job(others.pod(others.box(ask={NEURON: 1})), "other")
    report = validate([*manifests, other], "1.34")
    assert [f.field.split()[0] for f in report.findings if f.rule == "preemption"] == ["Job/other"]
    assert [f for f in report.findings if f.rule == "host-access"] == []
    assert (
        runner.invoke(app, ["validate", str(_file(tmp_path, manifests)), "--strict"]).exit_code == 0
    )


def test_a_kind_without_a_schema_can_be_allowed(tmp_path: Path) -> None:
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}
    file = str(_file(tmp_path, [thing]))
    assert runner.invoke(app, ["validate", file]).exit_code == 1
    assert runner.invoke(app, ["validate", file, "--allow", "unchecked"]).exit_code == 0
    thing["metadata"] = {"name": "a", "annotations": {"trnx/allow": "unchecked"}}
    assert runner.invoke(app, ["validate", str(_file(tmp_path, [thing]))]).exit_code == 0
    as_json = runner.invoke(app, ["validate", file, "--json"])
    assert json.loads(as_json.stdout)["unchecked"] == []


def test_every_rule_has_its_level_and_its_place_in_the_guide() -> None:
    text = (ROOT / "docs/eks.md").read_text()
    listing = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    for level, rules in listing["levels"].items():
        for rule in rules:
            assert f'| <a id="{rule}"></a>`{rule}` | {level} |' in text
    assert {rule for rules in listing["levels"].values() for rule in rules} == set(RULES)


def test_github_annotations_name_the_line(tmp_path: Path) -> None:
    manifests = CORRECT[GANGS]()
    change(manifests, f"{GANG}.command.1", "--nnodes=4")
    change(
        manifests, f"{GANG}.env", [{"name": "A", "value": "b"}, {"name": "HF_TOKEN", "value": "x"}]
    )
    file = _file(tmp_path, manifests)
    result = runner.invoke(app, ["validate", str(file), "--format", "github"])
    assert result.exit_code == 1
    lines = file.read_text().splitlines()
    (gang,) = [line for line in result.stdout.splitlines() if "gang-size" in line]
    assert gang.startswith(f"::error file={file},line=")
    (secret,) = [line for line in result.stdout.splitlines() if "title=plain-secret" in line]
    number = int(secret.partition("line=")[2].partition(",")[0])
    assert lines[number - 1].strip() == "- name: HF_TOKEN"
    assert "%0Afix%3A" in gang or "%0Afix:" in gang
    assert "\n" not in gang
    assert "::warning" in result.stdout
    assert "::notice" in result.stdout


def test_sarif_has_rules_results_and_lines(tmp_path: Path) -> None:
    manifests = CORRECT[JOB]()
    change(manifests, f"{BOX}.image", "trnx:latest")
    file = _file(tmp_path, manifests)
    result = runner.invoke(app, ["validate", str(file), "--format", "sarif"])
    assert result.exit_code == 0
    log = json.loads(result.stdout)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {found["ruleId"] for found in run["results"]} == set(ids) <= set(RULES)
    (image,) = [found for found in run["results"] if found["ruleId"] == "pinned-image"]
    place = image["locations"][0]["physicalLocation"]
    line = file.read_text().splitlines()[place["region"]["startLine"] - 1]
    assert line.strip() == "- name: main"[2:] or "trnx:latest" in line
    assert image["level"] == "warning"
    assert {found["level"] for found in run["results"]} == {"warning", "note"}


def test_lines_of_lists_annotations_and_what_is_not_there() -> None:
    text = "kind: List\nitems:\n- kind: Job\n  metadata:\n    name: a\n"
    text += "    annotations:\n      x/a.b: c\n"
    assert line_of(text, "Job/a metadata.annotations.x/a.b") == 7
    assert line_of(text, "Job/a spec.template.spec") == 3
    assert line_of(text, "Job/b spec") == 3
    assert line_of("a: [", "Job/a spec") == 1
    assert line_of("kind: train\nnodes: 0\n", "nodes") == 2
    assert line_of("", "nodes") == 1


def _pods(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            return [value]
        return [pod for part in value.values() for pod in _pods(part)]
    return [pod for part in value for pod in _pods(part)] if isinstance(value, list) else []


EXAMPLES = sorted((ROOT / "scripts/eks/examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_rendered_pods_are_restricted_and_strictly_valid(path: Path, tmp_path: Path) -> None:
    manifests = render_checked(load_job(path))
    assert (
        runner.invoke(app, ["validate", str(_file(tmp_path, manifests)), "--strict"]).exit_code == 0
    )
    assert runner.invoke(app, ["validate", str(path), "--strict"]).exit_code == 0
    pods = _pods(manifests)
    assert pods
    for pod in pods:
        assert restricted_problems(pod) == []
        assert pod["automountServiceAccountToken"] is False


def test_rendered_pod_for_airflow_is_restricted() -> None:
    pod = render_pod(load_job(ROOT / "scripts/eks/examples/kernel.yaml"))
    assert restricted_problems(pod["spec"]) == []


# What Pod Security `restricted` refuses: (where in a rendered pod, value, field that is named).
NOT_RESTRICTED: list[tuple[str, Any, str]] = [
    ("0.hostNetwork", True, "hostNetwork"),
    ("0.hostPID", True, "hostPID"),
    ("0.hostIPC", True, "hostIPC"),
    ("0.volumes.0", {"name": "dshm", "hostPath": {"path": "/dev/shm"}}, "volumes.0"),
    ("0.securityContext.runAsUser", 0, "securityContext.runAsUser"),
    ("0.securityContext.runAsNonRoot", False, "securityContext.runAsNonRoot"),
    ("0.securityContext.runAsNonRoot", DROP, "containers.0.securityContext.runAsNonRoot"),
    ("0.securityContext.seccompProfile", DROP, "containers.0.securityContext.seccompProfile.type"),
    ("0.securityContext.seccompProfile.type", "Unconfined", "securityContext.seccompProfile.type"),
    ("0.securityContext.seLinuxOptions", {"type": "spc_t"}, "securityContext.seLinuxOptions"),
    (
        "0.securityContext.appArmorProfile",
        {"type": "Unconfined"},
        "securityContext.appArmorProfile",
    ),
    (
        "0.securityContext.sysctls",
        [{"name": "kernel.msgmax", "value": "1"}],
        "securityContext.sysctls",
    ),
    (
        "0.containers.0.securityContext",
        DROP,
        "containers.0.securityContext.allowPrivilegeEscalation",
    ),
    ("0.containers.0.securityContext.privileged", True, "containers.0.securityContext.privileged"),
    ("0.containers.0.securityContext.capabilities.drop", ["NET_RAW"], "capabilities.drop"),
    ("0.containers.0.securityContext.capabilities.add", ["IPC_LOCK"], "capabilities.add"),
    ("0.containers.0.securityContext.procMount", "Unmasked", "procMount"),
    ("0.containers.0.ports", [{"containerPort": 1, "hostPort": 1}], "ports.0.hostPort"),
    ("0.initContainers", [{"name": "a", "image": "b:1"}], "initContainers.0.securityContext"),
]


@pytest.mark.parametrize(("path", "value", "field"), NOT_RESTRICTED)
def test_what_restricted_refuses(path: str, value: Any, field: str) -> None:
    pods = [
        yaml.safe_load(
            yaml.safe_dump(render_pod(load_job(ROOT / "scripts/eks/examples/kernel.yaml"))["spec"])
        )
    ]
    change(pods, path, value)
    assert any(field in place for place, _ in restricted_problems(pods[0]))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pods[0]}
    assert "pod-security" in {found.rule for found in validate([pod], "1.34").findings}
