"""Rules about devices: what is asked for must exist, fit together, and reach the processes."""

from __future__ import annotations

from collections.abc import Iterator

from trnx.eks.documents import shown_key
from trnx.eks.errors import Finding
from trnx.eks.instances import ALL_INSTANCES, INSTANCES, TOPOLOGY_COUNTS, Instance, instance_of
from trnx.eks.launch import launch_of, one_program
from trnx.eks.levels import Level
from trnx.eks.pod_views import INSTANCE_LABEL, PodView, Stream, neuron_requests
from trnx.eks.pods import EFA, NEURON
from trnx.eks.reading import mapping, text, title, whole

_VENDORS = ("aws.amazon.com/", "vpc.amazonaws.com/")
# Resources of the Neuron and EFA device plugins and of the VPC resource controller.
_KNOWN = (
    NEURON,
    EFA,
    "aws.amazon.com/neuroncore",
    "aws.amazon.com/neurondevice",
    "vpc.amazonaws.com/pod-eni",
    "vpc.amazonaws.com/PrivateIPv4Address",
)
_FAMILIES = ("trn", "inf")
# Labels that name a group of nodes, whose type the group says.
_GROUPS = {
    "karpenter.sh/nodepool",
    "alpha.eksctl.io/nodegroup-name",
    "eks.amazonaws.com/nodegroup",
    "karpenter.k8s.aws/instance-family",
    "eks.amazonaws.com/instance-family",
}


def requests_equal_limits(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Extended resources cannot be overcommitted: requests equal limits, both whole numbers."""
    for place, container in pod.containers():
        requests = mapping(container, "resources", "requests")
        limits = mapping(container, "resources", "limits")
        for name in sorted({*requests, *limits}):
            if not name.startswith(_VENDORS):
                continue
            asked, limit = requests.get(name), limits.get(name)
            where = pod.at(f"{place}.resources")
            if asked is None and whole(limit):
                yield Finding(
                    "requests-equal-limits",
                    where,
                    f"{name} stands in limits alone; Kubernetes asks for as many",
                    "nothing has to be done; written in both it is seen at once",
                    Level.ADVICE,
                )
            elif whole(limit) is None or whole(asked) != whole(limit) or whole(limit) == 0:
                yield Finding(
                    "requests-equal-limits",
                    where,
                    f"{shown_key(name)} is {whole(asked)} in requests and {whole(limit)} in limits",
                    "write the same whole number, at least 1, in both",
                )


def device_resource(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Devices are asked for as aws.amazon.com/neuron, not as cores or by the name that is gone."""
    for place, container in pod.containers():
        for part in ("requests", "limits"):
            for name in mapping(container, "resources", part):
                if name in ("aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"):
                    yield Finding(
                        "device-resource",
                        pod.at(f"{place}.resources.{part}"),
                        f"{name}: cores are counted differently by autoscaler and node, and "
                        "neurondevice is gone from the plugin",
                        f"ask for whole devices: {NEURON}",
                    )
                elif name.startswith(_VENDORS) and name not in _KNOWN:
                    yield Finding(
                        "device-resource",
                        pod.at(f"{place}.resources.{part}"),
                        f"no device plugin offers {shown_key(name)}: the pod waits for ever",
                        f"write one of {NEURON} and {EFA}",
                        Level.ERROR,
                    )


def plugin_or_claims(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Device plugin and DRA cannot share a node, so not a pod either."""
    if pod.claims and pod.count(NEURON):
        yield Finding(
            "plugin-or-dra",
            pod.at("resourceClaims"),
            f"the pod asks for {NEURON} and has resource claims too",
            "keep one of them: no node runs the device plugin and the DRA driver",
        )


def known_instance(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """A Neuron pod names an instance type that has devices."""
    if not pod.on_neuron or not pod.complete or pod.instance is not None:
        return
    names = pod.instance_names
    where, fix = pod.at(f"nodeSelector.{INSTANCE_LABEL}"), f"write one of {', '.join(INSTANCES)}"
    if not names:
        # A claim's selector may name the type, and other labels a group of nodes.
        if not pod.claims and not _GROUPS & set(pod.node_labels()):
            message = "the pod names no instance type, so it may land where devices or cores differ"
            yield Finding("unknown-instance", where, message, fix, Level.ADVICE)
        return
    shown = ", ".join(map(shown_key, names))
    if not any(name.startswith(_FAMILIES) for name in names):
        message = f"{shown} has no Neuron devices: the pod waits for ever"
        yield Finding("unknown-instance", where, message, fix, Level.ERROR)
    elif any(name.startswith("trn") and instance_of(name) is None for name in names):
        message = f"{shown} is no Trainium instance type that trnx has facts of"
        yield Finding("unknown-instance", where, message, fix)


def device_count(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """The node can hand out that many devices together."""
    count, instance = stream.devices(pod), pod.instance
    if count and instance is not None and count not in instance.device_counts:
        counts = ", ".join(map(str, instance.device_counts))
        yield Finding(
            "device-count",
            pod.at(""),
            f"{instance.name} places pods of {counts} devices, not of {count}",
            f"ask for one of {counts}",
            Level.ERROR if count > instance.devices else Level.WARNING,
        )
    named = [facts for facts in ALL_INSTANCES if facts.name in pod.instance_names]
    most = max((facts.devices for facts in named), default=0)
    if count and instance is None and len(named) == len(pod.instance_names) and count > most > 0:
        yield Finding(
            "device-count",
            pod.at(""),
            f"{', '.join(facts.name for facts in named)} has {most} devices, not {count}",
            f"ask for at most {most}",
        )


def efa(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """No more EFA interfaces than the type has; several Neuron nodes need a type with EFA."""
    instance = pod.instance
    if instance is None:
        return
    asked = pod.count(EFA)
    if asked > instance.efa or (pod.width > 1 and not instance.efa and stream.devices(pod)):
        yield Finding(
            "efa",
            pod.at(""),
            f"{instance.name} has {instance.efa} EFA interfaces; "
            f"{asked} are asked for on {pod.width} nodes",
            "take one node without EFA, or a type with EFA, such as trn2.48xlarge",
            _efa_level(pod, asked > instance.efa),
        )


def _efa_level(pod: PodView, beyond: bool) -> Level:
    if beyond:
        return Level.ERROR
    # Pods that do not work together need no network between them.
    together = one_program(pod) or launch_of(pod) is not None
    return Level.WARNING if together else Level.ADVICE


def whole_nodes(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """Training over several nodes takes every device and every EFA interface of each."""
    instance, devices = pod.instance, stream.devices(pod)
    if instance is None or not devices or not instance.efa or not one_program(pod):
        return
    if pod.width > 1 and (devices != instance.devices or pod.count(EFA) != instance.efa):
        yield Finding(
            "multi-node",
            pod.at(""),
            f"{pod.width} pods with {devices} devices and {pod.count(EFA)} EFA interfaces each; "
            f"{instance.name} has {instance.devices} and {instance.efa}",
            f"ask for {NEURON}: {instance.devices} (or a claim of as many) "
            f"and {EFA}: {instance.efa}",
        )
    elif pod.width == 1 and pod.count(EFA):
        yield Finding(
            "multi-node",
            pod.at(""),
            "EFA interfaces are asked for by a pod that is alone",
            f"remove {EFA}, or run on several nodes",
        )


def _lnc(pod: PodView, instance: Instance) -> int:
    for _, name, value in pod.env():
        if name == "NEURON_LOGICAL_NC_CONFIG" and whole(value):
            return whole(value) or instance.default_lnc
    return instance.default_lnc


def logical_cores_of(pod: PodView) -> int | None:
    """Logical cores of one device of the pod's node; None where that is not known."""
    instance = pod.instance
    if instance is None or _lnc(pod, instance) not in instance.lncs:
        return None
    return instance.cores_per_device(_lnc(pod, instance))


def lnc(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """The logical NeuronCore configuration is one that the type has."""
    instance = pod.instance
    if instance is not None and _lnc(pod, instance) not in instance.lncs:
        yield Finding(
            "lnc",
            pod.at("NEURON_LOGICAL_NC_CONFIG"),
            f"{instance.name} has no logical cores of {_lnc(pod, instance)} physical ones",
            f"write one of {', '.join(map(str, instance.lncs))}, or remove the variable",
        )


def _stated_nproc(pod: PodView) -> tuple[str, int] | None:
    trainer = mapping(pod.manifest, "spec", "trainer")
    if pod.kind == "TrainJob" and whole(trainer.get("numProcPerNode")) is not None:
        return "numProcPerNode", whole(trainer["numProcPerNode"]) or 0
    launch = launch_of(pod)
    count = whole(launch.flag("nproc-per-node")) if launch else None
    return (f"{launch.place}.args", count) if launch and count is not None else None


def nproc(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """One process for each logical core of the pod's devices."""
    stated, devices, cores = _stated_nproc(pod), stream.devices(pod), logical_cores_of(pod)
    if stated is None or not devices or cores is None:
        return
    # One process may drive all cores.
    if stated[1] not in (1, devices * cores):
        yield Finding(
            "nproc",
            pod.at(stated[0]),
            f"{stated[1]} processes for {devices} devices of {cores} logical cores",
            f"start {devices * cores} processes",
            Level.ERROR if stated[1] > devices * cores else Level.WARNING,
        )


def claim_groups(stream: Stream) -> Iterator[Finding]:
    """Claims hold as many devices as a device group, by the API that the driver speaks."""
    for manifest in stream.of_kind("ResourceClaimTemplate", "ResourceClaim"):
        version = text(manifest, "apiVersion")
        if version != "resource.k8s.io/v1":
            yield Finding(
                "dra-version",
                f"{title(manifest)} apiVersion",
                f"{shown_key(version)} is an older form of the API, which Kubernetes 1.34 serves "
                "only where somebody turned it on",
                "write resource.k8s.io/v1, with `exactly:` around the request",
            )
        for place, count in neuron_requests(manifest):
            if count not in TOPOLOGY_COUNTS:
                yield Finding(
                    "device-count",
                    f"{title(manifest)} {place}",
                    f"the DRA driver's device groups hold 1, 4, 8 or 16 devices, not {count}",
                    "write 1, 4, 8 or 16",
                    Level.WARNING,
                )
