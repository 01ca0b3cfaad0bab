"""Manifests in the forms that AWS, Kubernetes, JobSet, Kueue, Kubeflow, LeaderWorkerSet and
Karpenter document, written for these tests (`forms/`), and what is wrong with changed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trnx.eks import documents
from trnx.eks.errors import Finding
from trnx.eks.levels import Level
from trnx.eks.validate import validate

FORMS = Path(__file__).parent / "forms"
DROP = "(removed)"


def found(manifests: list[Any]) -> list[Finding]:
    return validate(documents.parse(documents.dump(manifests), "text"), "1.34").all_findings()


def form(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FORMS / f"{name}.yaml").read_text()))


@pytest.mark.parametrize("name", sorted(path.stem for path in FORMS.glob("*.yaml")))
def test_correct(name: str) -> None:
    assert [item for item in found(form(name)) if item.level == Level.ERROR] == []


def change(manifests: list[Any], path: str, value: Any) -> None:
    *keys, last = path.split("|")
    place: Any = manifests
    for key in keys:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if value == DROP:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value


BROKEN: list[dict[str, Any]] = yaml.safe_load(FORMS.with_name("forms_broken.yaml").read_text())


def test_there_are_enough() -> None:
    assert len(list(FORMS.glob("*.yaml"))) >= 25
    assert len(BROKEN) >= 100


@pytest.mark.parametrize("case", BROKEN)
def test_broken(case: dict[str, Any]) -> None:
    manifests = form(case["form"])
    before = {(item.rule, item.field, item.level) for item in found(manifests)}
    for path, value in case["changes"].items():
        change(manifests, path, value)
    after = [f for f in found(manifests) if (f.rule, f.field, f.level) not in before]
    assert (case["rule"], case["level"]) in [(item.rule, str(item.level)) for item in after]
    assert all(item.field and item.fix for item in after)


def test_a_runtime_without_devices_needs_no_count_of_processes() -> None:
    """Trainer counts CPUs itself; only where the file asks for Neuron devices is it an error."""
    (job,) = form("trainjob_simple_v2")
    job["spec"]["trainer"]["resourcesPerNode"] = {"limits": {"aws.amazon.com/neuron": 16}}
    assert "trainjob-processes" in [f.rule for f in found([job]) if f.level == Level.ERROR]
    del job["spec"]["trainer"]["resourcesPerNode"]
    levels = [f.level for f in found([job]) if f.rule == "trainjob-processes"]
    assert levels == [Level.ADVICE]


def test_ports_are_those_of_the_service_in_the_same_namespace() -> None:
    manifests = form("vllm_neuron_inf2_deployment")
    other = {**manifests[2], "metadata": {"name": "neuron-vllm", "namespace": "staging"}}
    other["spec"] = {**other["spec"], "ports": [{"port": 9090}]}
    found_with_both = found([manifests[0], other, *manifests[1:]])
    assert [f for f in found_with_both if f.rule == "port"] == []


def test_a_port_by_annotation_is_no_port_of_a_service() -> None:
    manifests = form("vllm_neuron_inf2_deployment")
    change(
        manifests,
        "3|spec|rules|0|http|paths|0|backend|service|port",
        {"name": "use-annotation"},
    )
    assert [f for f in found(manifests) if f.rule == "port"] == []
