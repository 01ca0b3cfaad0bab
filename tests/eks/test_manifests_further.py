"""Further manifests as the ecosystem writes them, and what the API server refuses of such."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import manifests_of_others as others
import pytest
from manifests_of_others import (
    CPU_IMAGE,
    NEURON,
    QUEUE,
    SHM,
    SHM_MOUNT,
    TOLERATION,
    WHOLE,
    box,
    core,
    deployment,
    gang,
    job,
    job_spec,
    jobset,
    jobset_of,
    kueue,
    on_cpu,
    pod,
    replicated,
    server,
    service,
)

from trnx.eks import documents
from trnx.eks.levels import Level
from trnx.eks.validate import validate

Manifest = dict[str, Any]
ONE = {NEURON: 1}


def _one(**more: Any) -> list[Manifest]:
    return [job(pod(box(ask=ONE, **more)))]


def _web() -> Manifest:
    return deployment(pod(server()))


def _cron() -> list[Manifest]:
    spec = {"schedule": "0 3 * * 1-5", "concurrencyPolicy": "Forbid", "timeZone": "Etc/UTC"}
    return [core("CronJob", "nightly", "batch/v1", spec={**spec, "jobTemplate": _inner()})]


def _inner() -> Manifest:
    return {"spec": job_spec(pod(box(ask=ONE)))}


def _budget(**more: Any) -> list[Manifest]:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "vllm"}}, **more}
    return [core("PodDisruptionBudget", "vllm", "policy/v1", spec=spec), _web()]


def _scaled(least: int = 1) -> list[Manifest]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"}
    wanted = {"type": "Utilization", "averageUtilization": 70}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": wanted}}
    spec = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": 4, "metrics": [metric]}
    return [core("HorizontalPodAutoscaler", "vllm", "autoscaling/v2", spec=spec), _web()]


def _policy() -> list[Manifest]:
    spec = {
        "podSelector": {"matchLabels": {"app": "x"}},
        "ingress": [{"from": [{"podSelector": {}}]}],
    }
    return [core("NetworkPolicy", "efa", "networking.k8s.io/v1", spec=spec)]


def _rights() -> list[Manifest]:
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    reference = {"apiGroup": group, "kind": "Role", "name": "look"}
    return [
        core("Role", "look", f"{group}/v1", rules=[rule]),
        core("RoleBinding", "look", f"{group}/v1", roleRef=reference, subjects=[subject]),
        core("ServiceAccount", "robot"),
    ]


def _urgent() -> list[Manifest]:
    urgent = core("PriorityClass", "high", "scheduling.k8s.io/v1", value=1000, globalDefault=False)
    return [urgent, job(pod(box(ask=ONE), priorityClassName="high"))]


def _token_from_a_file() -> list[Manifest]:
    script = "export HF_TOKEN=$(cat /run/secrets/hf/token)\n: ${WANDB_API_KEY:?set it}\ntrain.py"
    return _one(command=["bash", "-c", f'{script} --hf-token "$HF_TOKEN"'])


def _names_of_no_secrets() -> list[Manifest]:
    pairs = {
        "PROMPT_TOKENS": "512",
        "SECRET_NAME": "hf",
        "PASSWORD_FILE": "/run/secrets/db",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
    }
    return _one(env=[{"name": name, "value": value} for name, value in pairs.items()])


def _downward() -> list[Manifest]:
    field = {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}
    memory = {"resourceFieldRef": {"containerName": "main", "resource": "limits.memory"}}
    resources = {"requests": {**ONE, "memory": "8Gi"}, "limits": {**ONE, "memory": "16Gi"}}
    env = [{"name": "JOB", "valueFrom": field}, {"name": "MEMORY", "valueFrom": memory}]
    return _one(env=env, resources=resources)


def _projected() -> list[Manifest]:
    spec = pod(box(ask=ONE))
    token = {"audience": "sts.amazonaws.com", "expirationSeconds": 3600, "path": "token"}
    source = {"projected": {"sources": [{"serviceAccountToken": token}]}}
    spec["volumes"].append({"name": "token", **source})
    spec["containers"][0]["volumeMounts"].append({"name": "token", "mountPath": "/var/run/token"})
    return [job(spec)]


def _sidecar() -> list[Manifest]:
    ports = [{"name": "metrics", "containerPort": 9000}]
    probe = {"httpGet": {"path": "/", "port": "metrics"}}
    proxy = {"name": "proxy", "image": CPU_IMAGE, "restartPolicy": "Always", "ports": ports}
    return [job(pod(box(ask=ONE), initContainers=[{**proxy, "readinessProbe": probe}]))]


def _line(*words: str) -> list[Manifest]:
    made = gang()
    made[1]["spec"]["template"]["spec"]["containers"][0]["command"] = list(words)
    return made


def _rendezvous(nodes: str) -> list[Manifest]:
    flags = ["--rdzv-backend=c10d", "--rdzv-endpoint=work-0.work:29500", "--rdzv-id=1"]
    return _line("torchrun", f"--nnodes={nodes}", "--nproc-per-node=64", *flags, "train.py")


def _module() -> list[Manifest]:
    flags = ["--nnodes", "2", "--nproc-per-node", "64", "--node-rank", "$(JOB_COMPLETION_INDEX)"]
    flags += ["--master-addr", "work-0.work.default.svc", "--master-port", "29500"]
    return _line("python", "-m", "torch.distributed.run", *flags, "train.py")


def _sweep() -> list[Manifest]:
    more = {"completionMode": "Indexed", "completions": 4, "parallelism": 2, "maxFailedIndexes": 2}
    made = job(pod(box(ask=ONE)), backoffLimitPerIndex=1, podReplacementPolicy="Failed", **more)
    del made["spec"]["backoffLimit"]
    return [made]


def _driver() -> list[Manifest]:
    flags = ["--nnodes=2", "--nproc-per-node=64", "--node-rank=$(JOB_COMPLETION_INDEX)"]
    line = ["torchrun", *flags, "--master-addr=train-workers-0-0.train", "train.py"]
    width = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    workers = replicated("workers", pod(box(ask=WHOLE, command=line)), 1, **width)
    driver = replicated("driver", on_cpu(box("driver", command=["python", "drive.py"])))
    ended = {"operator": "All", "targetReplicatedJobs": ["workers"]}
    order = {"startupPolicyOrder": "InOrder"}
    return [jobset([driver, workers], successPolicy=ended, startupPolicy=order)]


def _family() -> list[Manifest]:
    selector = {"karpenter.k8s.aws/instance-family": "trn2"}
    spec = pod(box(ask=ONE), on=None, nodeSelector=selector, tolerations=[dict(TOLERATION)])
    return [job(spec)]


def _topology() -> list[Manifest]:
    made = jobset_of(1, 2)
    made["metadata"]["labels"] = QUEUE
    noted = {"kueue.x-k8s.io/podset-required-topology": "topology.k8s.aws/network-node-layer-3"}
    inner = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    inner["metadata"] = {"annotations": noted}
    return [made, *kueue()]


def _limits() -> list[Manifest]:
    quota = {"hard": {"requests.aws.amazon.com/neuron": "64"}}
    bound = {"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]}
    return [core("ResourceQuota", "q", spec=quota), core("LimitRange", "l", spec=bound)]


def _stopping() -> list[Manifest]:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "sleep 5"]}}}
    return [job(pod(box(ask=ONE, lifecycle=hook), terminationGracePeriodSeconds=600))]


def _two_ports() -> list[Manifest]:
    made = service("vllm", {"app": "vllm"}, headless=False)
    first = {"name": "http", "port": 80, "targetPort": "http"}
    made["spec"]["ports"] = [first, {"name": "more", "port": 8080, "targetPort": 8000}]
    return [made, _web()]


CORRECT: dict[str, Callable[[], list[Manifest]]] = {
    "a CronJob with a time zone": _cron,
    "a disruption budget": _budget,
    "a server scaled on CPU": _scaled,
    "a network policy": _policy,
    "a Role and its binding": _rights,
    "a priority class": _urgent,
    "a token that a file holds": _token_from_a_file,
    "names that hold no secret": _names_of_no_secrets,
    "fields of the pod as variables": _downward,
    "scratch space on the node": lambda: [job(pod(box(ask={**ONE, "ephemeral-storage": "9Gi"})))],
    "a token for STS": _projected,
    "a sidecar with a port and a probe": _sidecar,
    "torchrun as a module": _module,
    "rendezvous by c10d": lambda: _rendezvous("2"),
    "an elastic rendezvous": lambda: _rendezvous("1:2"),
    "a sweep with its own tries": _sweep,
    "JobSet with a driver beside torchrun": _driver,
    "a family of types": _family,
    "topology-aware Kueue": _topology,
    "quota and limits": _limits,
    "a hook before the stop": _stopping,
    "a Service of two ports": _two_ports,
}


def _errors(manifests: list[Manifest]) -> list[tuple[str, str]]:
    read = documents.parse(documents.dump(manifests), "text")
    found = validate(read, "1.34").all_findings()
    return [(item.rule, item.field) for item in found if item.level == Level.ERROR]


@pytest.mark.parametrize("name", CORRECT)
def test_correct(name: str) -> None:
    assert _errors(CORRECT[name]()) == []


def test_none_of_them_stands_in_the_first_list() -> None:
    assert len(CORRECT) >= 20
    assert not set(CORRECT) & set(others.CORRECT)


DROP = object()
POD = "0.spec.template.spec"
BOX = f"{POD}.containers.0"


def _set(manifests: list[Any], path: str, value: Any) -> None:
    *keys, last = path.split(".")
    place: Any = manifests
    for key in keys:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if value is DROP:
        del place[last]
    else:
        place[last] = value


# (what is broken, where, value, field that is named)
BROKEN: list[tuple[Callable[[], list[Manifest]], str, Any, str]] = [
    (_cron, "0.spec.schedule", "every day", "spec.schedule"),
    (_scaled, "0.spec.minReplicas", 9, "spec.minReplicas"),
    (_budget, "0.spec.maxUnavailable", 1, "PodDisruptionBudget/vllm spec"),
    (_one, f"{BOX}.resources", {"requests": {"cpu": "4"}, "limits": {"cpu": "2"}}, "requests.cpu"),
    (_one, f"{BOX}.resources", {"limits": {**ONE, "memory": "32GB"}}, "limits.memory"),
    (_one, f"{POD}.initContainers", [{"name": "main", "image": "a:1"}], "containers"),
    (_one, f"{BOX}.volumeMounts", [dict(SHM_MOUNT), dict(SHM_MOUNT)], "volumeMounts"),
    (_one, f"{BOX}.volumeMounts", [{**SHM_MOUNT, "subPath": "../x"}], "subPath"),
    (_one, f"{POD}.volumes", [copy.deepcopy(SHM), copy.deepcopy(SHM)], "volumes"),
    (_one, f"{POD}.volumes", [{**copy.deepcopy(SHM), "hostPath": {"path": "/x"}}], "volumes.0"),
    (_one, f"{POD}.volumes", [{"name": "shm", "emptyDir": {"sizeLimit": "8GB"}}], "sizeLimit"),
    (_one, f"{BOX}.env", [{"name": "A=B", "value": "x"}], "env.0.name"),
    (
        _downward,
        f"{BOX}.env",
        [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "a.b"}}}],
        "env",
    ),
    (
        _downward,
        f"{BOX}.env",
        [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "env.0",
    ),
    (_sweep, "0.spec.completions", DROP, "spec.completions"),
    (_sweep, "0.spec.completionMode", DROP, "backoffLimitPerIndex"),
    (_one, f"{POD}.tolerations", [{**TOLERATION, "value": "true"}], "tolerations.0"),
    (_one, f"{POD}.tolerations", [{"effect": "NoSchedule"}], "tolerations.0"),
    (_one, "0.metadata.labels", {"team": "the red team"}, "metadata.labels.team"),
    (_one, "0.spec.template.metadata", {"labels": {"a": "b" * 64}}, "template.metadata.labels.a"),
    (_one, "0.metadata.namespace", "Team_A", "metadata.namespace"),
    (_one, f"{BOX}.image", "r.example.com/Trnx:1", "containers.0.image"),
    (_one, f"{BOX}.image", "<your image>", "containers.0.image"),
    (_one, "0.spec.parallelism", -1, "spec.parallelism"),
    (_one, "0.spec.ttlSecondsAfterFinished", -5, "spec.ttlSecondsAfterFinished"),
    (_one, f"{POD}.containers", [], "containers"),
    (_one, f"{POD}.securityContext", {"runAsUser": -1}, "securityContext.runAsUser"),
    (_one, f"{POD}.securityContext", {"runAsNonRoot": True, "runAsUser": 0}, "securityContext"),
    (
        _one,
        f"{BOX}.securityContext",
        {"privileged": True, "allowPrivilegeEscalation": False},
        "containers.0.securityContext",
    ),
    (_two_ports, f"1.{POD[2:]}.containers.0.ports", [{"containerPort": 70000}], "containerPort"),
    (
        _two_ports,
        f"1.{POD[2:]}.containers.0.ports",
        [{"name": "http", "containerPort": 8000}, {"name": "http", "containerPort": 8001}],
        "containers.0.ports",
    ),
    (
        _two_ports,
        f"1.{POD[2:]}.containers.0.ports",
        [{"name": "http", "containerPort": 8000}, {"name": "p" * 16, "containerPort": 8001}],
        "ports.1.name",
    ),
    (_two_ports, "0.spec.ports", [{"port": 80}, {"port": 81}], "spec.ports"),
    (_two_ports, "0.spec.ports", [{"port": 0}], "spec.ports.0.port"),
    (
        _two_ports,
        f"1.{POD[2:]}.containers.0.startupProbe.tcpSocket",
        {"port": 8000},
        "containers.0.startupProbe",
    ),
    (_driver, "0.spec.successPolicy.targetReplicatedJobs", ["worker"], "targetReplicatedJobs"),
]


@pytest.mark.parametrize(("build", "path", "value", "field"), BROKEN)
def test_broken(build: Callable[[], list[Manifest]], path: str, value: Any, field: str) -> None:
    assert _errors(build()) == []
    manifests = build()
    _set(manifests, path, value)
    assert [found for found in _errors(manifests) if found[0] == "schema" and field in found[1]]


def test_jobs_of_a_set_have_names_of_their_own() -> None:
    twice = [replicated("node", pod(box(ask=ONE))) for _ in range(2)]
    assert ("schema", "JobSet/train spec.replicatedJobs") in _errors([jobset(twice)])


def test_numbers_of_nodes_that_never_come() -> None:
    assert {rule for rule, _ in _errors(_rendezvous("4:8"))} == {"gang-size"}
    made = _driver()
    command = made[0]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    command["containers"][0]["command"][1] = "--nnodes=4"
    assert {rule for rule, _ in _errors(made)} == {"gang-size"}
