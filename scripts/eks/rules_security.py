"""Rules about rights: what of the host a pod may use, and what a `restricted` namespace admits.

Source: the Pod Security Standards of Kubernetes, profile Restricted (which includes Baseline).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnx.eks.documents import Manifest
from trnx.eks.errors import Finding
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.reading import items, mapping, text, whole, words

_HOST = ("hostNetwork", "hostPID", "hostIPC")
_FIX = "remove it: devices are handed in, and /dev/shm is a memory volume"
# Volumes that the profile admits.
_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "name",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SECCOMP = ("RuntimeDefault", "Localhost")
_SELINUX = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
)
Problem = tuple[str, str]


def host_access(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """The device plugin or DRA hands devices in; a pod needs nothing of the host."""
    for key in _HOST:
        if pod.spec.get(key) is True:
            yield Finding("host-access", pod.at(key), "the pod shares it with the host", _FIX)
    for index, volume in enumerate(items(pod.spec, "volumes")):
        if "hostPath" in volume:
            field = pod.at(f"volumes.{index}.hostPath")
            yield Finding("host-access", field, "the pod mounts a folder of the host", _FIX)
    for place, container in pod.containers():
        if mapping(container, "securityContext").get("privileged") is True:
            field = pod.at(f"{place}.securityContext.privileged")
            yield Finding("host-access", field, "the container may do all that root may", _FIX)


def _pod_problems(spec: Manifest) -> Iterator[Problem]:
    for key in _HOST:
        if spec.get(key) is True:
            yield key, "is not admitted"
    for index, volume in enumerate(items(spec, "volumes")):
        for kind in sorted(set(map(str, volume)) - _VOLUMES):
            yield f"volumes.{index}", f"volumes of kind {kind} are not admitted"
    for sysctl in items(mapping(spec, "securityContext"), "sysctls"):
        if text(sysctl, "name") not in _SYSCTLS:
            yield "securityContext.sysctls", "is not one of the safe ones"
    yield from _context_problems("securityContext", mapping(spec, "securityContext"))


def _context_problems(place: str, context: Manifest) -> Iterator[Problem]:
    """What neither a pod's nor a container's context may say."""
    if context.get("runAsUser") == 0:
        yield f"{place}.runAsUser", "0 is root"
    if context.get("runAsNonRoot") is False:
        yield f"{place}.runAsNonRoot", "has to be true"
    options = mapping(context, "seLinuxOptions")
    if text(options, "type") not in _SELINUX or text(options, "user") or text(options, "role"):
        yield f"{place}.seLinuxOptions", "are the host's"
    if text(mapping(context, "appArmorProfile"), "type") == "Unconfined":
        yield f"{place}.appArmorProfile.type", "Unconfined is not admitted"
    seccomp = mapping(context, "seccompProfile")
    if seccomp and text(seccomp, "type") not in _SECCOMP:
        yield f"{place}.seccompProfile.type", f"has to be one of {', '.join(_SECCOMP)}"


def _container_problems(place: str, container: Manifest, pod: Manifest) -> Iterator[Problem]:
    context = mapping(container, "securityContext")
    where = f"{place}.securityContext"
    yield from _context_problems(where, context)
    if context.get("privileged") is True:
        yield f"{where}.privileged", "is not admitted"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}.allowPrivilegeEscalation", "has to be false"
    capabilities = mapping(context, "capabilities")
    if "ALL" not in words(capabilities, "drop"):
        yield f"{where}.capabilities.drop", "has to hold ALL"
    if set(words(capabilities, "add")) - {"NET_BIND_SERVICE"}:
        yield f"{where}.capabilities.add", "may hold NET_BIND_SERVICE alone"
    if text(context, "procMount") not in ("", "Default"):
        yield f"{where}.procMount", "has to be Default"
    if _said(context, pod, "runAsNonRoot") is not True:
        yield f"{where}.runAsNonRoot", "has to be true, here or for the pod"
    if not _said(context, pod, "seccompProfile"):
        yield f"{where}.seccompProfile.type", "has to be RuntimeDefault, here or for the pod"
    for index, port in enumerate(items(container, "ports")):
        if whole(port.get("hostPort")):
            yield f"{place}.ports.{index}.hostPort", "is not admitted"


def _said(context: Manifest, pod: Manifest, key: str) -> Any:
    return context.get(key, mapping(pod, "securityContext").get(key))


def restricted_problems(spec: Manifest) -> list[Problem]:
    """(field, what is wrong) of a pod that a namespace with the profile Restricted refuses."""
    found = [*_pod_problems(spec)]
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(items(spec, key)):
            found += _container_problems(f"{key}.{index}", container, spec)
    return found


def pod_security(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """A namespace whose pods are restricted admits the pod; one finding for a pod."""
    found = restricted_problems(pod.spec) if pod.complete else []
    if found:
        yield Finding(
            "pod-security",
            pod.at(found[0][0]),
            f"{found[0][1]}; a `restricted` namespace refuses the pod for {len(found)} reasons: "
            f"{', '.join(place for place, _ in found[:6])}",
            "run as a user that is not root, with allowPrivilegeEscalation: false, capabilities "
            "{drop: [ALL]} and seccompProfile {type: RuntimeDefault}",
        )
