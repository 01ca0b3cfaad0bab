"""Words that the API server takes for a field, where the published schemas say `string` alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.pod_views import Stream
from trnx.eks.reading import items, mapping, text, title

_MODES = ("ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod")
# Field of a pod's spec -> words; of its containers; of its tolerations.
_POD = {
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
    "restartPolicy": ("Always", "OnFailure", "Never"),
}
_CONTAINER = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
_MEDIUM: dict[str, tuple[str, ...]] = {"medium": ("Memory", "HugePages", "")}
_TOLERATION = {
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
    "operator": ("Exists", "Equal", ""),
}
# Field -> words, of other kinds: the place of the field's mapping, below `spec` or the object.
_OBJECTS: dict[str, tuple[tuple[str, dict[str, tuple[str, ...]]], ...]] = {
    "StorageClass": (
        (
            "",
            {
                "volumeBindingMode": ("Immediate", "WaitForFirstConsumer"),
                "reclaimPolicy": ("Delete", "Retain"),
            },
        ),
    ),
    "PersistentVolume": (
        ("spec", {"persistentVolumeReclaimPolicy": ("Delete", "Recycle", "Retain")}),
    ),
    "PodDisruptionBudget": (
        ("spec", {"unhealthyPodEvictionPolicy": ("IfHealthyBudget", "AlwaysAllow")}),
    ),
    "Ingress": (
        (
            "spec.rules.*.http.paths.*",
            {"pathType": ("Exact", "ImplementationSpecific", "Prefix")},
        ),
    ),
    "HorizontalPodAutoscaler": (
        ("spec.behavior.scaleUp", {"selectPolicy": ("Max", "Min", "Disabled")}),
        ("spec.behavior.scaleDown", {"selectPolicy": ("Max", "Min", "Disabled")}),
        ("spec.behavior.scaleUp.policies.*", {"type": ("Pods", "Percent")}),
        ("spec.behavior.scaleDown.policies.*", {"type": ("Pods", "Percent")}),
    ),
    "Service": (
        ("spec", {"type": ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")}),
        ("spec.ports.*", {"protocol": ("SCTP", "TCP", "UDP")}),
    ),
    "Deployment": (("spec.strategy", {"type": ("Recreate", "RollingUpdate")}),),
    "DaemonSet": (("spec.updateStrategy", {"type": ("OnDelete", "RollingUpdate")}),),
    "StatefulSet": (("spec.updateStrategy", {"type": ("OnDelete", "RollingUpdate")}),),
}
_SPEC = {
    "completionMode": ("Indexed", "NonIndexed"),
    "concurrencyPolicy": ("Allow", "Forbid", "Replace"),
    "podManagementPolicy": ("OrderedReady", "Parallel"),
    "podReplacementPolicy": ("TerminatingOrFailed", "Failed"),
}


def _wrong(where: str, value: Manifest, known: dict[str, tuple[str, ...]]) -> Iterator[Finding]:
    for key, words in known.items():
        found: Any = value.get(key)
        if isinstance(found, str) and found not in words:
            taken = ", ".join(word for word in words if word)
            yield Finding("schema", f"{where}.{key}", "is no word for it", f"write one of {taken}")


def _places(value: Any, path: list[str], where: str = "") -> Iterator[tuple[str, Manifest]]:
    """(place, mapping) of each mapping below a path; * stands for every item of a list."""
    if not path:
        if isinstance(value, dict):
            yield where, value
        return
    if path[0] == "*":
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _places(item, path[1:], f"{where}.{index}")
    elif isinstance(value, dict):
        yield from _places(value.get(path[0]), path[1:], f"{where}.{path[0]}")


def words_of_fields(stream: Stream) -> Iterator[Finding]:
    """Fields that hold one of a few words hold one of these."""
    for manifest in stream.manifests:
        yield from _wrong(f"{title(manifest)} spec", mapping(manifest, "spec"), _SPEC)
        for path, known in _OBJECTS.get(text(manifest, "kind"), ()):
            for where, value in _places(manifest, path.split(".") if path else []):
                yield from _wrong(f"{title(manifest)} {where[1:]}".rstrip(), value, known)
    for claim in stream.of_kind("PersistentVolumeClaim", "PersistentVolume"):
        modes = mapping(claim, "spec").get("accessModes")
        for mode in modes if isinstance(modes, list) else ():
            if mode not in _MODES:
                where = f"{title(claim)} spec.accessModes"
                message = f"{shown_key(mode)} is no access mode"
                yield Finding("schema", where, message, f"write one of {', '.join(_MODES)}")
    for pod in stream.pods():
        yield from _wrong(f"{title(pod.manifest)} {pod.path}", pod.spec, _POD)
        for place, container in pod.containers():
            yield from _wrong(pod.at(place), container, _CONTAINER)
        for index, toleration in enumerate(items(pod.spec, "tolerations")):
            yield from _wrong(pod.at(f"tolerations.{index}"), toleration, _TOLERATION)
        for index, volume in enumerate(items(pod.spec, "volumes")):
            empty = mapping(volume, "emptyDir")
            if not text(empty, "medium").startswith("HugePages"):
                yield from _wrong(pod.at(f"volumes.{index}.emptyDir"), empty, _MEDIUM)
