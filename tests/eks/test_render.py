"""Every manifest that can be rendered holds against schemas and rules, and stays as it is.

`TRNX_UPDATE_GOLDEN=1` rewrites the golden files.
"""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnx.eks import documents
from trnx.eks.errors import JobRefusedError
from trnx.eks.loading import job_from_data, load_job
from trnx.eks.model import OPERATORS, Flavour, Kind, Operator, TrnxJob
from trnx.eks.render import render, render_pod
from trnx.eks.rules_security import restricted_problems
from trnx.eks.validate import check_rules, render_checked, validate

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "scripts/eks/examples").glob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
CUSTOM = (Operator.JOBSET, Operator.TRAINJOB)

MakeJob = Callable[..., dict[str, Any]]
# What makes a job of each kind wide.
WIDE = {
    Kind.KERNEL: {"devices": 4},
    Kind.TRAIN: {"nodes": 4},
    Kind.WARM_CACHE: {"shards": 4},
    Kind.SERVE: {"replicas": 2},
}
COMBINATIONS = [
    (kind, operator, flavour)
    for kind, operators in OPERATORS.items()
    for operator in operators
    for flavour in Flavour
]
IDS = ["-".join(combination) for combination in COMBINATIONS]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("rendering and validating contact nothing")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(("kind", "operator", "flavour"), COMBINATIONS, ids=IDS)
@pytest.mark.parametrize(
    ("instance", "wide"),
    [
        ("trn1.2xlarge", False),
        ("trn1.32xlarge", True),
        ("trn1n.32xlarge", True),
        ("trn2.3xlarge", True),
        ("trn2.48xlarge", False),
        ("trn2u.48xlarge", True),
    ],
)
def test_every_combination_holds(
    make_job: MakeJob,
    request: pytest.FixtureRequest,
    kind: Kind,
    operator: Operator,
    flavour: Flavour,
    instance: str,
    wide: bool,
) -> None:
    if operator in CUSTOM:
        request.getfixturevalue("custom_schemas")
    changes: dict[str, Any] = dict(WIDE[kind]) if wide else {}
    if instance == "trn2.3xlarge":
        # One device, and sizes that are not published.
        changes |= {"cpu": "8", "memory": "64Gi", "devices": None}
    data = make_job(
        kind,
        operator=operator,
        flavour=flavour,
        instance=instance,
        queue="q" if wide else None,
        **changes,
    )
    manifests = render_checked(job_from_data(data))
    report = validate(manifests, "1.34")
    assert report.findings == ()
    assert report.unchecked == ()
    assert len(report.manifests) == len(manifests) > 0


# A value other than the default for every key that shapes manifests; `None`: leave it out.
EVERY_KEY: dict[str, list[Any]] = {
    "namespace": ["team"],
    "sdk": ["2.33"],
    "lnc": [1, 2],
    "cpu": ["8"],
    "memory": ["64Gi"],
    "shm": ["4Gi"],
    "env": [{"STEPS": "10"}],
    "secrets": [["hf-token"]],
    "volumes": [
        [{"name": "data", "claim": "trnx-fsx", "mount": "/data", "driver": "fsx.csi.aws.com"}],
        [
            {"name": "data", "claim": "trnx-fsx", "mount": "/data"},
            {"name": "in", "claim": "text", "mount": "/in", "read_only": True},
        ],
    ],
    "cache": [None],
    "cache_s3": ["s3://bucket/neff"],
    "zone": ["us-west-2d"],
    "queue": ["team"],
    "deadline_seconds": [3600],
    "keep_seconds": [60],
    "grace_seconds": [300],
    "service_account": ["robot"],
    "restarts": [0],
    "resume": [[], ["--continue"]],
    "instance": ["trn2u.48xlarge"],
    "image": ["r.example.com/trnx@sha256:" + "0" * 64],
    "nodes": [2],
    "devices": [1, 16],
    "nproc": [64],
    "shards": [3],
    "replicas": [3],
    "port": [9000],
    "startup_seconds": [60],
    "health_path": ["/live"],
    "ready_path": ["/ready"],
}
_NOT_ALONE = {"kind", "name", "command", "operator", "flavour", "instance_facts", "overrides"}


def _pod_specs(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            return [value]
        return [spec for part in value.values() for spec in _pod_specs(part)]
    return [spec for part in value for spec in _pod_specs(part)] if isinstance(value, list) else []


def _all_hold(manifests: list[Any]) -> None:
    """No finding of any level, and every pod one that a `restricted` namespace admits."""
    report = validate(manifests, "1.34")
    assert (report.findings, report.unchecked) == ((), ())
    specs = _pod_specs(manifests)
    assert specs
    for spec in specs:
        assert restricted_problems(spec) == []
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_key_is_there() -> None:
    assert set(EVERY_KEY) | _NOT_ALONE == set(TrnxJob.model_fields)


# Keys that only some kinds of jobs take.
KINDS_OF_KEY = {
    "cache": set(Kind) - {Kind.WARM_CACHE},
    "deadline_seconds": set(Kind) - {Kind.SERVE},
    "keep_seconds": set(Kind) - {Kind.SERVE},
    "restarts": set(Kind) - {Kind.SERVE},
    "nodes": {Kind.TRAIN},
    "nproc": {Kind.TRAIN},
    "resume": {Kind.TRAIN},
    "shards": {Kind.WARM_CACHE},
    "replicas": {Kind.SERVE},
    "port": {Kind.SERVE},
    "startup_seconds": {Kind.SERVE},
    "health_path": {Kind.SERVE},
    "ready_path": {Kind.SERVE},
}
# What the operator has no field for.
OPERATORS_WITHOUT = {"keep_seconds": {Operator.TRAINJOB}}


@pytest.mark.parametrize("key", EVERY_KEY)
def test_every_key_keeps_pods_restricted_and_strictly_valid(make_job: MakeJob, key: str) -> None:
    for kind in KINDS_OF_KEY.get(key, set(Kind)):
        for operator in set(OPERATORS[kind]) - OPERATORS_WITHOUT.get(key, set()):
            for value in EVERY_KEY[key]:
                data = make_job(kind, operator=operator, **{key: value})
                if key == "sdk":
                    data["image"] = "r.example.com/trnx@sha256:" + "0" * 64
                _all_hold(render_checked(job_from_data(data)))


# They may say what follows from other keys.
FOLLOWING = {"volumes", "instance", "devices", "nproc", "cache"}


@pytest.mark.parametrize("key", sorted(set(EVERY_KEY) - FOLLOWING))
@pytest.mark.parametrize("kind", list(Kind))
def test_no_key_is_silently_dropped(make_job: MakeJob, kind: Kind, key: str) -> None:
    for operator in OPERATORS[kind]:
        plain = render_checked(job_from_data(make_job(kind, operator=operator)))
        assert any(
            _fields_refused(make_job(kind, operator=operator, **{key: value}), plain) >= {key}
            for value in EVERY_KEY[key]
        )


def _fields_refused(data: dict[str, Any], plain: list[Any]) -> set[str]:
    """The fields of findings that refuse the job; all keys where its manifests are not `plain`."""
    try:
        same = render_checked(job_from_data(data)) == plain
    except JobRefusedError as refused:
        return {finding.field for finding in refused.findings}
    return set() if same else set(data)


@pytest.mark.parametrize(("kind", "operator", "flavour"), COMBINATIONS, ids=IDS)
def test_golden(make_job: MakeJob, kind: Kind, operator: Operator, flavour: Flavour) -> None:
    data = make_job(kind, operator=operator, flavour=flavour, queue="trn", lnc=2, **WIDE[kind])
    text = documents.dump(render(job_from_data(data)))
    assert text == documents.dump(render(job_from_data(copy.deepcopy(data))))
    # Without a cluster to ask, `auto` is the device plugin.
    shown = Flavour.DEVICE_PLUGIN if flavour == Flavour.AUTO else flavour
    path = GOLDEN / f"{kind}-{operator}-{shown}.yaml"
    if os.environ.get("TRNX_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert documents.parse(text, "golden") == render(job_from_data(data))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_hold(path: Path, request: pytest.FixtureRequest) -> None:
    job = load_job(path)
    if job.the_operator in CUSTOM:
        request.getfixturevalue("custom_schemas")
    report = validate(render_checked(job), "1.34")
    assert (report.findings, report.unchecked) == ((), ())


def test_examples_have_every_kind_and_generation() -> None:
    jobs = [load_job(path) for path in EXAMPLES]
    assert {job.kind for job in jobs} == set(Kind)
    assert {job.facts.generation for job in jobs} == {"trn1", "trn2"}


def test_training_over_nodes_takes_all_of_them(make_job: MakeJob) -> None:
    (jobset,) = render(job_from_data(make_job(nodes=2, env={"A": "1"})))
    child = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (node,) = child["template"]["spec"]["containers"]
    assert (child["parallelism"], child["completions"]) == (2, 2)
    extended = {"aws.amazon.com/neuron": "16", "vpc.amazonaws.com/efa": "16"}
    assert extended.items() <= node["resources"]["limits"].items()
    assert "--nproc-per-node=64" in node["args"]
    assert "--master-addr=job-node-0-0.job" in node["args"]
    assert node["args"][-1] == "--resume=auto"
    assert {"name": "A", "value": "1"} in node["env"]
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 3


def test_logical_cores_set_the_number_of_processes(make_job: MakeJob) -> None:
    for lnc, count in ((1, 128), (2, 64)):
        _, trainjob = render(job_from_data(make_job(operator="trainjob", lnc=lnc)))
        assert trainjob["spec"]["trainer"]["numProcPerNode"] == count


def test_trn1_has_the_cache_of_its_sdk(make_job: MakeJob) -> None:
    (manifest,) = render(job_from_data(make_job("kernel", instance="trn1.2xlarge")))
    (main,) = manifest["spec"]["template"]["spec"]["containers"]
    assert main["env"] == [
        {"name": "TRNX_CACHE_DIR", "value": "/data/neff-cache/trnx"},
        {"name": "NEURON_COMPILE_CACHE_URL", "value": "/data/neff-cache"},
    ]


def test_one_pod_for_airflow(make_job: MakeJob) -> None:
    pod = render_pod(job_from_data(make_job("kernel", sdk="2.33")))
    assert pod["kind"] == "Pod"
    assert pod["metadata"]["annotations"]["trnx/neuron-sdk"] == "2.33"
    assert validate([pod], "1.34").findings == ()
    trainer = render_pod(job_from_data(make_job(operator="trainjob")))
    args = trainer["spec"]["containers"][0]["args"]
    assert args[:2] == ["--standalone", "--nproc-per-node=64"]
    assert check_rules([trainer]) == []


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        ("serve", {}, "kind"),
        ("train", {"nodes": 2}, "nodes"),
        ("warm-cache", {"shards": 2}, "shards"),
    ],
)
def test_what_is_no_single_pod(
    make_job: MakeJob, kind: str, changes: dict[str, int], field: str
) -> None:
    with pytest.raises(JobRefusedError) as caught:
        render_pod(job_from_data(make_job(kind, **changes)))
    (finding,) = caught.value.findings
    assert (finding.rule, finding.field) == ("one-pod", field)
