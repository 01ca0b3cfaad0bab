"""What a certain job needs of the cluster: nodes in one zone, claims, a queue, an account."""

from __future__ import annotations

from collections.abc import Iterator

from trnx.eks.cluster.api import Api
from trnx.eks.cluster.capacity import pods_of_job
from trnx.eks.cluster.checks import FAIL, OK, UNKNOWN, WARN, Check, Facts, neuron_nodes
from trnx.eks.cluster.resources import QUEUE, SECRET, SERVICE_ACCOUNT, VOLUME_CLAIM, Resource
from trnx.eks.cluster.snapshot import condition
from trnx.eks.documents import Manifest
from trnx.eks.errors import ForbiddenError
from trnx.eks.images import parse_image
from trnx.eks.model import Flavour, Operator, TrnxJob
from trnx.eks.pod_views import PodView
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


def check_devices(facts: Facts, job: TrnxJob) -> list[Check]:
    """Nodes hand devices out as the job takes them, and all EFA interfaces for several nodes."""
    if facts.nodes is None or not job.the_devices:
        return []
    rows = [row for row in neuron_nodes(facts) if row.instance == job.instance and row.ready]
    checks = []
    wanted = "DRA" if job.flavour == Flavour.DRA else "device plugin"
    known = [row.handed_out for row in rows if row.handed_out != "unknown"]
    wrong = [handed_out for handed_out in known if wanted not in handed_out]
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
        return Check(resource.plural, UNKNOWN, str(error))


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


def _secret_names(pod: PodView) -> Iterator[str]:
    """Secrets that the pod cannot start without."""
    for pull in items(pod.spec, "imagePullSecrets"):
        yield text(pull, "name")
    for volume in items(pod.spec, "volumes"):
        if mapping(volume, "secret").get("optional") is not True:
            yield text(mapping(volume, "secret"), "secretName")
    for _, container in pod.containers():
        references = [mapping(source, "secretRef") for source in items(container, "envFrom")]
        references += [
            mapping(variable, "valueFrom", "secretKeyRef") for variable in items(container, "env")
        ]
        yield from (text(one, "name") for one in references if one.get("optional") is not True)


def check_secrets(api: Api, job: TrnxJob) -> list[Check]:
    """The Secrets that the pods name are there; nothing in them is looked at."""
    checks = []
    names = {name for pod in pods_of_job(job) for name in _secret_names(pod)}
    for name in sorted(names - {""}):
        found = _find(api, SECRET, job, name)
        if isinstance(found, Check):
            checks.append(found)
        elif found is None:
            message = f"namespace {job.namespace} has no Secret {name}"
            fix = f"kubectl -n {job.namespace} create secret generic {name} --from-env-file=FILE"
            checks.append(Check("secrets", FAIL, message, fix))
        else:
            checks.append(Check("secrets", OK, f"{name} is there"))
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
