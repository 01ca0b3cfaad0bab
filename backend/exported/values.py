"""Constants as JSON that keeps their types; nodes of a graph by their names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import fx

from trnx.backend.exported.errors import DamagedFolderError, ExportError

_DTYPES: Mapping[str, torch.dtype] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
# Other constants of torch by their text.
_NAMED: Mapping[type, Mapping[str, Any]] = {
    torch.device: {"cpu": torch.device("cpu")},
    torch.layout: {"torch.strided": torch.strided},
    torch.memory_format: {
        str(one): one
        for one in (
            torch.contiguous_format,
            torch.preserve_format,
            torch.channels_last,
            torch.channels_last_3d,
        )
    },
}


def encode(value: Any) -> Any:
    """`value` as JSON. Raises ExportError for a type that has none."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": repr(value)}  # with NaN, infinities and the sign of zero
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encode(item) for item in value]}
    if str(value) in _NAMED.get(type(value), ()):
        return {type(value).__name__: str(value)}
    raise ExportError(
        f"a constant of type {type(value).__name__} ({value!r}) cannot be written to a manifest"
    )


def decode(value: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """What `encode` wrote. Raises DamagedFolderError for anything else."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == "float" and isinstance(inner, str):
            with suppress(ValueError):
                return float(inner)
        if kind == "dtype" and inner in _DTYPES:
            return _DTYPES[inner]
        if kind == "node" and inner in nodes:
            return nodes[inner]
        for named in _NAMED.values():
            for text, constant in named.items():
                if (kind, inner) == (type(constant).__name__, text):
                    return constant
        if kind in ("list", "tuple") and isinstance(inner, list):
            items = [decode(item, nodes) for item in inner]
            return items if kind == "list" else tuple(items)
    raise DamagedFolderError(f"the manifest holds {value!r}, which is no constant; export anew")
