"""Words that the API server takes for a field, where the published schemas say `string` alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.pod_views import Stream
from trnx.eks.reading import items, mapping, title

_MODES = ("ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod")
# Field of a pod's spec -> words; of its containers; of its tolerations.
_POD = {
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "restartPolicy": ("Always", "OnFailure", "Never"),
}
_CONTAINER = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
_TOLERATION = {
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
    "operator": ("Exists", "Equal", ""),
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


def words_of_fields(stream: Stream) -> Iterator[Finding]:
    """Fields that hold one of a few words hold one of these."""
    for manifest in stream.manifests:
        yield from _wrong(f"{title(manifest)} spec", mapping(manifest, "spec"), _SPEC)
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
