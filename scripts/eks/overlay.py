"""`overrides`: a strategic merge patch over what is rendered, by kind.

Mappings are merged, null removes a key, lists of things with a key of their own (containers by
name, mounts by path) are merged by it, other lists are replaced. `$patch: delete` removes an entry
of such a list, `$patch: replace` a whole mapping. What comes out is held against all rules.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from trnx.eks.documents import Manifest

DIRECTIVE = "$patch"
# Keys of list entries, as Kubernetes merges them.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "resourceClaims": "name",
    "claims": "name",
    "imagePullSecrets": "name",
    "replicatedJobs": "name",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_PORT_KEYS = ("containerPort", "port")


def _key_of(field: str, entries: list[Any]) -> str | None:
    if field == "ports":
        first = next((entry for entry in entries if isinstance(entry, dict)), {})
        return next((key for key in _PORT_KEYS if key in first), None)
    return MERGE_KEYS.get(field)


def _merge_list(field: str, old: list[Any], new: list[Any]) -> list[Any]:
    key = _key_of(field, [*old, *new])
    keyed = key is not None and all(isinstance(entry, dict) and key in entry for entry in new)
    if key is None or not keyed:
        return copy.deepcopy(new)
    merged = list(old)
    for entry in new:
        places = [index for index, item in enumerate(merged) if item.get(key) == entry[key]]
        if entry.get(DIRECTIVE) == "delete":
            merged = [item for index, item in enumerate(merged) if index not in places]
        elif places:
            merged[places[0]] = merge(merged[places[0]], entry)
        else:
            merged.append(merge({}, entry))
    return merged


def merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with the patch over it; neither is changed."""
    result = {} if patch.get(DIRECTIVE) == "replace" else dict(old)
    for key, value in patch.items():
        if key == DIRECTIVE:
            continue
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list):
            result[key] = _merge_list(key, before if isinstance(before, list) else [], value)
        else:
            result[key] = value
    return result


def overlaid(manifest: Manifest, overrides: Mapping[str, Mapping[str, Any]]) -> Manifest:
    """The manifest with the patch of its kind over it."""
    patch = overrides.get(manifest["kind"])
    return manifest if patch is None else merge(manifest, patch)
