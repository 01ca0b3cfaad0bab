"""Whether a pod fits on a node now, as the scheduler decides it: labels, taints, what is free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trnx.eks.documents import Manifest
from trnx.eks.pod_views import PodView
from trnx.eks.pods import EFA, NEURON
from trnx.eks.reading import amount, items, mapping, name_of, text, words

RESOURCES = (NEURON, EFA, "cpu", "memory")
_ENDED = ("Succeeded", "Failed")
# What keeps a pod off a node; PreferNoSchedule does not.
_KEEPING_OFF = ("NoSchedule", "NoExecute")


def labels_of(node: Manifest) -> Manifest:
    """A node's labels."""
    return mapping(node, "metadata", "labels")


def is_ready(node: Manifest) -> bool:
    """Whether the node's kubelet says that it takes pods."""
    return any(
        found.get("type") == "Ready" and found.get("status") == "True"
        for found in items(mapping(node, "status"), "conditions")
    )


def _holds(expression: Manifest, labels: Manifest) -> bool:
    key, operator = text(expression, "key"), text(expression, "operator")
    values, value = words(expression, "values"), labels.get(key)
    if operator in ("Gt", "Lt"):
        ours, bound = amount(value), amount(values[0] if values else None)
        if ours is None or bound is None:
            return False
        return ours > bound if operator == "Gt" else ours < bound
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(operator, True)


def is_selected(pod: PodView, node: Manifest) -> bool:
    """Whether nodeSelector and required node affinity take the node."""
    labels = labels_of(node)
    selector = mapping(pod.spec, "nodeSelector")
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = mapping(pod.spec, "affinity", "nodeAffinity")
    required = mapping(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = items(required, "nodeSelectorTerms")
    return not terms or any(
        all(_holds(expression, labels) for expression in items(term, "matchExpressions"))
        for term in terms
    )


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if text(toleration, "effect") not in ("", text(taint, "effect")):
        return False
    key = text(toleration, "key")
    if text(toleration, "operator") == "Exists":
        return key in ("", text(taint, "key"))
    return key == text(taint, "key") and text(toleration, "value") == text(taint, "value")


def _taint(pod: PodView, node: Manifest) -> str:
    """The key of a taint that keeps the pod off the node, or an empty text."""
    for taint in items(mapping(node, "spec"), "taints"):
        tolerated = any(_tolerates(one, taint) for one in items(pod.spec, "tolerations"))
        if text(taint, "effect") in _KEEPING_OFF and not tolerated:
            return text(taint, "key")
    return ""


def closed(pod: PodView, node: Manifest) -> str:
    """Why the node takes no pod like this one, however much is free on it; empty if it does."""
    if not is_ready(node):
        return "is not ready"
    if mapping(node, "spec").get("unschedulable") is True:
        return "is cordoned"
    taint = _taint(pod, node)
    return f"has the taint {taint}, which the pod does not tolerate" if taint else ""


@dataclass(frozen=True)
class Room:
    """Pods of one kind that fit on a node now; `short`: what there is too little of."""

    pods: int
    short: str = ""


def _views(pods: list[Manifest], node: str) -> Iterator[PodView]:
    for pod in pods:
        spec, phase = mapping(pod, "spec"), text(mapping(pod, "status"), "phase")
        if text(spec, "nodeName") == node and phase not in _ENDED:
            yield PodView(pod, "spec", spec, mapping(pod, "metadata"))


def _asked(pod: PodView, resource: str) -> float:
    if resource in (NEURON, EFA):
        return float(pod.count(resource))
    return pod.requested(resource)


def room(pod: PodView, node: Manifest, running: list[Manifest]) -> Room:
    """How many more of a pod fit: what the node can hand out, less the requests of its pods."""
    there = list(_views(running, name_of(node)))
    whole = mapping(node, "status", "allocatable")
    most: Room | None = None
    for resource in RESOURCES:
        wanted = _asked(pod, resource)
        # A kubelet says what there is of CPU and memory; where it does not, nothing is known.
        if not wanted or (resource not in whole and resource in ("cpu", "memory")):
            continue
        free = (amount(whole.get(resource)) or 0.0) - sum(_asked(one, resource) for one in there)
        count = max(int(free // wanted), 0)
        if most is None or count < most.pods:
            most = Room(
                count,
                f"{_shown(resource, max(free, 0))} free, a pod asks for {_shown(resource, wanted)}",
            )
    return most or Room(1)


def _shown(resource: str, number: float) -> str:
    if resource == "memory":
        return f"{number / 2**30:.4g}Gi of memory"
    return f"{number:g} {resource}"
