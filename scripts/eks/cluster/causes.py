"""Why a pod does not run: what the cluster says, translated into a cause and its fix.

The texts that are recognised are those of kube-scheduler, kubelet, Karpenter and the cluster
autoscaler; what is not recognised is shown as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why something waits or failed. `name` is one of `CAUSES`."""

    name: str
    message: str
    fix: str

    def __post_init__(self) -> None:
        assert self.name in CAUSES, self.name

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {"cause": self.name, "message": self.message, "fix": self.fix}


CAUSES = {
    "plugin-missing": "no node of the type advertises devices",
    "device-count": "no node of the type has as many devices as the pod wants",
    "devices-taken": "the devices are there, and others use them",
    "efa-missing": "no node of the type advertises as many EFA interfaces",
    "no-node": "the cluster has no node of the instance type",
    "node-capacity": "no capacity of the type could be bought",
    "cpu-memory": "the pod wants more CPU or memory than a node has free",
    "taint": "nodes have a taint that the pod does not tolerate",
    "scheduler-missing": "the scheduler that the pod names does not run",
    "claim-missing": "a PersistentVolumeClaim is not there",
    "claim-pending": "a PersistentVolumeClaim has no volume yet",
    "zone": "a volume is in another zone than the nodes",
    "mount": "a volume cannot be mounted",
    "dra": "resource claims cannot be allocated",
    "queue": "Kueue has not admitted the job",
    "quota": "a quota of the namespace is used up",
    "service-account": "the service account is not there",
    "pods-refused": "the API server refuses the job's pods",
    "image": "the image cannot be pulled",
    "config": "a Secret or ConfigMap that the container needs is not there",
    "start": "the container cannot be started",
    "crash": "the container ends again and again",
    "not-ready": "the container runs and does not answer its probe yet",
    "unhealthy-device": "the node could not hand out the devices",
    "preempted": "the pod had to go; the job starts it again",
    "out-of-memory": "the container used more memory than its limit",
    "evicted": "the node ran out of something and removed the pod",
    "exit": "the container ended with an error",
    "deadline": "the job took longer than it may",
    "unknown": "the cluster's own words",
}


@dataclass(frozen=True)
class Text:
    """What is recognised by its words alone."""

    cause: str
    pattern: re.Pattern[str]
    fix: str


def _text(cause: str, pattern: str, fix: str) -> Text:
    return Text(cause, re.compile(pattern, re.IGNORECASE), fix)


# Looked for in scheduling messages and events, in this order; those with facts behind them
# (devices, EFA, node selectors) are in `pending.py`.
TEXTS = (
    _text(
        "claim-missing",
        r'persistentvolumeclaim "[^"]+" not found',
        "create the claim in the job's namespace, or correct `volumes.claim` in the job file",
    ),
    _text(
        "claim-pending",
        r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim.* (is )?not bound",
        "see `kubectl describe pvc`: its storage class, the CSI driver, and for FSx or EFS the "
        "volume's security group",
    ),
    _text(
        "zone",
        r"volume node affinity conflict|no available volume zone",
        "use a volume of the nodes' zone, or nodes of the volume's: EBS and FSx are of one zone",
    ),
    _text(
        "zone",
        r"didn't match pod affinity rules",
        "all pods of the job go to one zone: add or free nodes where its first pod runs, or name a "
        "zone that has enough with `zone`",
    ),
    _text(
        "dra",
        r"cannot allocate all claims|resourceclaim|deviceclass|resource claim",
        "see that the Neuron DRA driver runs on nodes of the type (`kubectl get resourceslices`), "
        "or write flavour: device-plugin",
    ),
    _text(
        "quota",
        r"exceeded quota",
        "free something in the namespace, or have the ResourceQuota raised",
    ),
    _text(
        "service-account",
        r'serviceaccounts? "?[^"]*"? ?not found|error looking up service account',
        "create the service account, or correct `service_account` in the job file",
    ),
    _text(
        "node-capacity",
        r"insufficient ?(instance)? ?capacity|insufficientcapacity|failed to launch",
        "EC2 has none now: use a Capacity Block or reservation for the type, another zone, or wait",
    ),
    _text(
        "no-node",
        r"no instance type satisfied|incompatible with nodepool|no ?compatible ?instance|"
        r"(not|didn't) ?trigger ?scale-?up",
        "no NodePool or node group may make nodes of the type: add it to their instance types "
        "(with the taint aws.amazon.com/neuron and the job's zone)",
    ),
    _text(
        "mount",
        r"FailedMount|FailedAttachVolume|MountVolume|unable to attach or mount",
        "see that the claim's CSI driver runs on the node and that the node reaches the file "
        "system (security group, zone)",
    ),
    _text(
        "unhealthy-device",
        r"UnexpectedAdmissionError|unhealthy devices|Allocate failed",
        "the node's device plugin could not hand devices out: cordon the node and see "
        "`kubectl logs` of the plugin on it",
    ),
    _text(
        "cpu-memory",
        r"Insufficient (cpu|memory|ephemeral-storage|pods)",
        "write a smaller `cpu` or `memory` in the job file, or free the nodes",
    ),
    _text(
        "taint",
        r"untolerated taint",
        "the nodes have a taint beyond aws.amazon.com/neuron: remove it, or tolerate it through "
        "`overrides`",
    ),
)

IMAGE_FIX = (
    "see that the image exists in that region, that its platform is linux/amd64, and that the "
    "node's role or an image pull secret may read the repository (ECR: "
    "AmazonEC2ContainerRegistryReadOnly)"
)
# Reasons of waiting containers -> (cause, fix)
WAITING = {
    "ErrImagePull": ("image", IMAGE_FIX),
    "ImagePullBackOff": ("image", IMAGE_FIX),
    "InvalidImageName": ("image", "correct `image` in the job file"),
    "ErrImageNeverPull": ("image", "remove imagePullPolicy: Never"),
    "CreateContainerConfigError": (
        "config",
        "create the Secret or ConfigMap in the job's namespace, or take it out of `secrets`",
    ),
    "CreateContainerError": ("start", "see `kubectl describe pod`: mounts, user and command"),
    "RunContainerError": ("start", "see that `command` exists in the image"),
    "CrashLoopBackOff": ("crash", "read its last lines: trnx eks logs, with --previous"),
}


def recognised(message: str) -> Cause | None:
    """The first cause whose words are in a message."""
    for text in TEXTS:
        if text.pattern.search(message):
            return Cause(text.cause, message, text.fix)
    return None
