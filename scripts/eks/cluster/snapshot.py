"""One look at a job in the cluster: what runs it, its pods, their events, what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trnx.eks.cluster.api import Api
from trnx.eks.cluster.resources import (
    EVENT,
    KUEUE_WORKLOAD,
    NODE,
    OWNED,
    POD,
    VOLUME_CLAIM,
    WORKLOADS,
    Resource,
)
from trnx.eks.documents import Manifest
from trnx.eks.errors import AbsentError, ForbiddenError, NotInstalledError
from trnx.eks.pods import MANAGED_BY, MANAGER, NAME_LABEL
from trnx.eks.reading import items, mapping, text

INDEX = "batch.kubernetes.io/job-completion-index"


def selector(name: str) -> str:
    """The label selector of a job's objects."""
    return f"{NAME_LABEL}={name},{MANAGED_BY}={MANAGER}"


def is_ours(item: Manifest, name: str) -> bool:
    """Whether an object has the labels of a job; held against every answer of the server."""
    labels = mapping(item, "metadata", "labels")
    return labels.get(NAME_LABEL) == name and labels.get(MANAGED_BY) == MANAGER


def is_owned(item: Manifest) -> bool:
    """Whether a controller made the object, and removes it too."""
    owners = items(mapping(item, "metadata"), "ownerReferences")
    return any(owner.get("controller") for owner in owners)


def name_of(item: Manifest) -> str:
    """An object's name."""
    return text(mapping(item, "metadata"), "name")


def rank_of(pod: Manifest) -> int:
    """The pod's completion index; 0 where the job has none."""
    meta = mapping(pod, "metadata")
    value = mapping(meta, "labels").get(INDEX) or mapping(meta, "annotations").get(INDEX)
    return int(value) if isinstance(value, str) and value.isdigit() else 0


def condition(item: Manifest, kind: str) -> Manifest:
    """The condition of a kind, where it holds; else an empty one."""
    for found in items(mapping(item, "status"), "conditions"):
        if found.get("type") == kind and found.get("status") == "True":
            return found
    return {}


@dataclass(frozen=True)
class Snapshot:
    """What the API server says of one job. `nodes` is None where reading them is not allowed."""

    name: str
    namespace: str
    workloads: list[Manifest]
    pods: list[Manifest]
    events: list[Manifest] = field(default_factory=list)
    nodes: list[Manifest] | None = None
    claims: list[Manifest] | None = None
    admissions: list[Manifest] = field(default_factory=list)

    @property
    def workload(self) -> Manifest | None:
        """The outermost of what runs the job's pods."""
        kinds = [resource.kind for resource in WORKLOADS]
        found = [item for item in self.workloads if not is_owned(item)]
        return min(found, key=lambda item: kinds.index(item["kind"]), default=None)

    def events_of(self, item: Manifest) -> list[Manifest]:
        """Events about an object, the newest last."""
        meta = mapping(item, "metadata")
        found = []
        for event in self.events:
            about = mapping(event, "involvedObject")
            same_uid = not about.get("uid") or not meta.get("uid") or about["uid"] == meta["uid"]
            if about.get("name") == meta.get("name") and same_uid:
                found.append(event)
        return sorted(found, key=_last_seen)


def _last_seen(event: Manifest) -> str:
    series = mapping(event, "series")
    return (
        text(series, "lastObservedTime")
        or text(event, "lastTimestamp")
        or text(event, "eventTime")
        or text(event, "firstTimestamp")
    )


def ours(api: Api, resource: Resource, namespace: str, name: str) -> list[Manifest]:
    """A job's objects of a kind; none where the kind is not installed."""
    try:
        found = api.items(resource, namespace, labelSelector=selector(name))
    except NotInstalledError:
        return []
    return [item for item in found if is_ours(item, name)]


def _optional(api: Api, resource: Resource, namespace: str) -> list[Manifest] | None:
    try:
        return api.items(resource, namespace)
    except (ForbiddenError, NotInstalledError, AbsentError):
        return None


def pods_of(api: Api, namespace: str, name: str) -> list[Manifest]:
    """A job's pods by rank, older ones first."""
    found = ours(api, POD, namespace, name)
    return sorted(found, key=lambda pod: (rank_of(pod), _created(pod), name_of(pod)))


def _created(item: Manifest) -> str:
    return text(mapping(item, "metadata"), "creationTimestamp")


def _gathered(
    api: Api, kinds: Sequence[Resource], namespace: str, name: str
) -> list[tuple[Resource, Manifest]]:
    """A job's objects of several kinds; kinds that may not be read matter only if none is found.

    Raises:
        ForbiddenError: nothing was found, and not everything may be read.
    """
    found, refused = [], None
    for resource in kinds:
        try:
            found += [(resource, item) for item in ours(api, resource, namespace, name)]
        except ForbiddenError as error:
            refused = refused or error
    if refused is not None and not found:
        raise refused
    return found


def objects_of(api: Api, namespace: str, name: str) -> list[tuple[Resource, Manifest]]:
    """What belongs to a job and no controller removes by itself.

    Raises:
        ForbiddenError: nothing was found, and not everything may be read.
    """
    found = _gathered(api, OWNED, namespace, name)
    return [(resource, item) for resource, item in found if not is_owned(item)]


def workloads_of(api: Api, namespace: str, name: str) -> list[Manifest]:
    """What runs a job's pods.

    Raises:
        AbsentError: there is no such job.
    """
    found = [item for _, item in _gathered(api, WORKLOADS, namespace, name)]
    if not found:
        raise AbsentError(
            f"namespace {namespace} has no job {name} of trnx; name its job file, or its namespace "
            f"with --namespace (kubectl get jobs,jobsets -A -l {MANAGED_BY}={MANAGER} lists all)"
        )
    return found


def look(api: Api, namespace: str, name: str) -> Snapshot:
    """A job as it is now; what explains waiting is read only where something waits.

    Raises:
        AbsentError: there is no such job.
        ClusterError: the server cannot be asked.
    """
    workloads = workloads_of(api, namespace, name)
    pods = pods_of(api, namespace, name)
    snapshot = Snapshot(name, namespace, workloads, pods)
    settled = pods and all(text(mapping(pod, "status"), "phase") == "Succeeded" for pod in pods)
    if settled:
        return snapshot
    queued = any(mapping(item, "spec").get("suspend") for item in workloads)
    return Snapshot(
        name,
        namespace,
        workloads,
        pods,
        events=_optional(api, EVENT, namespace) or [],
        nodes=_optional(api, NODE, ""),
        claims=_optional(api, VOLUME_CLAIM, namespace),
        admissions=(_optional(api, KUEUE_WORKLOAD, namespace) or []) if queued else [],
    )
