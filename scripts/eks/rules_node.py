"""Rules about what a node has: CPU, memory, architecture; and about nodes that come and go."""

from __future__ import annotations

from collections.abc import Iterator

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.instances import INSTANCES
from trnx.eks.launch import launch_of
from trnx.eks.levels import Level
from trnx.eks.pod_views import INSTANCE_LABEL, PodView, Stream
from trnx.eks.reading import amount, items, mapping, name_of, text, title, words

GIB = 2**30
_ARCH = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
_CAPACITY = ("karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType")


def size(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """What a pod asks for is there on one node of its type."""
    facts = pod.instance
    if facts is None or not pod.complete:
        return
    most = {"cpu": facts.cpu, "memory": facts.memory_gi and facts.memory_gi * GIB}
    for resource, there in most.items():
        asked = pod.requested(resource)
        if there and asked > there:
            shown = [f"{n:g}" if resource == "cpu" else f"{n / GIB:.0f}Gi" for n in (asked, there)]
            yield Finding(
                "size",
                pod.at("containers"),
                f"{resource}: {shown[0]} asked for, {shown[1]} can be used of a {facts.name}: the "
                "pod waits for ever",
                f"write at most {shown[1]}",
            )
    yield from _shared_memory(pod, most["memory"])


def _shared_memory(pod: PodView, node: float | None) -> Iterator[Finding]:
    """What is written to a memory volume counts as memory of the container that writes it."""
    limits = [
        amount(mapping(container, "resources", "limits").get("memory"))
        for _, container in pod.with_devices()
    ]
    limit = min((value for value in limits if value), default=None)
    for index, volume in enumerate(items(pod.spec, "volumes")):
        empty = mapping(volume, "emptyDir")
        asked = amount(empty.get("sizeLimit"))
        if text(empty, "medium") != "Memory" or not asked:
            continue
        where = pod.at(f"volumes.{index}.emptyDir.sizeLimit")
        if node and asked > node:
            message = f"{asked / GIB:.0f}Gi of memory, and the node has {node / GIB:.0f}Gi"
            yield Finding("size", where, message, "write a part of the container's memory")
        elif limit and asked >= limit:
            message = f"{asked / GIB:.0f}Gi of the container's {limit / GIB:.0f}Gi of memory"
            fix = "write a part of the container's memory: what is written there counts"
            yield Finding("size", where, message, fix, Level.WARNING)


def architecture(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """Trainium nodes and AWS's Neuron images are x86."""
    values = [value for label in _ARCH for value in pod.node_labels().get(label, ())]
    if not values or "amd64" in values:
        return
    devices = stream.devices(pod)
    if devices or any(_is_x86(text(container, "image")) for _, container in pod.containers()):
        why = "nodes with Neuron devices are amd64" if devices else "the image is for x86"
        yield Finding(
            "architecture",
            pod.at(f"nodeSelector.{_ARCH[0]}"),
            f"{', '.join(map(shown_key, values))}: {why}",
            "write amd64",
        )


def _is_x86(image: str) -> bool:
    return any(part in image for part in ("neuronx", "amd64", "x86_64", "/neuron/"))


def spot_resume(pod: PodView, stream: Stream) -> Iterator[Finding]:
    """A Spot instance takes the whole program with it; what does not resume begins anew."""
    labels = pod.node_labels()
    spot = any(value.lower() == "spot" for label in _CAPACITY for value in labels.get(label, ()))
    launch = launch_of(pod)
    resumes = launch is not None and any("resume" in word for word in launch.line)
    if spot and launch is not None and not resumes and pod.width > 1 and stream.devices(pod):
        yield Finding(
            "spot-resume",
            pod.at(f"{launch.place}.args"),
            f"{pod.width} Spot nodes, and training does not resume: each interruption begins anew",
            "save checkpoints and resume from them (--resume=auto), or take capacity on demand",
        )


def node_pools(stream: Stream) -> Iterator[Finding]:
    """A NodePool asks for types that exist, and for a class that the file has."""
    for pool in stream.of_kind("NodePool"):
        spec = mapping(pool, "spec", "template", "spec")
        for index, requirement in enumerate(items(spec, "requirements")):
            if text(requirement, "key") != INSTANCE_LABEL or text(requirement, "operator") != "In":
                continue
            wrong = [
                value
                for value in words(requirement, "values")
                if value.startswith("trn") and value not in INSTANCES
            ]
            if wrong:
                yield Finding(
                    "nodepool",
                    f"{title(pool)} spec.template.spec.requirements.{index}.values",
                    f"trnx knows no instance type {', '.join(map(shown_key, wrong))}",
                    f"write one of {', '.join(INSTANCES)}",
                )
        yield from _node_class(pool, spec, stream)


def _node_class(pool: Manifest, spec: Manifest, stream: Stream) -> Iterator[Finding]:
    reference = mapping(spec, "nodeClassRef")
    kind, name = text(reference, "kind"), text(reference, "name")
    there = [name_of(item) for item in stream.of_kind(kind)] if kind else []
    if there and name not in there:
        yield Finding(
            "nodepool",
            f"{title(pool)} spec.template.spec.nodeClassRef.name",
            f"these manifests have no {kind} {shown_key(name)}",
            f"write {', '.join(map(shown_key, there))}",
        )
