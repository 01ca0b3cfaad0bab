"""Rules about names that point somewhere: objects that the file defines otherwise, and ports."""

from __future__ import annotations

from collections.abc import Iterator

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.reading import items, mapping, name_of, text, title
from trnx.eks.rules_workload import selected

_QUEUE = "kueue.x-k8s.io/queue-name"
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
# (place, kind, name)
Reference = tuple[str, str, str]


def _pod_references(pod: PodView) -> Iterator[Reference]:
    for index, volume in enumerate(items(pod.spec, "volumes")):
        for key, part, kind in (
            ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
            ("configMap", "name", "ConfigMap"),
            ("secret", "secretName", "Secret"),
        ):
            source = mapping(volume, key)
            if source.get("optional") is not True:
                yield f"volumes.{index}.{key}.{part}", kind, text(source, part)
    for index, claim in enumerate(items(pod.spec, "resourceClaims")):
        place = f"resourceClaims.{index}"
        name = text(claim, "resourceClaimTemplateName")
        yield f"{place}.resourceClaimTemplateName", "ResourceClaimTemplate", name
        yield f"{place}.resourceClaimName", "ResourceClaim", text(claim, "resourceClaimName")
    yield "serviceAccountName", "ServiceAccount", text(pod.spec, "serviceAccountName")
    yield "priorityClassName", "PriorityClass", text(pod.spec, "priorityClassName")
    for place, container in pod.containers():
        yield from _environment(place, container)


def _environment(place: str, container: Manifest) -> Iterator[Reference]:
    kinds = (("configMap", "ConfigMap"), ("secret", "Secret"))
    for index, variable in enumerate(items(container, "env")):
        for key, kind in kinds:
            source = mapping(variable, "valueFrom", f"{key}KeyRef")
            if source.get("optional") is not True:
                yield f"{place}.env.{index}.valueFrom.{key}KeyRef.name", kind, text(source, "name")
    for index, source in enumerate(items(container, "envFrom")):
        for key, kind in kinds:
            reference = mapping(source, f"{key}Ref")
            if reference.get("optional") is not True:
                yield f"{place}.envFrom.{index}.{key}Ref.name", kind, text(reference, "name")


def _object_references(manifest: Manifest) -> Iterator[Reference]:
    queue = text(mapping(manifest, "metadata", "labels"), _QUEUE)
    yield f"metadata.labels.{_QUEUE}", "LocalQueue", queue
    kind, spec = text(manifest, "kind"), mapping(manifest, "spec")
    if kind == "LocalQueue":
        yield "spec.clusterQueue", "ClusterQueue", text(spec, "clusterQueue")
    if kind == "ClusterQueue":
        for index, group in enumerate(items(spec, "resourceGroups")):
            for number, flavor in enumerate(items(group, "flavors")):
                place = f"spec.resourceGroups.{index}.flavors.{number}.name"
                yield place, "ResourceFlavor", text(flavor, "name")
    if kind == "TrainJob":
        reference = mapping(spec, "runtimeRef")
        target = text(reference, "kind") or "ClusterTrainingRuntime"
        yield "spec.runtimeRef.name", target, text(reference, "name")
    if kind == "PersistentVolumeClaim":
        yield "spec.storageClassName", "StorageClass", text(spec, "storageClassName")
        yield "spec.volumeName", "PersistentVolume", text(spec, "volumeName")
    if kind == "StatefulSet":
        yield "spec.serviceName", "Service", text(spec, "serviceName")


def references(stream: Stream) -> Iterator[Finding]:
    """A name is one that the file defines, where it defines objects of that kind at all."""
    found = [
        (f"{title(manifest)} {place}", kind, name)
        for manifest in stream.manifests
        for place, kind, name in _object_references(manifest)
    ]
    for pod in stream.pods():
        found += [(pod.at(place), kind, name) for place, kind, name in _pod_references(pod)]
    for where, kind, name in dict.fromkeys(found):
        there = [name_of(item) for item in stream.of_kind(kind)]
        if name and there and name not in there:
            yield Finding(
                "reference",
                where,
                f"these manifests have a {kind}, and none is called {shown_key(name)}",
                f"write {', '.join(sorted({shown_key(item) for item in there}))}, if that is meant",
            )


def _port_names(pod: PodView) -> set[str]:
    return {text(port, "name") for _, c in pod.containers() for port in items(c, "ports")} - {""}


def ports(stream: Stream) -> Iterator[Finding]:
    """A port that is named by a probe or a Service is named by a container."""
    for pod in stream.pods():
        for place, container in pod.containers():
            own = {text(port, "name") for port in items(container, "ports")}
            for probe in _PROBES:
                for way in ("httpGet", "tcpSocket"):
                    name = text(mapping(container, probe, way), "port")
                    if name and not name.isdigit() and name not in own:
                        yield _unknown_port(pod.at(f"{place}.{probe}.{way}.port"), name, own)
    for service in stream.of_kind("Service"):
        pods = [pod for pod in selected(service, stream) if pod.spec]
        for index, port in enumerate(items(mapping(service, "spec"), "ports")):
            name = text(port, "targetPort")
            there = {known for pod in pods for known in _port_names(pod)}
            if name and not name.isdigit() and pods and name not in there:
                yield _unknown_port(f"{title(service)} spec.ports.{index}.targetPort", name, there)


def _unknown_port(where: str, name: str, there: set[str]) -> Finding:
    return Finding(
        "port",
        where,
        f"no container names a port {shown_key(name)}",
        f"write one of {', '.join(sorted(there - {''})) or 'its ports'}, or a number",
        Level.ERROR,
    )
