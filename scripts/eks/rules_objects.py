"""What the API server refuses of objects around pods though their schemas take it.

Source: Kubernetes' API reference, and its validation of these kinds; the webhooks of JobSet and
LeaderWorkerSet; what the operators of Kubeflow validate before they make pods.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.pod_views import Stream
from trnx.eks.reading import items, mapping, text, title, whole, words

# Seconds and counts that are 0 or more.
_NOT_NEGATIVE = (
    "activeDeadlineSeconds",
    "backoffLimit",
    "completions",
    "maxFailedIndexes",
    "minReadySeconds",
    "parallelism",
    "progressDeadlineSeconds",
    "replicas",
    "ttlSecondsAfterFinished",
)
# Why a Job failed, as its condition says.
_REASONS = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SCHEDULE = re.compile(r"@(yearly|annually|monthly|weekly|daily|midnight|hourly|every \S+)")
_FIVE = re.compile(r"(TZ=\S+ |CRON_TZ=\S+ )?[\d*/,?A-Za-z-]+( +[\d*/,?A-Za-z-]+){4}")
# Pods that are deleted when a job of Kubeflow's operators ends.
CLEAN_POD_POLICIES = ("All", "None", "Running")
_MPI_V2 = "kubeflow.org/v2beta1"
Problem = tuple[str, str, str]


def _job(place: str, spec: Manifest) -> Iterator[Problem]:
    indexed = text(spec, "completionMode") == "Indexed"
    if indexed and "completions" not in spec and "parallelism" in spec:
        yield f"{place}.completions", "is missing: the Job is Indexed", "write the number of pods"
    for key in ("backoffLimitPerIndex", "maxFailedIndexes"):
        if spec.get(key) is not None and not indexed:
            fix = "write completionMode: Indexed"
            yield f"{place}.{key}", "is for Indexed Jobs alone", fix
    yield from _job_rules(place, spec)


def _job_rules(place: str, spec: Manifest) -> Iterator[Problem]:
    """Policies of success and failure."""
    indexed = text(spec, "completionMode") == "Indexed"
    if spec.get("successPolicy") is not None and not indexed:
        yield f"{place}.successPolicy", "is for Indexed Jobs alone", "write completionMode: Indexed"
    count = whole(spec.get("completions"))
    for index, rule in enumerate(items(mapping(spec, "successPolicy"), "rules")):
        named = [int(n) for n in re.findall(r"\d+", text(rule, "succeededIndexes"))]
        if count is not None and named and max(named) >= count:
            field = f"{place}.successPolicy.rules.{index}.succeededIndexes"
            yield field, f"the last index is {count - 1}", "write indexes that the Job has"
    policy = items(mapping(spec, "podFailurePolicy"), "rules")
    pod = mapping(spec, "template", "spec")
    if policy and text(pod, "restartPolicy") == "OnFailure":
        fix = "write restartPolicy: Never"
        yield f"{place}.podFailurePolicy", "is for pods that are not restarted in place", fix
    for index, rule in enumerate(policy):
        field = f"{place}.podFailurePolicy.rules.{index}"
        if text(rule, "action") == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            yield f"{field}.action", "FailIndex needs backoffLimitPerIndex", "write it, such as 0"
        codes = mapping(rule, "onExitCodes")
        if text(codes, "operator") == "In" and "0" in words(codes, "values"):
            yield f"{field}.onExitCodes.values", "0 is no failure", "remove the 0"


def _depends(jobs: list[Manifest]) -> Iterator[Problem]:
    before: list[str] = []
    for index, job in enumerate(jobs):
        for name in (text(item, "name") for item in items(job, "dependsOn")):
            if name not in before:
                field = f"spec.replicatedJobs.{index}.dependsOn"
                message = f"no replicated job {shown_key(name)} stands before this one"
                yield field, message, "name a replicated job that is written above it"
        before.append(text(job, "name"))


def _coordinator(spec: Manifest) -> Iterator[Problem]:
    """JobSet's webhook: a replicated job, an index of its Jobs and one of a Job's pods."""
    chosen = mapping(spec, "coordinator")
    if not chosen:
        return
    jobs = {text(job, "name"): job for job in items(spec, "replicatedJobs")}
    job = jobs.get(text(chosen, "replicatedJob"))
    if job is None:
        fix = f"one of {', '.join(map(shown_key, jobs))}"
        yield "spec.coordinator.replicatedJob", "there is no such replicated job", fix
        return
    inner = mapping(job, "template", "spec")
    for key, count in (
        ("jobIndex", whole(job.get("replicas", 1))),
        ("podIndex", whole(inner.get("completions", inner.get("parallelism", 1)))),
    ):
        index = whole(chosen.get(key, 0))
        if index is not None and count is not None and index >= count:
            yield f"spec.coordinator.{key}", f"the last index is {count - 1}", "write one that is"


def _jobset(manifest: Manifest) -> Iterator[Problem]:
    spec = mapping(manifest, "spec")
    jobs = items(spec, "replicatedJobs")
    names = [text(job, "name") for job in jobs]
    yield from _depends(jobs)
    yield from _coordinator(spec)
    for index, job in enumerate(jobs):
        place = f"spec.replicatedJobs.{index}.template.spec"
        yield from _job_rules(place, mapping(job, "template", "spec"))
    for index, rule in enumerate(items(mapping(spec, "failurePolicy"), "rules")):
        for reason in words(rule, "onJobFailureReasons"):
            if reason not in _REASONS:
                field = f"spec.failurePolicy.rules.{index}.onJobFailureReasons"
                yield field, "is no reason of a failed Job", f"one of {', '.join(_REASONS)}"
    for name, count in Counter(names).items():
        if name and count > 1:
            message = f"the name {shown_key(name)} stands {count} times"
            yield "spec.replicatedJobs", message, "give each its own"
    for key in ("successPolicy", "failurePolicy"):
        rules = [mapping(spec, key), *items(mapping(spec, key), "rules")]
        named = [name for rule in rules for name in words(rule, "targetReplicatedJobs")]
        for name in named:
            if name not in names:
                message = f"there is no replicated job {shown_key(name)}"
                yield f"spec.{key}.targetReplicatedJobs", message, f"one of {', '.join(names)}"


def _service(manifest: Manifest) -> Iterator[Problem]:
    ports = items(mapping(manifest, "spec"), "ports")
    if len(ports) > 1 and not all(text(port, "name") for port in ports):
        yield "spec.ports", "several ports, and one has no name", "give each port a name"
    for index, port in enumerate(ports):
        number = whole(port.get("port"))
        if number is not None and not 1 <= number <= 65535:
            yield f"spec.ports.{index}.port", "is no port", "write a number from 1 to 65535"


def _cron(manifest: Manifest) -> Iterator[Problem]:
    schedule = text(mapping(manifest, "spec"), "schedule")
    if schedule and not (_SCHEDULE.fullmatch(schedule) or _FIVE.fullmatch(schedule.strip())):
        yield "spec.schedule", "is no schedule of cron", 'five fields, such as "0 3 * * *"'
    spec = mapping(manifest, "spec", "jobTemplate", "spec")
    yield from _job("spec.jobTemplate.spec", spec)


def _budget(manifest: Manifest) -> Iterator[Problem]:
    spec = mapping(manifest, "spec")
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield "spec", "has both minAvailable and maxUnavailable", "remove one of them"


def _scaler(manifest: Manifest) -> Iterator[Problem]:
    spec = mapping(manifest, "spec")
    least, most = whole(spec.get("minReplicas")), whole(spec.get("maxReplicas"))
    if least is not None and most is not None and least > most:
        yield "spec.minReplicas", "is more than maxReplicas", "write at most that many"


def _deployment(manifest: Manifest) -> Iterator[Problem]:
    strategy = mapping(manifest, "spec", "strategy")
    if text(strategy, "type") == "Recreate" and strategy.get("rollingUpdate") is not None:
        yield "spec.strategy.rollingUpdate", "is not for Recreate", "remove it"


def _mpi(manifest: Manifest) -> Iterator[Problem]:
    """What the operator refuses before it makes a pod."""
    spec = mapping(manifest, "spec")
    for role, replica in mapping(spec, "mpiReplicaSpecs").items():
        place = f"spec.mpiReplicaSpecs.{shown_key(role)}"
        count = mapping(replica).get("replicas", 1)
        if role == "Launcher" and whole(count) != 1:
            yield f"{place}.replicas", "is not 1", "one pod launches"
        elif role == "Worker" and whole(count) == 0:
            yield f"{place}.replicas", "is 0", "write 1 or more, or leave the Worker out"
        policy = text(mapping(replica), "restartPolicy")
        if text(manifest, "apiVersion") == _MPI_V2 and policy not in ("", "Never", "OnFailure"):
            yield f"{place}.restartPolicy", "is no policy of an MPIJob", "write Never or OnFailure"
    if "mpiReplicaSpecs" in spec and "Launcher" not in mapping(spec, "mpiReplicaSpecs"):
        yield "spec.mpiReplicaSpecs.Launcher", "is missing", "add the pod that runs mpirun"
    if text(manifest, "apiVersion") == _MPI_V2:
        policy = text(mapping(spec, "runPolicy"), "cleanPodPolicy")
        if policy and policy not in CLEAN_POD_POLICIES:
            fix = f"write one of {', '.join(CLEAN_POD_POLICIES)}"
            yield "spec.runPolicy.cleanPodPolicy", "is no word for it", fix


def _pytorch(manifest: Manifest) -> Iterator[Problem]:
    for role, replica in mapping(manifest, "spec", "pytorchReplicaSpecs").items():
        place = f"spec.pytorchReplicaSpecs.{shown_key(role)}"
        if role == "Master" and whole(mapping(replica).get("replicas", 1)) != 1:
            yield f"{place}.replicas", "there is one master alone", "write 1, and more workers"
        containers = items(mapping(replica, "template", "spec"), "containers")
        if containers and not any(text(c, "name") == "pytorch" for c in containers):
            field = f"{place}.template.spec.containers"
            yield field, "none is called pytorch: the operator refuses it", "name it pytorch"


def _group(manifest: Manifest) -> Iterator[Problem]:
    size = whole(mapping(manifest, "spec", "leaderWorkerTemplate").get("size", 1))
    if size is not None and size < 1:
        field = "spec.leaderWorkerTemplate.size"
        yield field, "is less than 1", "write the pods of a group, the leader among them"


def _binding(manifest: Manifest) -> Iterator[Problem]:
    for index, subject in enumerate(items(manifest, "subjects")):
        if text(subject, "kind") == "ServiceAccount" and not text(subject, "namespace"):
            fix = "write the account's namespace"
            yield f"subjects.{index}.namespace", "is missing", fix


def _volume(manifest: Manifest) -> Iterator[Problem]:
    if not mapping(manifest, "spec", "capacity"):
        yield "spec.capacity", "is missing", "write capacity: {storage: 1200Gi}"


def _claims(manifest: Manifest) -> Iterator[Problem]:
    devices = mapping(manifest, "spec", "spec", "devices") or mapping(manifest, "spec", "devices")
    for index, request in enumerate(items(devices, "requests")):
        exactly = mapping(request, "exactly")
        if text(exactly, "allocationMode") == "All" and exactly.get("count"):
            field = f"devices.requests.{index}.exactly.count"
            yield field, "is not for allocationMode All", "remove one of the two"


_KINDS = {
    "ClusterRoleBinding": _binding,
    "Deployment": _deployment,
    "LeaderWorkerSet": _group,
    "MPIJob": _mpi,
    "PersistentVolume": _volume,
    "PyTorchJob": _pytorch,
    "ResourceClaim": _claims,
    "ResourceClaimTemplate": _claims,
    "CronJob": _cron,
    "HorizontalPodAutoscaler": _scaler,
    "Job": lambda manifest: _job("spec", mapping(manifest, "spec")),
    "JobSet": _jobset,
    "PodDisruptionBudget": _budget,
    "Service": _service,
}


def _labels(value: Any, path: tuple[str, ...]) -> Iterator[Problem]:
    """Labels of the object and of what it makes."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _labels(item, (*path, str(index)))
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "labels" and path[-1:] == ("metadata",):
                for name, label in mapping(value, "labels").items():
                    if isinstance(label, str) and not _LABEL.fullmatch(label):
                        field = ".".join((*path, "labels", shown_key(name)))
                        fix = "letters, digits, - _ and ., at most 63; long texts are annotations"
                        yield field, "is no value of a label", fix
            elif key not in ("annotations", "data", "stringData"):
                yield from _labels(item, (*path, shown_key(key)))


def _below(manifest: Manifest) -> Iterator[Problem]:
    spec = mapping(manifest, "spec")
    for key in _NOT_NEGATIVE:
        value = spec.get(key)
        if isinstance(value, int) and value < 0:
            yield f"spec.{key}", "is less than 0", "write 0 or more"
    space = text(mapping(manifest, "metadata"), "namespace")
    if space and not _NAMESPACE.fullmatch(space):
        fix = "lower-case letters, digits and -, at most 63"
        yield "metadata.namespace", "is no name of a namespace", fix
    yield from _labels(manifest, ())


def refused_objects(stream: Stream) -> Iterator[Finding]:
    """Fields of an object that contradict each other, or hold what no such field can."""
    for manifest in stream.manifests:
        of_kind = _KINDS.get(text(manifest, "kind"))
        for field, message, fix in (*_below(manifest), *(of_kind(manifest) if of_kind else ())):
            yield Finding("schema", f"{title(manifest)} {field}", message, fix)
