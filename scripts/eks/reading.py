"""Access to manifests that may be wrong in any way: something empty where a type is unexpected. The
schema check names such fields.
"""

from __future__ import annotations

import re
from typing import Any

from trnx.eks.documents import Manifest

_UNITS = {
    **{f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)},
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    **{letter: 10.0 ** (3 * power) for power, letter in enumerate("kMGTPE", 1)},
}
_QUANTITY = re.compile(
    r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE]?))"
)


def mapping(value: Any, *keys: str) -> Manifest:
    """The mapping below `keys`, or an empty one."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: Any, key: str) -> list[Manifest]:
    """The mappings in the list at `key`."""
    found = value.get(key) if isinstance(value, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def words(value: Any, key: str) -> list[str]:
    """The entries of the list at `key`, as text."""
    found = value.get(key) if isinstance(value, dict) else None
    return [str(item) for item in found] if isinstance(found, list) else []


def text(value: Any, key: str) -> str:
    """The text at `key`, or an empty one."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def whole(value: Any) -> int | None:
    """A whole number, also one in text; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value) else None


def amount(value: Any) -> float | None:
    """The number that a quantity stands for, such as 64Gi, 500m or 1e3; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    number = float(found[1] + (found[2] or ""))
    return number * _UNITS[found[3] or ""]


def name_of(manifest: Manifest) -> str:
    """The name; of an object whose name the API server completes the beginning of it."""
    meta = mapping(manifest, "metadata")
    return text(meta, "name") or text(meta, "generateName")


def title(manifest: Manifest) -> str:
    """Kind and name, as messages show a manifest."""
    return f"{text(manifest, 'kind') or '?'}/{name_of(manifest) or '?'}"
