"""Job files that are broken in one place: refused, with field, rule and fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trnx.eks.errors import JobRefusedError, YamlError
from trnx.eks.loading import job_from_data
from trnx.eks.validate import render_checked

MakeJob = Callable[..., dict[str, Any]]
VOLUME = {"name": "data", "claim": "trnx-fsx", "mount": "/data"}
FACTS = {"devices": 4, "physical_cores_per_device": 8, "default_lnc": 2, "efa": 4}
GIVEN = {"instance_facts": FACTS}
ODD = {**FACTS, "physical_cores_per_device": 3}
TAKEN = {"app.kubernetes.io/name": "x"}
SDK_33 = "r.example.com/trnx:1-sdk2.33.0"

# (kind, changes, rule, what the field starts with or holds)
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("train", {"nmae": "x"}, "job-file", "nmae"),
    ("train", {"kind": "trian"}, "job-file", "kind"),
    ("train", {"image": None}, "job-file", "image"),
    ("train", {"command": None}, "job-file", "command"),
    ("train", {"command": []}, "job-file", "command"),
    ("train", {"command": "train.py"}, "job-file", "command"),
    ("train", {"command": ["train.py", 3]}, "job-file", "command.1"),
    ("train", {"nodes": 0}, "job-file", "nodes"),
    ("train", {"nodes": "2"}, "job-file", "nodes"),
    ("train", {"nodes": True}, "job-file", "nodes"),
    ("train", {"lnc": 3}, "job-file", "lnc"),
    ("train", {"flavour": "plugin"}, "job-file", "flavour"),
    ("train", {"operator": "mpijob"}, "job-file", "operator"),
    ("train", {"name": "Job_1"}, "job-file", "name"),
    ("train", {"name": "1job"}, "job-file", "name"),
    ("train", {"name": "j" * 41}, "job-file", "name"),
    ("train", {"namespace": "a.b"}, "job-file", "namespace"),
    ("train", {"env": {"A": 1}}, "job-file", "env.A"),
    ("train", {"env": {"1A": "x"}}, "job-file", "env.1A"),
    ("train", {"memory": "64 GB"}, "job-file", "memory"),
    ("train", {"cpu": "0"}, "job-file", "cpu"),
    ("train", {"cache": "data/neff"}, "job-file", "cache"),
    ("train", {"cache": "s3://bucket/neff"}, "job-file", "cache"),
    ("train", {"volumes": [{"name": "data", "mount": "/data"}]}, "job-file", "volumes.0.claim"),
    ("train", {"volumes": [{**VOLUME, "pvc": "x"}]}, "job-file", "volumes.0.pvc"),
    ("serve", {"port": 0}, "job-file", "port"),
    ("train", {"instance": "trn2.24xlarge"}, "unknown-instance", "instance"),
    ("train", {"instance": "p5.48xlarge"}, "unknown-instance", "instance"),
    ("train", {"instance": "p5.48xlarge", **GIVEN}, "unknown-instance", "instance"),
    ("train", {"instance": "trn9.large"}, "unknown-instance", "instance"),
    ("train", GIVEN, "instance-facts", "instance_facts"),
    (
        "train",
        {"instance": "trn9.large", "instance_facts": ODD},
        "instance-facts",
        "physical_cores",
    ),
    ("train", {"instance": "trn9.large", **GIVEN}, "size", "memory"),
    ("train", {"instance_facts": {**FACTS, "cores": 4}}, "job-file", "instance_facts.cores"),
    ("train", {"instance_facts": {"devices": 1}}, "job-file", "instance_facts.efa"),
    ("train", {"grace_seconds": 30}, "grace", "grace_seconds"),
    ("train", {"env": {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}}, "owned-env", "env."),
    ("train", {"env": {"HF_TOKEN": "hf_abc"}}, "plain-secret", "HF_TOKEN"),
    ("serve", {"env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "plain-secret", "AWS_SECRET_ACCESS_KEY"),
    ("train", {"secrets": ["Not A Name"]}, "job-file", "secrets.0"),
    ("train", {"secrets": "hf"}, "job-file", "secrets"),
    ("train", {"zone": "US West"}, "job-file", "zone"),
    ("train", {"cache_s3": "https://bucket/x"}, "job-file", "cache_s3"),
    ("train", {"cache_s3": "s3://b"}, "job-file", "cache_s3"),
    ("serve", {"ready_path": "ready"}, "job-file", "ready_path"),
    ("train", {"command": ["t.py", "--checkpoint-dir=/ckpt"]}, "checkpoint", "command.1"),
    ("train", {"command": ["t.py", "--ckpt-dir", "/ckpt"]}, "checkpoint", "command.2"),
    (
        "train",
        {
            "command": ["t.py", "--checkpoint-dir=/w/ckpt"],
            "volumes": [VOLUME, {**VOLUME, "name": "w", "mount": "/w", "driver": "s3.csi.aws.com"}],
        },
        "checkpoint",
        "command.1",
    ),
    ("train", {"overrides": {"Job": {}}}, "overrides", "overrides.Job"),
    ("train", {"overrides": {"JobSet": {"kind": "Job"}}}, "overrides", "JobSet.kind"),
    ("train", {"overrides": {"JobSet": 3}}, "job-file", "overrides.JobSet"),
    ("train", {"overrides": {"JobSet": {"metadata": {"name": "x"}}}}, "overrides", "metadata.name"),
    ("serve", {"overrides": {"Service": {"metadata": {"labels": TAKEN}}}}, "overrides", "labels"),
    ("kernel", {"overrides": {"Job": {"spec": {"suspend": True}}}}, "suspended", "spec.suspend"),
    ("kernel", {"operator": "trainjob"}, "operator", "operator"),
    ("serve", {"operator": "job"}, "operator", "operator"),
    ("train", {"image": "Not An Image"}, "image", "image"),
    ("train", {"sdk": "latest"}, "image", "sdk"),
    ("train", {"image": "r.example.com/trnx:latest"}, "pinned-image", "image"),
    ("train", {"image": "r.example.com/trnx"}, "pinned-image", "image"),
    ("kernel", {"instance": "trn1.2xlarge", "image": SDK_33}, "sdk-trn1", "image"),
    ("kernel", {"instance": "trn1.2xlarge", "sdk": "2.32"}, "sdk-trn1", "image"),
    ("kernel", {"instance": "trn1.2xlarge", "lnc": 2}, "lnc", "lnc"),
    ("kernel", {"devices": 0}, "device-count", "devices"),
    ("kernel", {"devices": 17}, "device-count", "devices"),
    ("kernel", {"devices": 2, "instance": "trn1.32xlarge"}, "device-count", "devices"),
    ("kernel", {"devices": 2, "flavour": "dra"}, "device-count", "devices"),
    ("kernel", {"nodes": 2}, "multi-node", "nodes"),
    ("train", {"nodes": 2, "devices": 8}, "multi-node", "devices"),
    ("train", {"nodes": 2, "instance": "trn1.2xlarge"}, "efa", "nodes"),
    ("train", {"nproc": 32}, "nproc", "nproc"),
    ("train", {"nproc": 64, "lnc": 1}, "nproc", "nproc"),
    ("kernel", {"nproc": 4}, "nproc", "nproc"),
    ("train", {"shards": 2}, "kind", "shards"),
    ("kernel", {"replicas": 2}, "kind", "replicas"),
    ("serve", {"deadline_seconds": 60}, "kind", "deadline_seconds"),
    ("kernel", {"instance": "trn2.3xlarge", "memory": "8Gi"}, "size", "cpu"),
    ("kernel", {"cpu": "500"}, "size", "cpu"),
    ("kernel", {"memory": "4Ti"}, "size", "memory"),
    ("serve", {"memory": "64Gi", "shm": "64Gi"}, "size", "shm"),
    ("train", {"command": ["torchrun", "train.py"]}, "command", "command.0"),
    ("train", {"command": ["python3", "train.py"]}, "command", "command.0"),
    ("train", {"env": {"NEURON_LOGICAL_NC_CONFIG": "1"}}, "owned-env", "env."),
    ("train", {"env": {"FI_EFA_FORK_SAFE": "1"}}, "fork-safe", "FI_EFA_FORK_SAFE"),
    ("train", {"env": {"NCCL_DEBUG": "INFO"}}, "foreign-env", "NCCL_DEBUG"),
    ("train", {"env": {"NEURON_RT_NUM_CORES": "4"}}, "runtime-env", "NEURON_RT_NUM_CORES"),
    ("train", {"env": {"PET_NNODES": "2"}, "operator": "trainjob"}, "reserved-env", "PET_NNODES"),
    ("train", {"volumes": [VOLUME, {**VOLUME, "mount": "/b"}]}, "volumes", "volumes.1.name"),
    ("train", {"volumes": [VOLUME, {**VOLUME, "name": "b"}]}, "volumes", "volumes.1.mount"),
    ("train", {"volumes": [VOLUME, {**VOLUME, "name": "dshm"}]}, "volumes", "volumes.1.name"),
    (
        "train",
        {"nodes": 2, "volumes": [{**VOLUME, "access_mode": "ReadWriteOnce"}]},
        "access-mode",
        "volumes.0",
    ),
    ("train", {"volumes": [{**VOLUME, "access_mode": "ReadOnlyMany"}]}, "access-mode", "volumes.0"),
    ("train", {"volumes": [{**VOLUME, "mount": "/data/../x"}]}, "volumes", "volumes.0.mount"),
    ("train", {"volumes": [{**VOLUME, "mount": "/data/./x"}]}, "volumes", "volumes.0.mount"),
    ("train", {"volumes": [VOLUME, {**VOLUME, "name": "b", "mount": "/usr"}]}, "volumes", "mount"),
    ("train", {"volumes": [VOLUME, {**VOLUME, "name": "b", "mount": "/proc/a"}]}, "volumes", "1.m"),
    ("train", {"cache": "/data/../neff"}, "volumes", "cache"),
    ("warm-cache", {"cache": None}, "cache", "cache"),
    ("train", {"cache": "/other"}, "cache", "cache"),
    ("train", {"cache": "/database"}, "cache", "cache"),
    ("train", {"volumes": [{**VOLUME, "read_only": True}]}, "cache", "volumes.0.read_only"),
    (
        "train",
        {"volumes": [{**VOLUME, "driver": "s3.csi.aws.com"}]},
        "s3-cache",
        "volumes.0.driver",
    ),
]


@pytest.mark.parametrize("mount", ["/system-data", "/devices", "/home/me", "/tmp", "/a..b/.c"])
def test_folders_of_the_user_can_be_mounted(make_job: MakeJob, mount: str) -> None:
    volumes = [VOLUME, {**VOLUME, "name": "b", "mount": mount}]
    assert render_checked(job_from_data(make_job("kernel", volumes=volumes)))


@pytest.mark.parametrize(("kind", "changes", "rule", "field"), CASES)
def test_refused(
    make_job: MakeJob, kind: str, changes: dict[str, Any], rule: str, field: str
) -> None:
    with pytest.raises(JobRefusedError) as caught:
        render_checked(job_from_data(make_job(**{"kind": kind, **changes})))
    found = [finding for finding in caught.value.findings if finding.rule == rule]
    assert found, caught.value
    assert any(field in finding.field for finding in found), found
    for finding in caught.value.findings:
        assert finding.message
        assert len(finding.fix) > 10
        assert f"[{finding.rule}] {finding.field}" in str(caught.value)
        assert f"fix: {finding.fix}" in str(caught.value)


def test_all_problems_are_told_at_once(make_job: MakeJob) -> None:
    with pytest.raises(JobRefusedError, match="2 problems"):
        job_from_data(make_job(nodes=0, lnc=7))


@pytest.mark.parametrize("data", [None, [], "kind: train"])
def test_what_is_no_mapping(data: object) -> None:
    with pytest.raises(JobRefusedError, match="no mapping"):
        job_from_data(data)


def test_set_changes_keys(make_job: MakeJob) -> None:
    settings = ["nodes=2", "env.STEPS=10", "volumes.0.mount=/d", "cache=/d/neff", "resume=[]"]
    job = job_from_data(make_job(), settings)
    assert (job.nodes, job.env, job.volumes[0].mount) == (2, {"STEPS": "10"}, "/d")
    assert job.resume == []


@pytest.mark.parametrize(
    "setting", ["nodes", "=2", "a..b=1", "volumes.7.mount=/d", "name.x=1", "nodes=[", "volumes.x=1"]
)
def test_set_that_cannot_be_read(make_job: MakeJob, setting: str) -> None:
    with pytest.raises(YamlError, match="--set"):
        job_from_data(make_job(), [setting])


def test_values_of_variables_are_never_shown(make_job: MakeJob) -> None:
    for env in ({"HF_TOKEN": 12345}, {"HF_TOKEN": ["12345"]}):
        with pytest.raises(JobRefusedError) as caught:
            job_from_data(make_job(env=env))
        assert "12345" not in str(caught.value)
    with pytest.raises(JobRefusedError) as caught:
        render_checked(job_from_data(make_job(env={"HF_TOKEN": "very-secret"})))
    assert "very-secret" not in str(caught.value)
