"""Rules about programs of several pods: their number, their ranks, and the address of rank 0."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trnx.eks.documents import shown_key
from trnx.eks.errors import Finding
from trnx.eks.launch import Launch, launch_of, line_of
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.reading import items, mapping, name_of, text, title, whole

_INDEX = "JOB_COMPLETION_INDEX"
_INDEX_FIELD = "batch.kubernetes.io/job-completion-index"
# Kinds whose pods are counted; a Deployment's are independent of each other.
_COUNTED = ("Job", "JobSet", "LeaderWorkerSet", "PyTorchJob", "StatefulSet")
_CLUSTER = ".svc.cluster.local"
_ADDRESS = re.compile(r"[0-9.]+|.*[$<{].*|\[.*")


def _launching(pod: PodView, stream: Stream) -> int:
    """Pods of the controller whose templates start torchrun; drivers beside them do not."""
    peers = [other for other in stream.pods() if other.manifest is pod.manifest]
    return sum(other.placement.pods for other in peers if launch_of(other))


def gang_size(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """torchrun counts as many nodes as there are pods, and all of them run at the same time."""
    launch = launch_of(pod)
    nodes = launch.nodes if launch else None
    least = launch.least_nodes if launch else None
    if launch and least is not None and least > pod.width and pod.kind in _COUNTED:
        yield Finding(
            "gang-size",
            pod.at(f"{launch.place}.args"),
            f"--nnodes begins at {least}, and the {pod.kind} runs {pod.width} pods: "
            "torchrun waits for ever",
            f"write at most {pod.width}, or run {least} pods",
        )
    if launch is None or nodes is None or nodes < 2 or pod.kind not in _COUNTED:
        return
    if nodes not in (pod.width, _launching(pod, stream)):
        yield Finding(
            "gang-size",
            pod.at(f"{launch.place}.args"),
            f"--nnodes={nodes}, and the {pod.kind} runs {pod.width} pods side by side: "
            + ("torchrun waits for ever" if nodes > pod.width else "the other pods fail"),
            f"write --nnodes={pod.width}, or run {nodes} pods",
        )
    completions = whole(pod.workload.get("completions"))
    parallel = whole(pod.workload.get("parallelism")) or 1
    if completions is not None and completions != parallel and pod.kind in ("Job", "JobSet"):
        yield Finding(
            "gang-size",
            f"{title(pod.manifest)} {pod.path.removesuffix('.template.spec')}.completions",
            f"{completions} completions, {parallel} at a time: ranks wait for pods that are not "
            "started",
            "write the same number in completions and parallelism",
        )


def started_together(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """A StatefulSet starts its pods one after another unless it says Parallel."""
    launch = launch_of(pod)
    if launch is None or pod.kind != "StatefulSet" or pod.width < 2 or (launch.nodes or 1) < 2:
        return
    if text(mapping(pod.manifest, "spec"), "podManagementPolicy") != "Parallel":
        yield Finding(
            "gang-size",
            f"{title(pod.manifest)} spec.podManagementPolicy",
            "each pod is started when the one before is ready, and ranks wait for each other",
            "write podManagementPolicy: Parallel",
            Level.WARNING,
        )


def _reads_index(pod: PodView) -> str | None:
    """The place where a pod reads the index of a Job's pod."""
    for place, container in pod.containers():
        variables = items(container, "env")
        if any(text(variable, "name") == _INDEX for variable in variables):
            continue
        for index, variable in enumerate(variables):
            field = text(mapping(variable, "valueFrom", "fieldRef"), "fieldPath")
            if _INDEX_FIELD in field or f"$({_INDEX})" in text(variable, "value"):
                return f"{place}.env.{index}"
        if any(_INDEX in word for word in line_of(container)):
            return f"{place}.args"
    return None


def completion_index(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Pods have an index only where their controller gives them one."""
    place = _reads_index(pod)
    runtime = pod.kind in ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
    if place is not None and not pod.placement.indexed and not runtime:
        yield Finding(
            "completion-index",
            pod.at(place),
            f"{_INDEX} is read, and a pod of this {pod.kind} has none",
            "write completionMode: Indexed, with completions and parallelism"
            if pod.kind in ("Job", "CronJob")
            else "take the index that the controller gives, or an Indexed Job",
        )


def _short(host: str, namespace: str) -> str:
    """An address of the cluster without its namespace."""
    for end in (_CLUSTER, ".svc", f".{namespace}"):
        host = host.removesuffix(end)
    return host


def _services(stream: Stream) -> dict[str, bool]:
    """Service -> whether it is headless, so that pods have names of their own."""
    return {
        name_of(service): text(mapping(service, "spec"), "clusterIP") == "None"
        for service in stream.of_kind("Service")
    }


def _wrong_address(pod: PodView, stream: Stream, host: str) -> tuple[str, Level] | None:
    """(what is wrong, how grave it is) with the host of rank 0."""
    services, leaders, name = _services(stream), pod.placement.leaders, name_of(pod.manifest)
    if host in ("localhost", "127.0.0.1"):
        return "each pod asks itself", Level.ERROR
    if _ADDRESS.fullmatch(host) or host in services or leaders is None:
        return None
    first, _, subdomain = host.partition(".")
    if host not in leaders:
        own = first == name or first.startswith(f"{name}-")
        wanted = ", ".join(sorted(leaders)) or "none: the pods have no subdomain or no index"
        level = Level.ERROR if own else Level.WARNING
        return f"no pod is called {shown_key(host)}; rank 0's name is {wanted}", level
    if pod.kind == "JobSet":
        network = mapping(pod.manifest, "spec", "network")
        if network.get("enableDNSHostnames") is False:
            return "enableDNSHostnames is false, so pods have no names", Level.ERROR
    elif subdomain and pod.kind in ("Job", "StatefulSet") and services:
        if subdomain not in services:
            return f"no Service of these manifests is called {shown_key(subdomain)}", Level.WARNING
        if not services[subdomain]:
            return f"Service/{subdomain} is not headless, so pods have no names", Level.ERROR
    return None


def _field(launch: Launch) -> str:
    flag = "master-addr" if launch.flag("master-addr") else "rdzv-endpoint"
    return f"{launch.place}.args (--{flag})"


def master_address(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """The address of rank 0 is one that rank 0 has."""
    launch = launch_of(pod)
    if launch is None or (launch.nodes or 1) < 2 or not launch.address:
        return
    namespace = text(mapping(pod.manifest, "metadata"), "namespace") or "default"
    found = _wrong_address(pod, stream, _short(launch.address, namespace))
    if found is not None:
        leaders = sorted(pod.placement.leaders or ())
        fix = f"write {leaders[0]}" if leaders else "name rank 0 by a headless Service"
        yield Finding("master-address", pod.at(_field(launch)), found[0], fix, found[1])
