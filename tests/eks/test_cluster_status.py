"""status against an API server over HTTP: what waits or failed, why, and the fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stub_server import Cluster, status
from typer.testing import CliRunner

from trnx.eks.cli import app
from trnx.eks.cluster.causes import CAUSES
from trnx.eks.errors import AbsentError, ForbiddenError

LABELS = {"app.kubernetes.io/name": "j", "app.kubernetes.io/managed-by": "trnx-eks"}
TYPE = "node.kubernetes.io/instance-type"
NEURON, EFA = "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("quick")


def _run(*arguments: str) -> Any:
    result = runner.invoke(app, ["status", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result


def _state(name: str = "j") -> Any:
    return json.loads(_run(name, "--json").stdout)


def _workload(cluster: Cluster, plural: str = "jobs", **parts: Any) -> Any:
    labels = {**LABELS, **parts.pop("labels", {})}
    meta = {"name": "j", "namespace": "default", "labels": labels}
    return cluster.add(plural, {"metadata": meta, "spec": {}, "status": {}, **parts})


def _pod(cluster: Cluster, rank: int, phase: str, **parts: Any) -> Any:
    labels = {**LABELS, "batch.kubernetes.io/job-completion-index": str(rank)}
    name = parts.pop("name", f"j-{rank}")
    meta = {"name": name, "namespace": "default", "labels": labels, **parts.pop("meta", {})}
    resources = {"limits": {NEURON: "16", **parts.pop("limits", {})}}
    spec = {
        "nodeSelector": {TYPE: "trn2.48xlarge"},
        "containers": [{"name": "main", "resources": resources}],
        **parts.pop("spec", {}),
    }
    return cluster.add(
        "pods", {"metadata": meta, "spec": spec, "status": {"phase": phase, **parts}}
    )


def _unscheduled(message: str, reason: str = "Unschedulable") -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]


def _node(
    cluster: Cluster, name: str = "n", kind: str = "trn2.48xlarge", **allocatable: str
) -> None:
    names = {"neuron": NEURON, "efa": EFA}
    advertised = {names[key]: value for key, value in allocatable.items()}
    cluster.add(
        "nodes",
        {"metadata": {"name": name, "labels": {TYPE: kind}}, "status": {"allocatable": advertised}},
    )


def _event(cluster: Cluster, about: str, reason: str, message: str, **parts: Any) -> None:
    meta = {"name": f"e{len(cluster.objects)}", "namespace": "default"}
    event = {"metadata": meta, "involvedObject": {"name": about}, "type": "Warning"}
    cluster.add("events", {**event, "reason": reason, "message": message, **parts})


def _ended(code: int, reason: str = "Error") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"containerStatuses": [{"name": "main", "restartCount": 0, "state": state}]}


def test_running_and_succeeded(cluster: Cluster) -> None:
    _workload(cluster, "jobsets", status={"restarts": 2})
    for rank in (1, 0):
        _pod(cluster, rank, "Running", spec={"nodeName": f"ip-{rank}"})
    state = _state()
    assert (state["kind"], state["phase"], state["restarts"]) == ("JobSet", "running", 2)
    assert [(pod["rank"], pod["node"]) for pod in state["pods"]] == [(0, "ip-0"), (1, "ip-1")]
    shown = _run("j").stdout
    assert "JobSet/j in default: running (2 pods run), started again 2 times" in shown
    assert "ip-1" in shown
    cluster.objects["jobsets", "default", "j"]["status"] = {
        "conditions": [{"type": "Completed", "status": "True", "message": "done"}]
    }
    assert _state()["phase"] == "succeeded"


def test_the_outermost_workload_counts(cluster: Cluster) -> None:
    owner = {"ownerReferences": [{"controller": True, "name": "j"}]}
    _workload(cluster, "trainjobs")
    for plural in ("jobsets", "jobs"):
        item = _workload(cluster, plural, status={"restarts": 3})
        item["metadata"].update(owner)
    state = _state()
    assert (state["kind"], state["phase"], state["restarts"]) == ("TrainJob", "starting", 3)


def test_a_failing_pod(cluster: Cluster) -> None:
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m"}
    _workload(cluster, status={"failed": 4, "conditions": [failed]})
    _pod(cluster, 0, "Failed", **_ended(1))
    state = _state()
    assert (state["phase"], state["message"]) == ("failed", "BackoffLimitExceeded: m")
    (pod,) = state["pods"]
    assert (pod["state"], pod["exit_code"]) == ("failed", 1)
    (why,) = pod["why"]
    assert (why["cause"], why["message"]) == ("exit", "exit status 1")
    shown = _run("j").stdout
    assert "rank 0: exit: exit status 1\n    fix: read its last lines: trnx eks logs" in shown


ENDS = [
    (_ended(137, "OOMKilled"), "out-of-memory", "memory"),
    (_ended(137), "exit", "grace_seconds"),
    (_ended(143), "exit", "told to stop"),
    (_ended(75), "exit", "saved a checkpoint"),
    (_ended(127), "exit", "not in the image"),
    ({"reason": "Evicted", "message": "low on ephemeral-storage"}, "evicted", "disk"),
    ({"reason": "DeadlineExceeded", "message": "too long"}, "deadline", "deadline_seconds"),
    (
        {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
        "unhealthy-device",
        "cordon",
    ),
    ({"reason": "Odd", "message": "new words"}, "unknown", "describe"),
]


@pytest.mark.parametrize(("parts", "cause", "fix"), ENDS)
def test_how_pods_fail(cluster: Cluster, parts: dict[str, Any], cause: str, fix: str) -> None:
    _workload(cluster)
    _pod(cluster, 0, "Failed", **parts)
    (why,) = _state()["pods"][0]["why"]
    assert why["cause"] == cause
    assert fix in why["fix"]


def test_a_preempted_pod_is_no_failure(cluster: Cluster) -> None:
    _workload(cluster, "jobsets")
    disrupted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempting to accommodate a higher priority pod",
    }
    _pod(cluster, 0, "Failed", conditions=[disrupted], **_ended(137))
    state = _state()
    assert (state["phase"], state["pods"][0]["state"]) == ("restarting", "preempted")
    (why,) = state["pods"][0]["why"]
    assert why["cause"] == "preempted"
    assert "PreemptionByScheduler: preempting" in why["message"]
    assert "does not count against `restarts`" in why["fix"]


def test_a_pending_pod_with_events(cluster: Cluster) -> None:
    _workload(cluster)
    _pod(cluster, 0, "Pending", meta={"uid": "u0"})
    about = {"name": "j-0", "uid": "u0"}
    _event(
        cluster,
        "j-0",
        "Old",
        "persistentvolumeclaim not bound",
        lastTimestamp="2026-01-01T00:00:00Z",
    )
    _event(
        cluster,
        "j-0",
        "FailedMount",
        "MountVolume.SetUp failed: access denied",
        involvedObject=about,
        lastTimestamp="2026-11-20T00:00:00Z",
    )
    _event(
        cluster, "j-0", "FailedMount", "of an older pod", involvedObject={"name": "j-0", "uid": "x"}
    )
    (first, _) = _state()["pods"][0]["why"]
    assert first["cause"] == "mount"
    assert "access denied" in first["message"]
    assert "security group" in first["fix"]


SHORT = f"0/4 nodes are available: 4 Insufficient {NEURON}."
NO_EFA = f"0/4 nodes are available: 4 Insufficient {EFA}."
SELECTOR = "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."


@pytest.mark.parametrize(
    ("message", "nodes", "cause", "fix"),
    [
        (SHORT, [{}], "plugin-missing", "neuron-helm-chart"),
        (SHORT, [{"neuron": "8"}], "device-count", "at most 8"),
        (SHORT, [{"neuron": "16"}], "devices-taken", "wait"),
        (SHORT, [], "no-node", "NodePool"),
        (NO_EFA, [{"neuron": "16"}], "efa-missing", "aws-efa-k8s-device-plugin"),
        (NO_EFA, [{"neuron": "16", "efa": "8"}], "efa-missing", "launch template"),
        (NO_EFA, [{"neuron": "16", "efa": "16"}], "devices-taken", "wait"),
        (SELECTOR, [], "no-node", "Capacity Blocks"),
        (SELECTOR, [{"neuron": "16"}], "no-node", "overrides"),
        ('persistentvolumeclaim "fsx" not found', [], "claim-missing", "volumes.claim"),
        ("pod has unbound immediate PersistentVolumeClaims", [], "claim-pending", "storage class"),
        ("1 node(s) had volume node affinity conflict", [], "zone", "zone"),
        ("2 node(s) didn't match pod affinity rules", [{"neuron": "16"}], "zone", "`zone`"),
        ("cannot allocate all claims", [], "dra", "resourceslices"),
        ("0/3 nodes are available: 3 Insufficient memory.", [], "cpu-memory", "memory"),
        ("3 node(s) had untolerated taint {a: b}", [{"neuron": "16"}], "taint", "overrides"),
        ("something new", [], "unknown", "describe"),
    ],
)
def test_why_a_pod_is_not_scheduled(
    cluster: Cluster, message: str, nodes: list[dict[str, str]], cause: str, fix: str
) -> None:
    _workload(cluster)
    _pod(cluster, 0, "Pending", limits={EFA: "16"}, conditions=_unscheduled(message))
    _node(cluster, "other", "m5.large")
    for index, allocatable in enumerate(nodes):
        _node(cluster, f"n{index}", **allocatable)
    state = _state()
    assert state["phase"] == "pending"
    first = state["pods"][0]["why"][0]
    assert first["cause"] == cause
    assert fix in first["fix"]


def test_many_pods_with_one_cause_are_told_once(cluster: Cluster) -> None:
    _workload(cluster)
    for rank in range(3):
        _pod(cluster, rank, "Pending", conditions=_unscheduled(SHORT))
    _node(cluster)
    assert _run("j").stdout.count("neuron-helm-chart") == 1


def test_nodes_that_may_not_be_read(cluster: Cluster) -> None:
    _workload(cluster)
    _pod(cluster, 0, "Pending", conditions=_unscheduled(SHORT))
    forbidden = status(403, "Forbidden", "nodes is forbidden")
    cluster.faults.append(lambda request: forbidden if request.path.endswith("/nodes") else None)
    (why,) = _state()["pods"][0]["why"]
    assert "kubectl get nodes" in why["fix"]


def test_a_scheduler_that_nobody_runs(cluster: Cluster) -> None:
    _workload(cluster)
    _pod(cluster, 0, "Pending", spec={"schedulerName": "my-scheduler"})
    (why,) = _state()["pods"][0]["why"]
    assert why["cause"] == "scheduler-missing"
    assert "'my-scheduler'" in why["message"]


@pytest.mark.parametrize(("exists", "cause"), [(False, "claim-missing"), (True, "claim-pending")])
def test_claims_of_volumes(cluster: Cluster, exists: bool, cause: str) -> None:
    _workload(cluster)
    volume = {"name": "d", "persistentVolumeClaim": {"claimName": "fsx"}}
    _pod(cluster, 0, "Pending", spec={"volumes": [volume]})
    if exists:
        meta = {"name": "fsx", "namespace": "default"}
        cluster.add("persistentvolumeclaims", {"metadata": meta, "status": {"phase": "Pending"}})
        _event(cluster, "fsx", "ProvisioningFailed", "storageclass not found")
    (why,) = _state()["pods"][0]["why"]
    assert why["cause"] == cause
    if exists:
        assert "storageclass not found" in why["message"]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ImagePullBackOff", "image"),
        ("ErrImagePull", "image"),
        ("CreateContainerConfigError", "config"),
        ("CrashLoopBackOff", "crash"),
        ("RunContainerError", "start"),
    ],
)
def test_containers_that_wait(cluster: Cluster, reason: str, cause: str) -> None:
    _workload(cluster)
    waiting = {"waiting": {"reason": reason, "message": "said why"}}
    phase = "Running" if reason == "CrashLoopBackOff" else "Pending"
    _pod(
        cluster, 0, phase, containerStatuses=[{"name": "main", "restartCount": 3, "state": waiting}]
    )
    pod = _state()["pods"][0]
    assert pod["why"][0]["cause"] == cause
    assert "said why" in pod["why"][0]["message"]
    assert pod["restarts"] == 3


def test_kueue_holds_a_job(cluster: Cluster) -> None:
    _workload(cluster, spec={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "trn"})
    waiting = {
        "type": "QuotaReserved",
        "status": "False",
        "message": "insufficient quota for neuron",
    }
    meta = {"name": "w", "namespace": "default", "ownerReferences": [{"name": "j"}]}
    cluster.add("workloads", {"metadata": meta, "status": {"conditions": [waiting]}})
    state = _state()
    assert state["phase"] == "queued"
    (why,) = state["why"]
    assert (why["cause"], why["message"]) == ("queue", "insufficient quota for neuron")


def test_jobs_suspended_without_word_or_queue(cluster: Cluster) -> None:
    job = _workload(cluster, spec={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "trn"})
    assert "waits in the queue trn" in _state()["why"][0]["message"]
    del job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert "resume it" in _state()["why"][0]["fix"]


def test_a_gated_pod(cluster: Cluster) -> None:
    _workload(cluster, "deployments", spec={"replicas": 1})
    gate = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    _pod(cluster, 0, "Pending", spec=gate, conditions=_unscheduled("", "SchedulingGated"))
    assert _state()["pods"][0]["why"][0]["cause"] == "queue"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("pods is forbidden: exceeded quota: team", "quota"),
        ('error looking up service account ns/x: serviceaccount "x" not found', "service-account"),
        ("admission webhook denied the request", "pods-refused"),
    ],
)
def test_pods_that_could_not_be_made(cluster: Cluster, message: str, cause: str) -> None:
    _workload(cluster)
    _event(cluster, "j", "FailedCreate", message)
    state = _state()
    assert state["phase"] == "starting"
    assert state["why"][0]["cause"] == cause


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("FailedScheduling", "no instance type satisfied resources", "no-node"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up", "no-node"),
        ("FailedScaleUp", "InsufficientInstanceCapacity", "node-capacity"),
    ],
)
def test_what_autoscalers_say(cluster: Cluster, reason: str, message: str, cause: str) -> None:
    _workload(cluster)
    _pod(cluster, 0, "Pending")
    kind = "Normal" if reason == "NotTriggerScaleUp" else "Warning"
    _event(cluster, "j-0", reason, message, type=kind)
    assert _state()["pods"][0]["why"][0]["cause"] == cause


def test_a_service_that_compiles_and_one_that_gave_up(cluster: Cluster) -> None:
    service = _workload(cluster, "deployments", spec={"replicas": 2}, status={"readyReplicas": 1})
    _pod(cluster, 0, "Running", conditions=[{"type": "Ready", "status": "False"}])
    state = _state()
    assert (state["phase"], state["message"]) == ("pending", "1 of 2 replicas ready")
    assert state["pods"][0]["why"][0]["cause"] == "not-ready"
    late = {"type": "Progressing", "status": "False", "message": "deadline exceeded"}
    service["status"]["conditions"] = [late]
    assert _state()["phase"] == "failed"


def test_unknown_jobs_and_namespaces(cluster: Cluster) -> None:
    _workload(cluster)
    with pytest.raises(AbsentError, match="no job nosuch of trnx"):
        _run("nosuch")
    with pytest.raises(AbsentError, match="namespace ml has no job j"):
        _run("j", "-n", "ml")
    forbidden = status(403, "Forbidden", "pods is forbidden")
    cluster.faults.append(lambda request: forbidden if request.path.endswith("/pods") else None)
    with pytest.raises(ForbiddenError, match="pods is forbidden"):
        _run("j")


def test_kinds_that_may_not_be_read_hide_nothing_else(cluster: Cluster) -> None:
    _workload(cluster)
    forbidden = status(403, "Forbidden", "trainjobs is forbidden")
    cluster.faults.append(lambda r: forbidden if r.path.endswith("/trainjobs") else None)
    assert _state()["kind"] == "Job"
    with pytest.raises(ForbiddenError, match="trainjobs is forbidden"):
        _run("nosuch")


def test_a_cluster_without_custom_resources_and_many_pods(cluster: Cluster) -> None:
    cluster.absent |= {"trainjobs", "jobsets", "workloads"}
    cluster.page = 2
    _workload(cluster)
    for rank in range(5):
        _pod(cluster, rank, "Running")
    assert [pod["rank"] for pod in _state()["pods"]] == [0, 1, 2, 3, 4]


def test_every_cause_is_used_and_tested() -> None:
    source = Path(__file__).resolve().parents[2] / "scripts/eks/cluster"
    code = "".join(
        (source / f"{name}.py").read_text() for name in ("causes", "pending", "ended", "status")
    )
    uses = {name for name in CAUSES if code.count(f'"{name}"') > 1}
    assert uses == set(CAUSES)
    tests = Path(__file__).read_text()
    assert [name for name in CAUSES if f'"{name}"' not in tests] == []
