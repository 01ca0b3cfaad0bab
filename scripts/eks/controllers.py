"""What a controller makes of a pod template: how many pods, by which names, with which index.

Sources: the documentation of Job, StatefulSet, JobSet, LeaderWorkerSet, Trainer, training-operator
and mpi-operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trnx.eks.documents import Manifest
from trnx.eks.reading import items, mapping, name_of, text, whole

# What starts its pods by itself, with the variables that say rank, world and address.
OPERATED = ("PyTorchJob", "MPIJob", "TrainJob")


@dataclass(frozen=True)
class Placement:
    """One template's pods. `pods`: side by side. `group`: pods of the whole controller that make
    one program. `leaders`: DNS names that rank 0 has inside of its namespace; None where no name
    follows from the manifest. `indexed`: each pod has JOB_COMPLETION_INDEX."""

    pods: int = 1
    group: int = 1
    leaders: frozenset[str] | None = None
    indexed: bool = False


def _count(value: object, default: int = 1) -> int:
    found = whole(value)
    return default if found is None else max(found, 0)


def _job_pods(spec: Manifest) -> int:
    """A Job runs no more pods side by side than are left to complete."""
    parallel = _count(spec.get("parallelism"))
    done = whole(spec.get("completions"))
    return parallel if done is None else min(parallel, max(done, 1))


def _job(manifest: Manifest, path: tuple[str, ...]) -> Placement:
    spec = mapping(manifest, *path[:-2])
    pods = _job_pods(spec)
    indexed = text(spec, "completionMode") == "Indexed"
    subdomain = text(mapping(spec, "template", "spec"), "subdomain")
    name = name_of(manifest)
    leaders = frozenset({f"{name}-0.{subdomain}"} if subdomain and indexed else ())
    return Placement(pods, pods, leaders if path[0] == "spec" and len(path) == 3 else None, indexed)


def _jobset(manifest: Manifest, path: tuple[str, ...]) -> Placement:
    spec, name = mapping(manifest, "spec"), name_of(manifest)
    network = mapping(spec, "network")
    subdomain = text(network, "subdomain") or name
    own, total, leaders = 1, 0, set()
    for index, job in enumerate(items(spec, "replicatedJobs")):
        child = mapping(job, "template", "spec")
        pods = _count(job.get("replicas")) * _job_pods(child)
        total += pods
        if str(index) == path[2]:
            own = pods
        leaders.add(f"{name}-{text(job, 'name')}-0-0.{subdomain}")
    mode = text(mapping(_at(manifest, path[:-2])), "completionMode")
    return Placement(own, total, frozenset(leaders), mode in ("", "Indexed"))


def _at(manifest: Manifest, path: tuple[str, ...]) -> object:
    value: object = manifest
    for part in path:
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _pytorchjob(manifest: Manifest, path: tuple[str, ...]) -> Placement:
    specs, name = mapping(manifest, "spec", "pytorchReplicaSpecs"), name_of(manifest)
    counts = {key: _count(mapping(specs, key).get("replicas")) for key in specs}
    first = "master" if "Master" in counts else "worker"
    leaders = frozenset({f"{name}-{first}-0"})
    return Placement(counts.get(path[2], 1), sum(counts.values()), leaders)


def _mpijob(manifest: Manifest, path: tuple[str, ...]) -> Placement:
    specs = mapping(manifest, "spec", "mpiReplicaSpecs")
    counts = {key: _count(mapping(specs, key).get("replicas")) for key in specs}
    return Placement(counts.get(path[2], 1), counts.get("Worker", 1))


def _leader_worker_set(manifest: Manifest, path: tuple[str, ...]) -> Placement:
    template, name = mapping(manifest, "spec", "leaderWorkerTemplate"), name_of(manifest)
    size = _count(template.get("size"))
    own_leader = bool(mapping(template, "leaderTemplate"))
    pods = 1 if path[2] == "leaderTemplate" else size - own_leader
    network = text(mapping(manifest, "spec", "networkConfig"), "subdomainPolicy")
    subdomain = f"{name}-0" if network == "UniquePerReplica" else name
    return Placement(max(pods, 0), size, frozenset({f"{name}-0.{subdomain}"}))


def _statefulset(manifest: Manifest, path: tuple[str, ...]) -> Placement:  # noqa: ARG001
    spec, name = mapping(manifest, "spec"), name_of(manifest)
    pods = _count(spec.get("replicas"))
    return Placement(pods, pods, frozenset({f"{name}-0.{text(spec, 'serviceName')}"}))


def _deployment(manifest: Manifest, path: tuple[str, ...]) -> Placement:  # noqa: ARG001
    return Placement(_count(mapping(manifest, "spec").get("replicas")), 1)


def _runtime(manifest: Manifest, path: tuple[str, ...]) -> Placement:  # noqa: ARG001
    nodes = _count(mapping(manifest, "spec", "mlPolicy").get("numNodes"))
    return Placement(nodes, nodes, None, indexed=True)


_KINDS: dict[str, Callable[[Manifest, tuple[str, ...]], Placement]] = {
    "ClusterTrainingRuntime": _runtime,
    "CronJob": _job,
    "Deployment": _deployment,
    "Job": _job,
    "JobSet": _jobset,
    "LeaderWorkerSet": _leader_worker_set,
    "MPIJob": _mpijob,
    "PyTorchJob": _pytorchjob,
    "StatefulSet": _statefulset,
    "TrainingRuntime": _runtime,
}


def placement_of(manifest: Manifest, path: tuple[str, ...]) -> Placement:
    """The pods of the template whose pod spec is at `path`; of an unknown kind one pod."""
    found = _KINDS.get(text(manifest, "kind"))
    return found(manifest, path) if found is not None and len(path) > 2 else Placement()
