"""Rules about devices: what is asked for must exist, fit together, and reach the processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trnx.eks.errors import Finding
from trnx.eks.instances import INSTANCES, TOPOLOGY_COUNTS, Instance
from trnx.eks.pod_views import (
    INSTANCE_LABEL,
    PodView,
    Stream,
    mapping,
    neuron_requests,
    text,
    title,
    whole,
    words,
)
from trnx.eks.pods import EFA, NEURON

_VENDORS = ("aws.amazon.com/", "vpc.amazonaws.com/")
_NPROC = re.compile(r"--nproc[-_]per[-_]node(?:=|$)(.*)")


def requests_equal_limits(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Extended resources cannot be overcommitted: requests equal limits, both whole numbers."""
    for place, container in pod.containers():
        requests = mapping(container, "resources", "requests")
        limits = mapping(container, "resources", "limits")
        for name in sorted({*requests, *limits}):
            if not name.startswith(_VENDORS):
                continue
            asked, limit = requests.get(name), limits.get(name)
            if whole(limit) is None or whole(asked) != whole(limit) or whole(limit) == 0:
                yield Finding(
                    "requests-equal-limits",
                    pod.at(f"{place}.resources"),
                    f"{name} is {asked} in requests and {limit} in limits",
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
    name = pod.instance_name
    if not name and pod.claims:
        return  # A claim's selector may name the type.
    yield Finding(
        "unknown-instance",
        pod.at(f"nodeSelector.{INSTANCE_LABEL}"),
        f"{name!r} is no Trainium instance type that trnx has facts of"
        if name
        else "the pod names no instance type, so it may land where devices or cores differ",
        f"write one of {', '.join(INSTANCES)}",
    )


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
        )


def whole_nodes(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """Training over several nodes takes every device and every EFA interface of each."""
    instance, devices = pod.instance, stream.devices(pod)
    if instance is None or not devices or not instance.efa:
        return
    if pod.width > 1 and (devices != instance.devices or pod.count(EFA) != instance.efa):
        yield Finding(
            "multi-node",
            pod.at(""),
            f"{pod.width} nodes with {devices} devices and {pod.count(EFA)} EFA interfaces each; "
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
    for place, container in pod.containers():
        line = [*words(container, "command"), *words(container, "args")]
        for index, word in enumerate(line):
            found = _NPROC.fullmatch(word)
            if found:
                value = whole(found[1] or (line[index + 1] if index + 1 < len(line) else ""))
                return (f"{place}.args", value) if value is not None else None
    return None


def nproc(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """One process for each logical core of the pod's devices."""
    stated, devices, instance = _stated_nproc(pod), stream.devices(pod), pod.instance
    if (
        stated is None
        or not devices
        or instance is None
        or _lnc(pod, instance) not in instance.lncs
    ):
        return
    cores = instance.cores_per_device(_lnc(pod, instance))
    if stated[1] != devices * cores:
        yield Finding(
            "nproc",
            pod.at(stated[0]),
            f"{stated[1]} processes for {devices} devices of {cores} logical cores",
            f"start {devices * cores} processes",
        )


def claim_groups(stream: Stream) -> Iterator[Finding]:
    """Claims hold as many devices as a device group, by the API that the driver speaks."""
    for manifest in stream.of_kind("ResourceClaimTemplate", "ResourceClaim"):
        version = text(manifest, "apiVersion")
        if version != "resource.k8s.io/v1":
            yield Finding(
                "dra-version",
                f"{title(manifest)} apiVersion",
                f"{version} is an older form of the API, which Kubernetes 1.34 does not serve",
                "write resource.k8s.io/v1, with `exactly:` around the request",
            )
        for place, count in neuron_requests(manifest):
            if count not in TOPOLOGY_COUNTS:
                yield Finding(
                    "device-count",
                    f"{title(manifest)} {place}",
                    f"the DRA driver's device groups hold 1, 4, 8 or 16 devices, not {count}",
                    "write 1, 4, 8 or 16",
                )
