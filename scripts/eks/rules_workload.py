"""Rules about whole manifests: names, queueing, selectors, restarts, what Trainer expects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.launch import launch_of, line_of
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.pods import NEURON
from trnx.eks.reading import items, mapping, name_of, text, title, whole, words
from trnx.eks.rules_job import SHORTEST_GRACE
from trnx.eks.rules_objects import CLEAN_POD_POLICIES

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# Kinds whose name becomes a label or a part of pods' DNS names: the longest that is taken.
_LONGEST = {
    "CronJob": (52, _DNS_SUBDOMAIN),
    "Deployment": (253, _DNS_SUBDOMAIN),
    "Job": (63, _DNS_NAME),
    "JobSet": (55, _DNS_NAME),
    "LeaderWorkerSet": (55, _DNS_LABEL),
    "MPIJob": (54, _DNS_LABEL),
    "PyTorchJob": (54, _DNS_LABEL),
    "Service": (63, _DNS_LABEL),
    "StatefulSet": (63, _DNS_NAME),
    "TrainJob": (55, _DNS_LABEL),
}
# Room for what controllers append: `-node-0-12-abcde`.
_ROOM = {"Job": 52, "JobSet": 40, "TrainJob": 40}
_QUEUE = "kueue.x-k8s.io/queue-name"
# What Kubernetes gives where nothing is said.
_DEFAULT_GRACE = 30
_CHECKPOINTS = ("--checkpoint", "--ckpt", "--output-dir", "--output_dir", "--save")
_QUEUED = ("Job", "JobSet", "TrainJob", "MPIJob", "PyTorchJob")


def names(stream: Stream) -> Iterator[Finding]:
    """Names are DNS labels, short enough for what controllers append; none stands twice."""
    seen: set[tuple[str, str, str, str]] = set()
    for manifest in stream.manifests:
        kind, meta = text(manifest, "kind"), mapping(manifest, "metadata")
        name = text(meta, "name")
        longest, form = _LONGEST.get(kind, (253, re.compile(".*")))
        where = f"{title(manifest)} metadata.name"
        if name and (len(name) > longest or not form.fullmatch(name)):
            yield Finding(
                "name",
                where,
                f"{shown_key(name)} is no DNS name of at most {longest} characters",
                "take lower-case letters, digits and '-', a letter first, and shorten it",
            )
        elif len(name) > _ROOM.get(kind, longest):
            yield Finding(
                "name",
                where,
                f"{len(name)} characters leave little room for what controllers append",
                f"take at most {_ROOM[kind]} characters",
                Level.ADVICE,
            )
        key = (text(manifest, "apiVersion").partition("/")[0], kind, text(meta, "namespace"), name)
        if name and key in seen:
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
        spec = mapping(manifest, "spec")
        suspended = True in (spec.get("suspend"), mapping(spec, "runPolicy").get("suspend"))
        if suspended and _QUEUE not in mapping(manifest, "metadata", "labels"):
            yield Finding(
                "suspended",
                f"{title(manifest)} spec.suspend",
                "the job is suspended, and nothing but Kueue would ever start it",
                "remove suspend; the label kueue.x-k8s.io/queue-name is all that Kueue needs",
            )


def _needs_processes(job: Manifest, trainer: Manifest, stream: Stream) -> Level | None:
    """How grave it is that a TrainJob does not count its processes: an error on Neuron devices,
    nothing without, advice where a runtime of elsewhere says what the nodes are."""
    name = text(mapping(job, "spec", "runtimeRef"), "name")
    runtimes = [
        runtime
        for runtime in stream.of_kind("TrainingRuntime", "ClusterTrainingRuntime")
        if name_of(runtime) == name
    ]
    for place in (trainer, *runtimes):
        if f'"{NEURON}"' in json.dumps(place, default=str):
            return Level.ERROR
    known = bool(runtimes) or bool(mapping(trainer, "resourcesPerNode"))
    return None if known else Level.ADVICE


def trainer_contract(stream: Stream) -> Iterator[Finding]:
    """Trainer v2 knows no Neuron devices, and goes by the name `node`."""
    for manifest in stream.of_kind("TrainJob"):
        trainer = mapping(manifest, "spec", "trainer")
        level = _needs_processes(manifest, trainer, stream)
        if trainer.get("numProcPerNode") is None and level is not None:
            yield Finding(
                "trainjob-processes",
                f"{title(manifest)} spec.trainer.numProcPerNode",
                "missing: Trainer counts only resources named gpu, and else starts a process "
                "for each CPU",
                "write the number of logical cores of the pod's devices, such as 64",
                level,
            )
        if whole(trainer.get("numNodes")) == 0:
            yield Finding(
                "trainjob-node",
                f"{title(manifest)} spec.trainer.numNodes",
                "0 nodes: no pod is made, so nothing trains",
                "write the number of nodes",
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


def cleaned_pods(stream: Stream) -> Iterator[Finding]:
    """Which pods of a PyTorchJob are deleted at its end; its operator takes unknown words for All,
    the one of MPIJobs refuses them."""
    for manifest in stream.of_kind("PyTorchJob"):
        policy = text(mapping(manifest, "spec", "runPolicy"), "cleanPodPolicy")
        if policy and policy not in CLEAN_POD_POLICIES:
            yield Finding(
                "schema",
                f"{title(manifest)} spec.runPolicy.cleanPodPolicy",
                "is no word for it, and every pod is deleted at the end, its log with it",
                f"write one of {', '.join(CLEAN_POD_POLICIES)}",
                Level.WARNING,
            )


def selectors_match(stream: Stream) -> Iterator[Finding]:
    """A controller selects its own pods; a Service selects pods of the same stream."""
    for manifest in stream.of_kind("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"):
        wanted = mapping(manifest, "spec", "selector", "matchLabels")
        labels = mapping(manifest, "spec", "template", "metadata", "labels")
        if not wanted.items() <= labels.items():
            yield Finding(
                "selector",
                f"{title(manifest)} spec.selector.matchLabels",
                "it does not select the template's own labels, so the API server refuses it",
                "write the same labels in both",
            )
    for manifest in stream.of_kind("Service"):
        if mapping(manifest, "spec", "selector") and not any(selected(manifest, stream)):
            yield Finding(
                "selector",
                f"{title(manifest)} spec.selector",
                "it selects no pod of these manifests",
                "write the labels of the pods that it is for",
                Level.WARNING,
            )


def _labels(pod: PodView) -> Manifest:
    """Labels of a pod, with those that its controller adds."""
    name = name_of(pod.manifest)
    added = {
        "Job": {"batch.kubernetes.io/job-name": name, "job-name": name},
        "JobSet": {"jobset.sigs.k8s.io/jobset-name": name},
        "LeaderWorkerSet": {"leaderworkerset.sigs.k8s.io/name": name},
        "PyTorchJob": {"training.kubeflow.org/job-name": name},
        "MPIJob": {"training.kubeflow.org/job-name": name},
    }
    return {**mapping(pod.metadata, "labels"), **added.get(pod.kind, {})}


# Labels that controllers give each pod a value of its own for.
_OF_EACH_POD = (
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "job-completion-index",
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "ray.io/",
    "statefulset.kubernetes.io/pod-name",
    "training.kubeflow.org/",
)


def selected(service: Manifest, stream: Stream) -> Iterator[PodView]:
    """Pods of the stream that a Service selects, as far as the manifests say."""
    wanted = {
        key: value
        for key, value in mapping(service, "spec", "selector").items()
        if not str(key).startswith(_OF_EACH_POD)
    }
    pods = [*stream.pods()]
    for pod in pods:
        if wanted.items() <= _labels(pod).items() and not _apart(service, pod.manifest):
            yield pod
    if not pods:
        # Alone in its file: what it selects stands elsewhere.
        yield PodView(service, "spec", {}, {})


def _apart(one: Manifest, other: Manifest) -> bool:
    """Whether two objects are written to be in different namespaces."""
    spaces = [text(mapping(item, "metadata"), "namespace") for item in (one, other)]
    return all(spaces) and spaces[0] != spaces[1]


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
    trains = launch_of(pod) is not None
    saves = trains and any(
        word.startswith(_CHECKPOINTS) for _, c in pod.containers() for word in line_of(c)
    )
    if seconds is None and saves:
        seconds = _DEFAULT_GRACE
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
    if text(strategy, "type") != "Recreate" and whole(surge) != 0 and surge != "0%":
        yield Finding(
            "rollout",
            f"{title(pod.manifest)} spec.strategy.rollingUpdate.maxSurge",
            "not 0: an update waits for a spare node with devices",
            "write maxSurge: 0 and maxUnavailable: 1",
        )
