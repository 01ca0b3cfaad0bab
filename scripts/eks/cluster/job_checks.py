"""What a certain job needs of the cluster: nodes in one zone, claims, a queue, an account."""

from __future__ import annotations

from collections import Counter

from trnx.eks.cluster.api import Api
from trnx.eks.cluster.checks import FAIL, OK, SKIP, WARN, Check, Facts, neuron_nodes
from trnx.eks.cluster.resources import QUEUE, SERVICE_ACCOUNT, VOLUME_CLAIM, Resource
from trnx.eks.cluster.snapshot import condition
from trnx.eks.documents import Manifest
from trnx.eks.errors import ForbiddenError
from trnx.eks.images import parse_image
from trnx.eks.model import Flavour, Operator, TrnxJob
from trnx.eks.reading import items, mapping, text, words

_MANY = {"ReadWriteMany", "ReadOnlyMany"}
# From this SDK on images want a newer driver on the host than older AMIs have.
_NEW_DRIVER_SDK = (2, 30)


def needed_groups(job: TrnxJob | None) -> set[str]:
    """API groups that the job's manifests are of."""
    if job is None:
        return set()
    groups = {
        Operator.JOBSET: {"jobset.x-k8s.io"},
        Operator.TRAINJOB: {"trainer.kubeflow.org"},
    }.get(job.the_operator, set())
    return groups | ({"kueue.x-k8s.io"} if job.queue else set())


def check_capacity(facts: Facts, job: TrnxJob) -> list[Check]:
    """Enough nodes of the type, several of them in one zone, with the job's flavour of devices."""
    if facts.nodes is None or not job.the_devices:
        return []
    rows = [row for row in neuron_nodes(facts) if row.instance == job.instance and row.ready]
    if job.zone:
        rows = [row for row in rows if row.zone == job.zone]
    checks = []
    zones = Counter(row.zone for row in rows)
    most = max(zones.values(), default=0)
    where = f" in {job.zone}" if job.zone else " in one zone" if job.nodes > 1 else ""
    if most < job.nodes:
        shown = ", ".join(f"{count} in {zone or '?'}" for zone, count in sorted(zones.items()))
        message = f"the job wants {job.nodes} nodes of {job.instance}{where}; ready: {shown or 0}"
        fix = (
            "add nodes to one zone, whose pods EFA connects; with Karpenter they come with the job"
        )
        checks.append(Check("capacity", WARN, message, fix))
    else:
        checks.append(Check("capacity", OK, f"{most} nodes of {job.instance}{where}"))
    wanted = "DRA" if job.flavour == Flavour.DRA else "device plugin"
    wrong = [row.name for row in rows if wanted not in row.handed_out]
    if job.flavour != Flavour.AUTO and rows and len(wrong) == len(rows):
        other = Flavour.DEVICE_PLUGIN if job.flavour == Flavour.DRA else Flavour.DRA
        message = f"the job takes devices by {wanted}, and no {job.instance} node has that"
        checks.append(Check("flavour", FAIL, message, f"write flavour: {other} or auto"))
    if job.nodes > 1 and rows and all(row.efa < job.facts.efa for row in rows):
        message = f"no {job.instance} node advertises all {job.facts.efa} EFA interfaces"
        fix = "install aws-efa-k8s-device-plugin; see `efa` above"
        checks.append(Check("efa", FAIL, message, fix))
    return checks


def _find(api: Api, resource: Resource, job: TrnxJob, name: str) -> Manifest | Check | None:
    try:
        return api.get(resource, job.namespace, name)
    except ForbiddenError as error:
        return Check(resource.plural, SKIP, str(error))


def check_claims(api: Api, job: TrnxJob) -> list[Check]:
    """Claims are there, bound, and can be mounted by all pods."""
    checks = []
    for volume in job.volumes:
        claim = _find(api, VOLUME_CLAIM, job, volume.claim)
        if isinstance(claim, Check):
            checks.append(claim)
            continue
        if claim is None:
            message = f"namespace {job.namespace} has no claim {volume.claim}"
            checks.append(Check("claims", FAIL, message, "create it; trnx never creates claims"))
            continue
        phase, modes = text(mapping(claim, "status"), "phase"), words(claim["spec"], "accessModes")
        many = max(job.nodes, job.shards, job.replicas) > 1
        if many and not set(modes) & _MANY:
            message = f"{volume.claim} is {', '.join(modes)}: one node alone can mount it"
            fix = "take a ReadWriteMany claim (FSx for Lustre, EFS)"
            checks.append(Check("claims", FAIL, message, fix))
        elif phase != "Bound":
            message, fix = f"{volume.claim} is {phase}", "see `kubectl describe pvc`"
            checks.append(Check("claims", WARN, message, fix))
        else:
            checks.append(Check("claims", OK, f"{volume.claim} is bound, {', '.join(modes)}"))
    return checks


def check_queue(api: Api, job: TrnxJob) -> list[Check]:
    """The LocalQueue is there and takes jobs."""
    if not job.queue:
        return []
    queue = _find(api, QUEUE, job, job.queue)
    if isinstance(queue, Check):
        return [queue]
    if queue is None:
        message = f"namespace {job.namespace} has no LocalQueue {job.queue}"
        return [Check("queue", FAIL, message, "create it, or leave `queue` out")]
    if items(mapping(queue, "status"), "conditions") and not condition(queue, "Active"):
        said = [text(c, "message") for c in items(mapping(queue, "status"), "conditions")]
        fix = "see its ClusterQueue: `kubectl describe clusterqueue`"
        return [Check("queue", FAIL, f"{job.queue} is not active: {' '.join(said)}", fix)]
    return [Check("queue", OK, f"{job.queue} takes jobs")]


def check_account(api: Api, job: TrnxJob) -> list[Check]:
    """The service account is there."""
    if not job.service_account:
        return []
    found = _find(api, SERVICE_ACCOUNT, job, job.service_account)
    if isinstance(found, Check):
        return [found]
    if found is None:
        message = f"namespace {job.namespace} has no service account {job.service_account}"
        return [Check("account", FAIL, message, "create it, with the IAM role that the job needs")]
    return [Check("account", OK, f"{job.service_account} is there")]


def check_driver(job: TrnxJob) -> list[Check]:
    """The image's SDK wants a driver on the host that the API server does not show."""
    image = parse_image(job.image)
    sdk = image.sdk if image else None
    if sdk is None or sdk < _NEW_DRIVER_SDK:
        return []
    message = f"the image is of SDK {sdk[0]}.{sdk[1]}; the driver of the nodes is not visible here"
    fix = (
        "SDKs since 2.30 want a newer driver: take an AMI released after the SDK, or look with "
        "`modinfo neuron` on a node"
    )
    return [Check("driver", WARN, message, fix)]
