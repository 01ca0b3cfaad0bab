"""What the API server refuses of affinities, spread constraints and selectors of labels.

Source: Kubernetes' API reference of Pod and LabelSelector, and its validation
(pkg/apis/core/validation, apimachinery/pkg/apis/meta/v1/validation).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnx.eks.documents import Manifest
from trnx.eks.errors import Finding
from trnx.eks.levels import Level
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.reading import items, mapping, text, whole

_WITH_VALUES = ("In", "NotIn")
_WITHOUT = ("Exists", "DoesNotExist")
_BOUNDS = ("Gt", "Lt")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_UNSATISFIED = ("DoNotSchedule", "ScheduleAnyway")
# (field, what is wrong, fix)
Problem = tuple[str, str, str]


def _expression(place: str, expression: Manifest, of_nodes: bool) -> Iterator[Problem]:
    operator, values = text(expression, "operator"), expression.get("values")
    known = (*_WITH_VALUES, *_WITHOUT, *(_BOUNDS if of_nodes else ()))
    if operator not in known:
        yield f"{place}.operator", "is no operator", f"write one of {', '.join(known)}"
    elif operator in _WITH_VALUES and not values:
        yield f"{place}.values", f"is empty, and the operator is {operator}", "write a value"
    elif operator in _WITHOUT and values:
        yield f"{place}.values", f"is not for the operator {operator}", "remove the values"
    elif operator in _BOUNDS and (not isinstance(values, list) or len(values) != 1):
        yield f"{place}.values", f"the operator {operator} takes one number", "write one value"


def _expressions(place: str, value: Any, of_nodes: bool = False) -> Iterator[Problem]:
    for key in ("matchExpressions", "matchFields"):
        for index, expression in enumerate(items(value, key)):
            yield from _expression(f"{place}.{key}.{index}", expression, of_nodes)


def _node_affinity(place: str, affinity: Manifest) -> Iterator[Problem]:
    required = mapping(affinity, _REQUIRED)
    if required and not items(required, "nodeSelectorTerms"):
        yield f"{place}.{_REQUIRED}.nodeSelectorTerms", "is empty", "write a term"
    for index, term in enumerate(items(required, "nodeSelectorTerms")):
        yield from _expressions(f"{place}.{_REQUIRED}.nodeSelectorTerms.{index}", term, True)
    for index, term in enumerate(items(affinity, _PREFERRED)):
        where = f"{place}.{_PREFERRED}.{index}"
        yield from _weight(where, term)
        yield from _expressions(f"{where}.preference", mapping(term, "preference"), True)


def _pod_affinity(place: str, affinity: Manifest) -> Iterator[Problem]:
    terms = [(f"{_REQUIRED}.{i}", term) for i, term in enumerate(items(affinity, _REQUIRED))]
    for index, preferred in enumerate(items(affinity, _PREFERRED)):
        yield from _weight(f"{place}.{_PREFERRED}.{index}", preferred)
        inner = mapping(preferred, "podAffinityTerm")
        terms.append((f"{_PREFERRED}.{index}.podAffinityTerm", inner))
    for where, term in terms:
        if not text(term, "topologyKey"):
            fix = "write a node's label, such as kubernetes.io/hostname"
            yield f"{place}.{where}.topologyKey", "is empty", fix
        selector = mapping(term, "labelSelector")
        yield from _expressions(f"{place}.{where}.labelSelector", selector)


def _weight(place: str, term: Manifest) -> Iterator[Problem]:
    weight = whole(term.get("weight"))
    if weight is not None and not 1 <= weight <= 100:
        yield f"{place}.weight", "is not from 1 to 100", "write such a weight"


def _spread(spec: Manifest) -> Iterator[Problem]:
    for index, constraint in enumerate(items(spec, "topologySpreadConstraints")):
        place = f"topologySpreadConstraints.{index}"
        if text(constraint, "whenUnsatisfiable") not in _UNSATISFIED:
            fix = f"write one of {', '.join(_UNSATISFIED)}"
            yield f"{place}.whenUnsatisfiable", "is no word for it", fix
        skew = whole(constraint.get("maxSkew"))
        if skew is not None and skew < 1:
            yield f"{place}.maxSkew", "is less than 1", "write at least 1"
        selector = mapping(constraint, "labelSelector")
        yield from _expressions(f"{place}.labelSelector", selector)


def refused_placement(pod: PodView, stream: Stream) -> Iterator[Finding]:  # noqa: ARG001
    """Where a pod may run is said in words that Kubernetes knows."""
    affinity = mapping(pod.spec, "affinity")
    found = [*_node_affinity("affinity.nodeAffinity", mapping(affinity, "nodeAffinity"))]
    for key in ("podAffinity", "podAntiAffinity"):
        found += _pod_affinity(f"affinity.{key}", mapping(affinity, key))
    for field, message, fix in (*found, *_spread(pod.spec)):
        yield Finding("schema", pod.at(field), message, fix, Level.ERROR)
