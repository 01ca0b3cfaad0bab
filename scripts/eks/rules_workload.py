"""Rules about whole manifests: names, queueing, selectors, restarts, what Trainer expects."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trnx.eks.documents import Manifest
from trnx.eks.errors import Finding
from trnx.eks.pod_views import PodView, Stream, items, mapping, text, title, whole, words
from trnx.eks.rules_job import SHORTEST_GRACE

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# Kinds whose name becomes part of pods' DNS names, and how long a name controllers can extend.
_LONGEST = {"Job": 52, "JobSet": 40, "TrainJob": 40, "Deployment": 52, "Service": 63}
_QUEUED = ("Job", "JobSet", "TrainJob", "MPIJob", "PyTorchJob")


def names(stream: Stream) -> Iterator[Finding]:
    """Names are DNS labels, short enough for what controllers append; none stands twice."""
    seen: set[tuple[str, str, str]] = set()
    for manifest in stream.manifests:
        kind, meta = text(manifest, "kind"), mapping(manifest, "metadata")
        name = text(meta, "name")
        longest = _LONGEST.get(kind)
        if longest and (len(name) > longest or not _DNS_LABEL.fullmatch(name)):
            yield Finding(
                "name",
                f"{title(manifest)} metadata.name",
                f"{name!r} is no DNS label of at most {longest} characters",
                "take lower-case letters, digits and '-', a letter first, and shorten it",
            )
        key = (kind, text(meta, "namespace"), name)
        if key in seen:
            yield Finding(
                "name",
                f"{title(manifest)} metadata.name",
                "stands twice; the second one replaces the first one",
                "give one of the two another name",
            )
        seen.add(key)


def not_suspended(stream: Stream) -> Iterator[Finding]:
    """Kueue suspends and admits by itself; without Kueue a suspended job never starts."""
    for manifest in stream.of_kind(*_QUEUED):
        if mapping(manifest, "spec").get("suspend") is True:
            yield Finding(
                "suspended",
                f"{title(manifest)} spec.suspend",
                "the job is suspended, and nothing but Kueue would ever start it",
                "remove suspend; the label kueue.x-k8s.io/queue-name is all that Kueue needs",
            )


def trainer_contract(stream: Stream) -> Iterator[Finding]:
    """Trainer v2 knows no Neuron devices, and goes by the name `node`."""
    for manifest in stream.of_kind("TrainJob"):
        if mapping(manifest, "spec", "trainer").get("numProcPerNode") is None:
            yield Finding(
                "trainjob-processes",
                f"{title(manifest)} spec.trainer.numProcPerNode",
                "missing: Trainer counts only resources named gpu, and else starts a process "
                "for each CPU",
                "write the number of logical cores of the pod's devices, such as 64",
            )
    for manifest in stream.of_kind("TrainingRuntime", "ClusterTrainingRuntime"):
        jobs = items(mapping(manifest, "spec", "template", "spec"), "replicatedJobs")
        steps = {text(job, "name"): job for job in jobs}
        node = mapping(steps.get("node"), "template", "spec", "template", "spec")
        if not any(text(c, "name") == "node" for c in items(node, "containers")):
            yield Finding(
                "trainjob-node",
                f"{title(manifest)} spec.template.spec.replicatedJobs",
                "Trainer looks for a replicated job `node` with a container `node`",
                "name both of them node",
            )


def selectors_match(stream: Stream) -> Iterator[Finding]:
    """A Deployment selects its own pods; a Service selects pods of the same stream."""
    for manifest in stream.of_kind("Deployment", "StatefulSet"):
        wanted = mapping(manifest, "spec", "selector", "matchLabels")
        labels = mapping(manifest, "spec", "template", "metadata", "labels")
        if not wanted.items() <= labels.items():
            yield Finding(
                "selector",
                f"{title(manifest)} spec.selector.matchLabels",
                f"{wanted} does not select the template's labels {labels}",
                "write the same labels in both",
            )
    deployments = [*stream.of_kind("Deployment")]
    for manifest in stream.of_kind("Service") if deployments else ():
        wanted = mapping(manifest, "spec", "selector")
        pods = [mapping(d, "spec", "template", "metadata", "labels") for d in deployments]
        if wanted and not any(wanted.items() <= labels.items() for labels in pods):
            yield Finding(
                "selector",
                f"{title(manifest)} spec.selector",
                f"{wanted} selects no pod of these manifests",
                "write the labels of the Deployment's pods",
            )


def _handles_disruption(spec: Manifest) -> bool:
    return any(
        text(condition, "type") == "DisruptionTarget"
        for rule in items(mapping(spec, "podFailurePolicy"), "rules")
        for condition in items(rule, "onPodConditions")
    )


def preemption(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """A preempted pod is not a failed one: it must not use up the tries of the job."""
    if pod.kind not in ("Job", "JobSet") or not stream.devices(pod):
        return
    if not _handles_disruption(pod.workload):
        yield Finding(
            "preemption",
            f"{title(pod.manifest)} {pod.path.removesuffix('.template.spec')}.podFailurePolicy",
            "no rule for DisruptionTarget: preemptions and drains count as failures",
            "add {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: 'True'}]}; "
            "FailJob in a JobSet",
        )
    elif pod.kind == "JobSet" and not any(
        text(rule, "action") == "RestartJobSetAndIgnoreMaxRestarts"
        and "PodFailurePolicy" in words(rule, "onJobFailureReasons")
        for rule in items(mapping(pod.manifest, "spec", "failurePolicy"), "rules")
    ):
        yield Finding(
            "preemption",
            f"{title(pod.manifest)} spec.failurePolicy.rules",
            "a preemption counts against maxRestarts",
            "add {action: RestartJobSetAndIgnoreMaxRestarts, "
            "onJobFailureReasons: [PodFailurePolicy]}",
        )


def grace(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """Training that is told to stop has the time to save a checkpoint."""
    seconds = whole(pod.spec.get("terminationGracePeriodSeconds"))
    trains = any(
        word.rpartition("/")[2] == "torchrun"
        for _, container in pod.containers()
        for word in [*words(container, "command"), *words(container, "args")]
    )
    if trains and stream.devices(pod) and seconds is not None and seconds < SHORTEST_GRACE:
        yield Finding(
            "grace",
            pod.at("terminationGracePeriodSeconds"),
            f"{seconds} s from SIGTERM to SIGKILL are too few to save a checkpoint",
            f"write at least {SHORTEST_GRACE}",
        )


def rollout(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """A new version does not wait for a Trainium node that nobody has."""
    if pod.kind != "Deployment" or not stream.devices(pod):
        return
    strategy = mapping(pod.workload, "strategy")
    surge = mapping(strategy, "rollingUpdate").get("maxSurge", "25%")
    if text(strategy, "type") != "Recreate" and whole(surge) != 0:
        yield Finding(
            "rollout",
            f"{title(pod.manifest)} spec.strategy.rollingUpdate.maxSurge",
            f"{surge}: an update waits for a spare node with devices",
            "write maxSurge: 0 and maxUnavailable: 1",
        )
