"""Rules about names that point somewhere: objects that the file defines otherwise, and ports."""

from __future__ import annotations

from collections.abc import Iterator

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.reading import items, mapping, name_of, text, title, words
from trnx.eks.rules_workload import selected

_QUEUE = "kueue.x-k8s.io/queue-name"
_BUILT_IN = ("admin", "cluster-admin", "edit", "view")
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
        for index, check in enumerate(words(spec, "admissionChecks")):
            yield f"spec.admissionChecks.{index}", "AdmissionCheck", check
    if kind in ("RoleBinding", "ClusterRoleBinding"):
        role = mapping(manifest, "roleRef")
        # Roles that Kubernetes brings are in no file.
        if text(role, "name") not in _BUILT_IN:
            yield "roleRef.name", text(role, "kind"), text(role, "name")
    if kind == "Ingress":
        for place, backend in _backends(spec):
            yield f"{place}.name", "Service", text(backend, "name")
    if kind == "TrainJob":
        reference = mapping(spec, "runtimeRef")
        target = text(reference, "kind") or "ClusterTrainingRuntime"
        yield "spec.runtimeRef.name", target, text(reference, "name")
    if kind == "PersistentVolumeClaim":
        yield "spec.storageClassName", "StorageClass", text(spec, "storageClassName")
        yield "spec.volumeName", "PersistentVolume", text(spec, "volumeName")
    if kind == "StatefulSet":
        yield "spec.serviceName", "Service", text(spec, "serviceName")


def _backends(spec: Manifest) -> Iterator[tuple[str, Manifest]]:
    """(place, the Service that an Ingress sends requests to)."""
    yield "spec.defaultBackend.service", mapping(spec, "defaultBackend", "service")
    for index, rule in enumerate(items(spec, "rules")):
        for number, path in enumerate(items(mapping(rule, "http"), "paths")):
            place = f"spec.rules.{index}.http.paths.{number}.backend.service"
            yield place, mapping(path, "backend", "service")


def _keys(pod: PodView) -> Iterator[tuple[str, str, str]]:
    """(place, ConfigMap, key) of each key of a ConfigMap that the pod cannot start without."""
    for index, volume in enumerate(items(pod.spec, "volumes")):
        source = mapping(volume, "configMap")
        if source.get("optional") is not True:
            for number, item in enumerate(items(source, "items")):
                place = f"volumes.{index}.configMap.items.{number}.key"
                yield place, text(source, "name"), text(item, "key")
    for place, container in pod.containers():
        for index, variable in enumerate(items(container, "env")):
            source = mapping(variable, "valueFrom", "configMapKeyRef")
            if source.get("optional") is not True:
                where = f"{place}.env.{index}.valueFrom.configMapKeyRef.key"
                yield where, text(source, "name"), text(source, "key")


def keys_of_config_maps(stream: Stream) -> Iterator[Finding]:
    """A key that a pod needs is in the ConfigMap, where the file has that."""
    for pod in stream.pods():
        for place, name, key in _keys(pod):
            config = stream.beside(pod.manifest, "ConfigMap", name)
            if config is None or not key:
                continue
            there = {**mapping(config, "data"), **mapping(config, "binaryData")}
            if key not in there:
                yield Finding(
                    "reference",
                    pod.at(place),
                    f"ConfigMap {shown_key(name)} has no key {shown_key(key)}: no container starts",
                    f"write one of {', '.join(map(shown_key, sorted(there)))}",
                    Level.ERROR,
                )


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


# AWS's load balancer controller takes what to do from an annotation.
_BY_ANNOTATION = "use-annotation"


def ingress_ports(stream: Stream) -> Iterator[Finding]:
    """A port that an Ingress names is one of the Service, where the file has that."""
    for ingress in stream.of_kind("Ingress"):
        for place, backend in _backends(mapping(ingress, "spec")):
            service = stream.beside(ingress, "Service", text(backend, "name"))
            port = mapping(backend, "port")
            key, own = ("name", "name") if text(port, "name") else ("number", "port")
            wanted = str(port.get(key, ""))
            if service is None or not wanted or wanted == _BY_ANNOTATION:
                continue
            ports = items(mapping(service, "spec"), "ports")
            there = [str(item[own]) for item in ports if own in item]
            if wanted not in there:
                yield Finding(
                    "port",
                    f"{title(ingress)} {place}.port",
                    f"Service/{shown_key(name_of(service))} has no port {shown_key(wanted)}: "
                    "requests end in an error",
                    f"write one of {', '.join(map(shown_key, there)) or 'its number'}",
                    Level.ERROR,
                )
