"""Manifests that are broken in one place: refused, with field, rule and fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnx.eks import rule_names
from trnx.eks.documents import Manifest
from trnx.eks.loading import job_from_data
from trnx.eks.render import render
from trnx.eks.rule_names import RULES
from trnx.eks.validate import check_rules, validate

MakeJob = Callable[..., dict[str, Any]]
Break = Callable[[list[Manifest]], object]

KERNEL: dict[str, Any] = {"kind": "kernel"}
GANG = {"kind": "train", "operator": "job", "nodes": 2}
JOBSET = {"kind": "train", "nodes": 2}
TRAINJOB = {"kind": "train", "operator": "trainjob", "nodes": 2}
DRA = {"kind": "kernel", "flavour": "dra"}
TRN1 = {"kind": "kernel", "instance": "trn1.32xlarge"}
SMALL = {"kind": "train", "operator": "job", "instance": "trn1.2xlarge"}
SERVE = {"kind": "serve"}
NEURON, EFA = "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"


def _spec(ms: list[Manifest]) -> Manifest:
    """The pod spec of a Job or a Deployment, the last or first such manifest."""
    (owner,) = (m for m in ms if m["kind"] in ("Job", "Deployment"))
    spec: Manifest = owner["spec"]["template"]["spec"]
    return spec


def _box(ms: list[Manifest]) -> Manifest:
    box: Manifest = _spec(ms)["containers"][0]
    return box


def _both(ms: list[Manifest], name: str, count: str) -> None:
    resources = _box(ms)["resources"]
    resources["requests"][name] = resources["limits"][name] = count


def _env(ms: list[Manifest], name: str, value: str) -> None:
    _box(ms).setdefault("env", []).append({"name": name, "value": value})


def _claim(mode: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "trnx-fsx"},
        "spec": {
            "accessModes": [mode],
            "volumeName": "pv",
            "resources": {"requests": {"storage": "1Ti"}},
        },
    }


def _secret() -> Manifest:
    named = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}}
    return {**named, "stringData": {"token": "x"}}


def _s3_volume() -> Manifest:
    spec = {
        "capacity": {"storage": "1Ti"},
        "accessModes": ["ReadWriteMany"],
        "csi": {"driver": "s3.csi.aws.com", "volumeHandle": "h"},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv"},
        "spec": spec,
    }


# (job, what breaks its manifests, rule, what the field holds)
CASES: list[tuple[dict[str, Any], Break, str, str]] = [
    (GANG, lambda m: _spec(m).update(terminationGracePeriodSeconds=5), "grace", "Grace"),
    (KERNEL, lambda m: _env(m, "WANDB_API_KEY", "x"), "plain-secret", "WANDB_API_KEY"),
    (KERNEL, lambda m: m.append(_secret()), "secret-in-file", "stringData.token"),
    (KERNEL, lambda m: m[0].pop("kind"), "manifest", "kind"),
    (KERNEL, lambda m: m[0].pop("apiVersion"), "manifest", "apiVersion"),
    (KERNEL, lambda m: m[0]["metadata"].pop("name"), "manifest", "name"),
    (KERNEL, lambda m: m[0]["spec"].update(backofLimit=2), "schema", "Job/job"),
    (KERNEL, lambda m: m[0]["spec"].update(backoffLimit="two"), "schema", "spec.backoffLimit"),
    (KERNEL, lambda m: _box(m).pop("name"), "schema", "containers.0"),
    (KERNEL, lambda m: _box(m).update(imagePullPolicy=3), "schema", "imagePullPolicy"),
    (KERNEL, lambda m: _spec(m)["tolerations"][0].update(op="x"), "schema", "tolerations.0"),
    (DRA, lambda m: m[0]["spec"]["spec"].update(device=1), "schema", "ResourceClaimTemplate/job"),
    (KERNEL, lambda m: m[0]["metadata"].update(name="Bad_Name"), "name", "metadata.name"),
    (KERNEL, lambda m: m[0]["metadata"].update(name="x" * 60), "name", "metadata.name"),
    (KERNEL, lambda m: m.append(m[0]), "name", "metadata.name"),
    (KERNEL, lambda m: m[0]["spec"].update(suspend=True), "suspended", "spec.suspend"),
    (
        KERNEL,
        lambda m: _box(m)["resources"]["limits"].update({NEURON: "4"}),
        "requests-equal-limits",
        "resources",
    ),
    (
        KERNEL,
        lambda m: _box(m)["resources"]["requests"].pop(NEURON),
        "requests-equal-limits",
        "resources",
    ),
    (KERNEL, lambda m: _both(m, NEURON, "0"), "requests-equal-limits", "resources"),
    (KERNEL, lambda m: _both(m, "aws.amazon.com/neuroncore", "4"), "device-resource", "requests"),
    (KERNEL, lambda m: _both(m, "aws.amazon.com/neurondevice", "1"), "device-resource", "limits"),
    (DRA, lambda m: _both(m, NEURON, "1"), "plugin-or-dra", "resourceClaims"),
    (KERNEL, lambda m: _spec(m).pop("nodeSelector"), "unknown-instance", "nodeSelector"),
    (
        KERNEL,
        lambda m: _spec(m)["nodeSelector"].update({"node.kubernetes.io/instance-type": "m5.large"}),
        "unknown-instance",
        "nodeSelector",
    ),
    (KERNEL, lambda m: _both(m, NEURON, "32"), "device-count", "Job/job"),
    (TRN1, lambda m: _both(m, NEURON, "2"), "device-count", "Job/job"),
    (
        DRA,
        lambda m: m[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"].update(count=3),
        "device-count",
        "count",
    ),
    (DRA, lambda m: m[0].update(apiVersion="resource.k8s.io/v1beta1"), "dra-version", "apiVersion"),
    (SMALL, lambda m: _both(m, EFA, "1"), "efa", "Job/job"),
    (SMALL, lambda m: m[0]["spec"].update(parallelism=2, completions=2), "efa", "Job/job"),
    (GANG, lambda m: _both(m, NEURON, "8"), "multi-node", "Job/job"),
    (GANG, lambda m: _both(m, EFA, "8"), "multi-node", "Job/job"),
    (KERNEL, lambda m: _both(m, EFA, "1"), "multi-node", "Job/job"),
    (GANG, lambda m: _box(m)["args"].__setitem__(1, "--nproc-per-node=32"), "nproc", "args"),
    (GANG, lambda m: _env(m, "NEURON_LOGICAL_NC_CONFIG", "1"), "nproc", "args"),
    (KERNEL, lambda m: _env(m, "NEURON_LOGICAL_NC_CONFIG", "3"), "lnc", "NEURON_LOGICAL_NC_CONFIG"),
    (
        TRAINJOB,
        lambda m: m[1]["spec"]["trainer"].update(numProcPerNode=32),
        "nproc",
        "numProcPerNode",
    ),
    (
        TRAINJOB,
        lambda m: m[1]["spec"]["trainer"].pop("numProcPerNode"),
        "trainjob-processes",
        "numProcPerNode",
    ),
    (
        TRAINJOB,
        lambda m: m[0]["spec"]["template"]["spec"]["replicatedJobs"][0].update(name="worker"),
        "trainjob-node",
        "replicatedJobs",
    ),
    (
        TRAINJOB,
        lambda m: m[1]["spec"]["trainer"].update(env=[{"name": "PET_NNODES", "value": "2"}]),
        "reserved-env",
        "PET_NNODES",
    ),
    (
        TRAINJOB,
        lambda m: m[1]["spec"]["trainer"]["resourcesPerNode"]["limits"].update({NEURON: "8"}),
        "requests-equal-limits",
        "spec.trainer",
    ),
    (KERNEL, lambda m: _box(m).update(image="trnx:latest"), "pinned-image", "image"),
    (KERNEL, lambda m: _box(m).update(image="r.example.com:5000/trnx"), "pinned-image", "image"),
    (TRN1, lambda m: _box(m).update(image="trnx:1-sdk2.32.0"), "sdk-trn1", "image"),
    (KERNEL, lambda m: _box(m)["volumeMounts"].pop(0), "shared-memory", "volumeMounts"),
    (KERNEL, lambda m: _spec(m)["volumes"][0].update(emptyDir={}), "shared-memory", "volumeMounts"),
    (KERNEL, lambda m: _spec(m)["volumes"].pop(), "dangling-mount", "volumeMounts"),
    (
        DRA,
        lambda m: _box(m)["resources"]["claims"][0].update(name="other"),
        "dangling-claim",
        "claims",
    ),
    (KERNEL, lambda m: _spec(m).pop("tolerations"), "toleration", "tolerations"),
    (KERNEL, lambda m: _spec(m).update(hostNetwork=True), "host-access", "hostNetwork"),
    (
        KERNEL,
        lambda m: _spec(m)["volumes"].append({"name": "d", "hostPath": {"path": "/dev/shm"}}),
        "host-access",
        "hostPath",
    ),
    (KERNEL, lambda m: _spec(m).update(restartPolicy="Always"), "restart-policy", "restartPolicy"),
    (
        KERNEL,
        lambda m: _spec(m).update(restartPolicy="OnFailure"),
        "restart-policy",
        "restartPolicy",
    ),
    (SERVE, lambda m: _spec(m).update(restartPolicy="Never"), "restart-policy", "restartPolicy"),
    (GANG, lambda m: _env(m, "FI_EFA_FORK_SAFE", "1"), "fork-safe", "FI_EFA_FORK_SAFE"),
    (
        GANG,
        lambda m: _env(m, "PYTORCH_CUDA_ALLOC_CONF", "x"),
        "foreign-env",
        "PYTORCH_CUDA_ALLOC_CONF",
    ),
    (
        GANG,
        lambda m: _env(m, "NEURON_RT_ROOT_COMM_ID", "x"),
        "runtime-env",
        "NEURON_RT_ROOT_COMM_ID",
    ),
    (GANG, lambda m: _env(m, "TORCH_NEURONX_NEFF_CACHE_DIR", "s3://b"), "s3-cache", "CACHE_DIR"),
    (GANG, lambda m: m.extend([_claim("ReadWriteMany"), _s3_volume()]), "s3-cache", "CACHE_DIR"),
    (GANG, lambda m: m.append(_claim("ReadWriteOnce")), "access-mode", "claimName"),
    (KERNEL, lambda m: m[0]["spec"].pop("podFailurePolicy"), "preemption", "podFailurePolicy"),
    (JOBSET, lambda m: m[0]["spec"]["failurePolicy"].pop("rules"), "preemption", "failurePolicy"),
    (
        SERVE,
        lambda m: m[0]["spec"]["template"]["metadata"].update(labels={}),
        "selector",
        "matchLabels",
    ),
    (SERVE, lambda m: m[1]["spec"].update(selector={"app": "x"}), "selector", "spec.selector"),
    (SERVE, lambda m: m[0]["spec"].pop("strategy"), "rollout", "maxSurge"),
]


@pytest.mark.parametrize(("changes", "break_it", "rule", "field"), CASES)
def test_refused(
    make_job: MakeJob, changes: dict[str, Any], break_it: Break, rule: str, field: str
) -> None:
    manifests = render(job_from_data(make_job(**changes)))
    assert check_rules(manifests) == []
    break_it(manifests)
    found = validate(manifests, "1.34").findings
    matching = [finding for finding in found if finding.rule == rule]
    assert matching, found
    assert any(field in finding.field for finding in matching), matching
    assert all(finding.message and len(finding.fix) > 5 for finding in found)


# (kind of the manifest, what breaks it, what the message or field holds)
CUSTOM: list[tuple[dict[str, Any], Break, str]] = [
    (
        JOBSET,
        lambda m: m[0]["spec"].update(network={"enableDNSHostname": True}),
        "enableDNSHostname",
    ),
    (JOBSET, lambda m: m[0]["spec"]["failurePolicy"].update(restartStrategy="Now"), "Now"),
    (JOBSET, lambda m: m[0]["spec"]["replicatedJobs"][0].pop("name"), "name"),
    (TRAINJOB, lambda m: m[1]["spec"]["trainer"].update(numNode=2), "numNode"),
    (TRAINJOB, lambda m: m[1]["spec"]["trainer"].update(numProcPerNode="auto"), "auto"),
    (TRAINJOB, lambda m: m[1]["spec"].pop("runtimeRef"), "runtimeRef"),
    (TRAINJOB, lambda m: m[0]["spec"]["mlPolicy"].update(numNodes="one"), "one"),
]


@pytest.mark.usefixtures("custom_schemas")
@pytest.mark.parametrize(("changes", "break_it", "shown"), CUSTOM)
def test_custom_resources_refused(
    make_job: MakeJob, changes: dict[str, Any], break_it: Break, shown: str
) -> None:
    manifests = render(job_from_data(make_job(**changes)))
    break_it(manifests)
    found = [f for f in validate(manifests, "1.34").findings if f.rule == "schema"]
    assert any(shown in finding.message for finding in found), found


# (kind of the manifest, what breaks it, field, what its own rule says)
OWN_RULES: list[tuple[dict[str, Any], Break, str, str]] = [
    (
        TRAINJOB,
        lambda m: m[1]["metadata"].update(name="a" * 64),
        "TrainJob",
        "63",
    ),
    (TRAINJOB, lambda m: m[1]["spec"].update(managedBy="me"), "spec.managedBy", "ManagedBy"),
    (
        TRAINJOB,
        lambda m: m[0]["spec"]["mlPolicy"].update(jax={}),
        "spec.mlPolicy",
        "one",
    ),
    (
        JOBSET,
        lambda m: m[0]["spec"].update(
            volumeClaimPolicies=[{"templates": [{"metadata": {"name": "a", "namespace": "b"}}]}]
        ),
        "spec.volumeClaimPolicies.0",
        "namespace",
    ),
]


@pytest.mark.usefixtures("custom_schemas")
@pytest.mark.parametrize(("changes", "break_it", "field", "said"), OWN_RULES)
def test_rules_of_custom_resources(
    make_job: MakeJob, changes: dict[str, Any], break_it: Break, field: str, said: str
) -> None:
    manifests = render(job_from_data(make_job(**changes)))
    break_it(manifests)
    found = [f for f in validate(manifests, "1.34").findings if f.rule == "cel"]
    assert any(field in finding.field for finding in found), found
    assert any(said in finding.message for finding in found), found


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [None], [[]], {"containers": [3]}])
@pytest.mark.parametrize("place", ["spec", "metadata", "template", "containers"])
def test_rules_survive_any_shape(make_job: MakeJob, value: object, place: str) -> None:
    for changes in (KERNEL, TRAINJOB, SERVE, DRA):
        manifests = render(job_from_data(make_job(**changes)))
        for manifest in manifests:
            if place in manifest:
                manifest[place] = value
            elif place in manifest["spec"]:
                manifest["spec"][place] = value
            else:
                manifest["spec"]["template"] = {"spec": {place: value}}
        assert isinstance(check_rules(manifests), list)


def test_every_rule_is_tested() -> None:
    folder = Path(__file__).parent
    cases = "".join(path.read_text() for path in folder.glob("*.py"))
    untested = [rule for rule in RULES if f'"{rule}"' not in cases]
    assert untested == []


def test_every_rule_name_is_used() -> None:
    source = Path(rule_names.__file__).parent
    files = [path for path in source.glob("*.py") if path.name != "rule_names.py"]
    code = "".join(path.read_text() for path in files)
    assert [rule for rule in RULES if f'"{rule}"' not in code] == []
