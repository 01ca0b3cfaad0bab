"""What `trnx eks doctor` finds: one `Check` for each thing that jobs need."""

from __future__ import annotations

from dataclasses import dataclass, field

from trnx.eks.cluster.dra_devices import DraDevices
from trnx.eks.cluster.fit import is_ready
from trnx.eks.cluster.pending import allocatable
from trnx.eks.documents import Manifest
from trnx.eks.instances import instance_of
from trnx.eks.pod_views import INSTANCE_LABEL
from trnx.eks.pods import EFA, NEURON, ZONE_LABEL
from trnx.eks.reading import mapping, text

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skipped"
# What may not be read (403): neither there nor missing.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One result. Only `fail` makes the doctor's status 1."""

    name: str
    result: str
    message: str
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Facts:
    """What was read of a cluster; None is what could not be."""

    version: str
    nodes: list[Manifest] | None
    published: set[str] | None
    groups: dict[str, list[str]] | None
    device_class: bool | None
    pods: list[Manifest] | None = None
    dra: DraDevices | None = None
    amis: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeRow:
    """One node with Neuron devices, as the doctor shows it."""

    name: str
    instance: str
    zone: str
    ready: bool
    neuron: int
    efa: int
    handed_out: str
    image: str

    def to_dict(self) -> dict[str, object]:
        """JSON form."""
        return dict(self.__dict__)


def _handed_out(node: Manifest, published: set[str] | None) -> str:
    ways = []
    if allocatable(node, NEURON):
        ways.append("device plugin")
    if text(mapping(node, "metadata"), "name") in (published or ()):
        ways.append("DRA")
    return " and ".join(ways) or ("nothing" if published is not None else "unknown")


def neuron_nodes(facts: Facts) -> list[NodeRow]:
    """Nodes of Trainium types, or that advertise devices."""
    rows = []
    for node in facts.nodes or []:
        meta, labels = mapping(node, "metadata"), mapping(node, "metadata", "labels")
        instance = str(labels.get(INSTANCE_LABEL, ""))
        ours = instance.startswith(("trn", "inf")) or allocatable(node, NEURON)
        if not ours:
            continue
        ami = str(labels.get("eks.amazonaws.com/nodegroup-image", ""))
        info = mapping(node, "status", "nodeInfo")
        rows.append(
            NodeRow(
                text(meta, "name"),
                instance,
                str(labels.get(ZONE_LABEL, "")),
                is_ready(node),
                allocatable(node, NEURON),
                allocatable(node, EFA),
                _handed_out(node, facts.published),
                facts.amis.get(ami) or ami or text(info, "osImage"),
            )
        )
    return sorted(rows, key=lambda row: (row.instance, row.zone, row.name))


def check_nodes(facts: Facts) -> list[Check]:
    """There are nodes with devices, ready, and each hands them out in one way."""
    if facts.nodes is None:
        fix = "have an administrator allow to list nodes"
        return [Check("nodes", UNKNOWN, "nodes may not be read", fix)]
    rows = neuron_nodes(facts)
    if not rows:
        fix = "add a node group or NodePool of a trn type; with Karpenter they come with the job"
        return [Check("nodes", WARN, f"none of {len(facts.nodes)} nodes is of a trn type", fix)]
    checks = []
    unready = [row.name for row in rows if not row.ready]
    if unready:
        fix = "see `kubectl describe node`"
        checks.append(Check("nodes", WARN, f"not ready: {', '.join(unready)}", fix))
    both = [row.name for row in rows if row.handed_out == "device plugin and DRA"]
    if both:
        message = f"device plugin and DRA driver on one node: {', '.join(both)}"
        fix = "keep one of them off the node (node selectors of the chart's two DaemonSets)"
        checks.append(Check("plugin-or-dra", FAIL, message, fix))
    none = [row.name for row in rows if row.handed_out == "nothing"]
    if none:
        message = f"no devices are handed out by {', '.join(none)}"
        fix = (
            "install the Neuron device plugin (helm: "
            "oci://public.ecr.aws/neuron/neuron-helm-chart), or its DRA driver "
            "(draDriver.enabled=true); see that the AMI is a Neuron one"
        )
        checks.append(Check("plugin-or-dra", FAIL, message, fix))
    hidden = [row.name for row in rows if row.handed_out == "unknown"]
    if hidden:
        message = f"no device plugin on {', '.join(hidden)}, and DRA's devices may not be read"
        fix = "have an administrator allow to list resourceslices (resource.k8s.io)"
        checks.append(Check("plugin-or-dra", UNKNOWN, message, fix))
    return checks or [Check("nodes", OK, f"{len(rows)} nodes with devices")]


def check_counts(facts: Facts) -> list[Check]:
    """Nodes advertise as many devices and EFA interfaces as their type has."""
    checks = []
    for row in neuron_nodes(facts):
        known = instance_of(row.instance)
        if known is None:
            message = f"{row.name}: trnx has no facts of {row.instance}"
            fix = f"`trnx eks instance {row.instance}` prints them for the job file"
            checks.append(Check("instance", WARN, message, fix))
            continue
        if 0 < row.neuron < known.devices:
            message = f"{row.name} advertises {row.neuron} of {known.devices} devices"
            fix = "a device may be sick: see the plugin's log and neuron-ls on the node"
            checks.append(Check("devices", WARN, message, fix))
        if known.efa and row.efa < known.efa:
            message = f"{row.name} advertises {row.efa} of {known.efa} EFA interfaces"
            fix = (
                "install aws-efa-k8s-device-plugin, and give the launch template or EC2NodeClass "
                "all interfaces (eksctl: efaEnabled: true); only jobs of several nodes need them"
            )
            checks.append(Check("efa", WARN, message, fix))
    return checks


def check_images(facts: Facts) -> list[Check]:
    """Nodes run a Neuron AMI, as far as its name says; the driver in it is not visible here."""
    checks = []
    for row in neuron_nodes(facts):
        named = row.image.startswith(("amazon-eks", "eks-"))
        if named and "neuron" not in row.image:
            message = f"{row.name} runs {row.image}, which has no Neuron driver"
            fix = "take the AMI variant with neuron in its name (eksctl and Karpenter do)"
            checks.append(Check("ami", FAIL, message, fix))
    return checks


def check_version(facts: Facts) -> list[Check]:
    """Kubernetes is new enough for what trnx renders."""
    if not facts.version:
        return [Check("kubernetes", SKIP, "the server does not say its version")]
    digits = [part.rstrip("+") for part in facts.version.lstrip("v").split(".")[:2]]
    minor = int(digits[1]) if len(digits) == 2 and digits[1].isdigit() else 0
    if minor < 31:
        fix = "update the cluster: podFailurePolicy and JobSet's rules want 1.31 or later"
        return [Check("kubernetes", WARN, f"the server is {facts.version}", fix)]
    dra = "" if minor >= 34 else "; DRA wants 1.34"
    return [Check("kubernetes", OK, f"{facts.version}{dra}")]


# group -> (name, version that trnx writes)
CONTROLLERS = {
    "jobset.x-k8s.io": ("JobSet", "v1alpha2"),
    "trainer.kubeflow.org": ("Kubeflow Trainer", "v1alpha1"),
    "kueue.x-k8s.io": ("Kueue", "v1beta2"),
}


def check_controllers(facts: Facts, needed: set[str]) -> list[Check]:
    """Custom resources are served in the version that trnx writes."""
    from trnx.eks.cluster.resources import INSTALL

    if facts.groups is None:
        fix = "have an administrator allow to get /apis (the role system:discovery)"
        message = "the kinds that the cluster serves may not be read: "
        message += ", ".join(name for name, _ in CONTROLLERS.values())
        return [Check("controllers", UNKNOWN, message, fix)]
    checks = []
    for group, (name, version) in CONTROLLERS.items():
        served = facts.groups.get(group, [])
        if version in served:
            checks.append(Check("controllers", OK, f"{name} serves {version}"))
            continue
        result = FAIL if group in needed else WARN
        message = f"{name} serves {', '.join(served)}, not {version}" if served else f"no {name}"
        checks.append(Check("controllers", result, message, INSTALL[group]))
    return checks
