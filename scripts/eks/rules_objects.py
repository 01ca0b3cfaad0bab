"""What the API server refuses of objects around pods though their schemas take it.

Source: Kubernetes' API reference, and its validation of Job, CronJob, Service, PodDisruptionBudget
and HorizontalPodAutoscaler; JobSet's webhook.
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
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SCHEDULE = re.compile(r"@(yearly|annually|monthly|weekly|daily|midnight|hourly|every \S+)")
_FIVE = re.compile(r"(TZ=\S+ |CRON_TZ=\S+ )?[\d*/,?A-Za-z-]+( +[\d*/,?A-Za-z-]+){4}")
Problem = tuple[str, str, str]


def _job(place: str, spec: Manifest) -> Iterator[Problem]:
    indexed = text(spec, "completionMode") == "Indexed"
    if indexed and "completions" not in spec and "parallelism" in spec:
        yield f"{place}.completions", "is missing: the Job is Indexed", "write the number of pods"
    for key in ("backoffLimitPerIndex", "maxFailedIndexes"):
        if spec.get(key) is not None and not indexed:
            fix = "write completionMode: Indexed"
            yield f"{place}.{key}", "is for Indexed Jobs alone", fix


def _jobset(manifest: Manifest) -> Iterator[Problem]:
    spec = mapping(manifest, "spec")
    names = [text(job, "name") for job in items(spec, "replicatedJobs")]
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
    yield from _job("spec.jobTemplate.spec", mapping(manifest, "spec", "jobTemplate", "spec"))


def _budget(manifest: Manifest) -> Iterator[Problem]:
    spec = mapping(manifest, "spec")
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield "spec", "has both minAvailable and maxUnavailable", "remove one of them"


def _scaler(manifest: Manifest) -> Iterator[Problem]:
    spec = mapping(manifest, "spec")
    least, most = whole(spec.get("minReplicas")), whole(spec.get("maxReplicas"))
    if least is not None and most is not None and least > most:
        yield "spec.minReplicas", "is more than maxReplicas", "write at most that many"


_KINDS = {
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
