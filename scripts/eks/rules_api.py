"""What the API server, or the kubelet at the start, refuses of a pod though its schema takes it.

Source: Kubernetes' API reference of Pod, and its validation (pkg/apis/core/validation).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.reading import amount, items, mapping, text, whole

_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_FIELD = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)(\['[^']+'\])?)"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)
# Kinds whose pods do not end.
_LASTING = ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:localhost|[A-Za-z0-9.-]*[.:][A-Za-z0-9.:-]*)/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::\w[\w.-]{0,127})?(?:@[a-z0-9+._-]+:[0-9a-fA-F]{32,})?"
)
# (field, what is wrong, fix)
Problem = tuple[str, str, str]


def _twice(names: list[str], place: str, what: str) -> Iterator[Problem]:
    for name, count in Counter(names).items():
        if name and count > 1:
            yield place, f"{what} {shown_key(name)} stands {count} times", "give each its own"


def _resources(place: str, container: Manifest) -> Iterator[Problem]:
    resources = mapping(container, "resources")
    requests, limits = mapping(resources, "requests"), mapping(resources, "limits")
    for part, found in (("requests", requests), ("limits", limits)):
        for key, value in found.items():
            number = amount(value)
            if number is None or number < 0:
                field = f"{place}.resources.{part}.{shown_key(key)}"
                yield field, "is no quantity", "write one such as 8, 500m or 32Gi"
    yield from _huge_pages(place, requests, limits)
    for key, value in requests.items():
        asked, limit = amount(value), amount(limits.get(key))
        if "/" not in str(key) and asked is not None and limit is not None and asked > limit:
            field = f"{place}.resources.requests.{shown_key(key)}"
            yield field, "is more than the limit", "write a request of at most the limit"


def _huge_pages(place: str, requests: Manifest, limits: Manifest) -> Iterator[Problem]:
    """Kubernetes' documentation, "Manage HugePages": requests equal limits, with CPU or memory."""
    pages = sorted({str(k) for k in (*requests, *limits) if str(k).startswith("hugepages-")})
    for key in pages:
        asked = requests.get(key, limits.get(key))
        if amount(asked) != amount(limits.get(key)):
            field = f"{place}.resources.limits.{shown_key(key)}"
            yield field, "is not what is requested", "write the same in requests and limits"
    if pages and not {"cpu", "memory"} & {*requests, *limits}:
        yield f"{place}.resources", "has huge pages alone", "ask for CPU or memory too"


def _environment(place: str, container: Manifest) -> Iterator[Problem]:
    for index, variable in enumerate(items(container, "env")):
        field = f"{place}.env.{index}"
        source = mapping(variable, "valueFrom")
        if not _ENV_NAME.fullmatch(text(variable, "name")):
            fix = "letters, digits and _, and no ="
            yield f"{field}.name", "is no name of a variable", fix
        if source and variable.get("value"):
            yield field, "has both value and valueFrom", "remove one of them"
        if len(source) > 1:
            yield f"{field}.valueFrom", "has several sources", "keep one of them"
        path = text(mapping(source, "fieldRef"), "fieldPath")
        if path and not _FIELD.fullmatch(path):
            fix = "one such as metadata.name, metadata.labels['key'] or status.podIP"
            yield f"{field}.valueFrom.fieldRef.fieldPath", "is no field of a pod for variables", fix


def _mounts(place: str, container: Manifest) -> Iterator[Problem]:
    mounts = items(container, "volumeMounts")
    yield from _twice([text(m, "mountPath") for m in mounts], f"{place}.volumeMounts", "the path")
    for index, mount in enumerate(mounts):
        path = text(mount, "subPath")
        if path.startswith("/") or ".." in path.split("/"):
            field = f"{place}.volumeMounts.{index}.subPath"
            yield field, "leads out of the volume", "write a path inside, without / in front and .."


def _ports(place: str, container: Manifest) -> Iterator[Problem]:
    ports = items(container, "ports")
    yield from _twice([text(port, "name") for port in ports], f"{place}.ports", "the name")
    for index, port in enumerate(ports):
        number = whole(port.get("containerPort"))
        field = f"{place}.ports.{index}"
        if number is not None and not 1 <= number <= 65535:
            yield f"{field}.containerPort", "is no port", "write a number from 1 to 65535"
        if len(text(port, "name")) > 15:
            yield f"{field}.name", "is longer than 15 characters", "write a shorter name"


def _host_ports(place: str, container: Manifest, pod: Manifest) -> Iterator[Problem]:
    for index, port in enumerate(items(container, "ports")):
        host = whole(port.get("hostPort"))
        differs = host is not None and host != whole(port.get("containerPort"))
        if pod.get("hostNetwork") is True and differs:
            message = "differs from containerPort, and the pod is on the host's network"
            yield f"{place}.ports.{index}.hostPort", message, "write the same port, or none"


def _context(place: str, container: Manifest, pod: Manifest) -> Iterator[Problem]:
    own, whole_pod = mapping(container, "securityContext"), mapping(pod, "securityContext")
    field = f"{place}.securityContext"
    if own.get("privileged") is True and own.get("allowPrivilegeEscalation") is False:
        message = "is privileged, and allowPrivilegeEscalation is false"
        yield field, message, "remove `privileged`: devices are handed in"
    said = {**whole_pod, **own}
    if said.get("runAsNonRoot") is True and said.get("runAsUser") == 0:
        message = "runAsNonRoot is true, and runAsUser 0 is root: the container is not started"
        yield field, message, "write the image's user, such as 1000"


def _probes(place: str, container: Manifest) -> Iterator[Problem]:
    for key in _PROBES:
        given = [handler for handler in _HANDLERS if handler in mapping(container, key)]
        if len(given) > 1:
            yield f"{place}.{key}", f"asks in {len(given)} ways", f"keep one of {', '.join(given)}"


def _container(place: str, container: Manifest, pod: Manifest) -> Iterator[Problem]:
    image = text(container, "image")
    if image and not _IMAGE.fullmatch(image):
        fix = "registry/name:tag, the name in lower case; fill in what a template left open"
        yield f"{place}.image", "is no reference of an image: it cannot be pulled", fix
    yield from _resources(place, container)
    yield from _environment(place, container)
    yield from _mounts(place, container)
    yield from _ports(place, container)
    yield from _host_ports(place, container, pod)
    yield from _context(place, container, pod)
    yield from _probes(place, container)


def _projections(place: str, volume: Manifest) -> Iterator[Problem]:
    """Paths of files inside of a volume."""
    parts = [(f"{place}.{key}", mapping(volume, key)) for key in ("configMap", "secret")]
    for number, source in enumerate(items(mapping(volume, "projected"), "sources")):
        at = f"{place}.projected.sources.{number}"
        parts += [(f"{at}.{key}", mapping(source, key)) for key in ("configMap", "secret")]
    for field, part in parts:
        for index, item in enumerate(items(part, "items")):
            path = text(item, "path")
            if path.startswith("/") or ".." in path.split("/"):
                fix = "write a path inside, without / in front and .."
                yield f"{field}.items.{index}.path", "leads out of the volume", fix


def _volumes(spec: Manifest) -> Iterator[Problem]:
    volumes = items(spec, "volumes")
    yield from _twice([text(volume, "name") for volume in volumes], "volumes", "the name")
    for index, volume in enumerate(volumes):
        sources = sorted(set(map(str, volume)) - {"name"})
        if len(sources) > 1:
            yield f"volumes.{index}", f"has {len(sources)} sources", "keep one of them"
        yield from _projections(f"volumes.{index}", volume)
        size = mapping(volume, "emptyDir").get("sizeLimit")
        if size is not None and amount(size) is None:
            fix = "write one such as 8Gi"
            yield f"volumes.{index}.emptyDir.sizeLimit", "is no quantity", fix


def _pod(spec: Manifest) -> Iterator[Problem]:
    if not items(spec, "containers"):
        yield "containers", "has no container", "write one"
    names = [text(c, "name") for k in ("initContainers", "containers") for c in items(spec, k)]
    yield from _twice(names, "containers", "the name")
    user = mapping(spec, "securityContext").get("runAsUser")
    if isinstance(user, int) and user < 0:
        yield "securityContext.runAsUser", "is less than 0", "write a user's number, such as 1000"
    for index, toleration in enumerate(items(spec, "tolerations")):
        exists = text(toleration, "operator") == "Exists"
        if exists and toleration.get("value"):
            fix = "remove `value`, or write operator: Equal"
            yield f"tolerations.{index}", "has a value, and its operator is Exists", fix
        if not exists and not text(toleration, "key"):
            fix = "write the taint's key, or operator: Exists"
            yield f"tolerations.{index}", "has no key, and its operator is Equal", fix
    yield from _volumes(spec)


def refused_pod(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Fields of a pod that contradict each other, or hold what no such field can."""
    if not pod.complete:
        return
    found = list(_pod(pod.spec))
    for place, container in pod.containers():
        found += _container(place, container, pod.spec)
    if pod.kind in _LASTING and "activeDeadlineSeconds" in pod.spec:
        found.append(("activeDeadlineSeconds", f"is not for pods of a {pod.kind}", "remove it"))
    for field, message, fix in found:
        yield Finding("schema", pod.at(field), message, fix, Level.ERROR)
