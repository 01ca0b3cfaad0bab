"""Arguments and results as flat lists: the containers between them, as JSON.

Containers are tuples, lists and dictionaries; a result in another mapping (the outputs of
`transformers` are some) comes back as a dictionary, because a folder must not name a class to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from trnx.backend.errors import InputChangedError
from trnx.backend.exported.errors import ExportError

# {"leaf": index} | {"tuple": [...]} | {"list": [...]} | {"dict": {key: ...}}
Structure = dict[str, Any]


def structure_of(value: Any, where: str, *, mappings: type = dict) -> tuple[Structure, list[Any]]:
    """The structure of `value`, and its leaves in order. Subclasses of `mappings` count as
    dictionaries. Raises ExportError for a container of another kind."""
    leaves: list[Any] = []
    return _walk(value, where, mappings, leaves), leaves


def _walk(value: Any, where: str, mappings: type, leaves: list[Any]) -> Structure:
    if isinstance(value, mappings) and isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ExportError(f"{where} has a dictionary whose keys are not strings; use strings")
        return {"dict": {k: _walk(v, where, mappings, leaves) for k, v in value.items()}}
    for kind in (tuple, list):
        if isinstance(value, kind):
            return {kind.__name__: [_walk(item, where, mappings, leaves) for item in value]}
    if _is_container(value):
        raise ExportError(
            f"{where} holds a {type(value).__name__}, which is no tuple, list or dictionary: pass "
            "or return tensors (a model of transformers without a cache: use_cache=False)"
        )
    leaves.append(value)
    return {"leaf": len(leaves) - 1}


def _is_container(value: Any) -> bool:
    return type(value) in pytree.SUPPORTED_NODES


def flatten(structure: Structure, value: Any, where: str) -> list[Any]:
    """The leaves of `value`, which has this structure. Raises InputChangedError where it has
    another."""
    ((kind, members),) = structure.items()
    if kind == "leaf":
        return [value]
    if kind == "dict":
        if not isinstance(value, dict) or value.keys() != members.keys():
            raise InputChangedError(f"{where} must be a dictionary with {sorted(members)}")
        return [x for k, m in members.items() for x in flatten(m, value[k], f"{where}[{k!r}]")]
    if not isinstance(value, (tuple, list)) or len(value) != len(members):
        raise InputChangedError(f"{where} must be a {kind} of {len(members)}")
    pairs = enumerate(zip(members, value, strict=True))
    return [x for i, (m, v) in pairs for x in flatten(m, v, f"{where}[{i}]")]


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The value of this structure with these leaves."""
    ((kind, members),) = structure.items()
    if kind == "leaf":
        return leaves[members]
    if kind == "dict":
        return {key: unflatten(member, leaves) for key, member in members.items()}
    make: Callable[[Any], Any] = tuple if kind == "tuple" else list
    return make(unflatten(member, leaves) for member in members)


def is_structure(value: Any, leaves: int) -> bool:
    """Whether JSON that was read is a structure with no more than so many leaves."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, members),) = value.items()
    if kind == "leaf":
        return type(members) is int and 0 <= members < leaves
    if kind == "dict":
        return isinstance(members, dict) and all(is_structure(m, leaves) for m in members.values())
    return (
        kind in ("tuple", "list")
        and isinstance(members, list)
        and all(is_structure(m, leaves) for m in members)
    )
