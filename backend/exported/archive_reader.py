"""A torch.export archive read as what it is: a zip file with JSON and raw tensors.

`torch.export.load` unpickles weights, custom objects and example inputs that an archive says are
pickled, parses strings as expressions, and runs code of its guards. None of that is done here: a
pickled tensor is refused, and all else is not looked at.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trnx.backend.exported.errors import DamagedFolderError
from trnx.backend.torch_internals import archive_codes

_DTYPES, _, _ = archive_codes()
_WEIGHTS = ("data/weights/", "model_weights_config.json")
_CONSTANTS = ("data/constants/", "model_constants_config.json")


@dataclass(frozen=True)
class Archive:
    """The JSON of the exported program, and tensors by the names that its signature gives them."""

    program: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]


def read_archive(file: Path) -> Archive:
    """Raises DamagedFolderError for what is no archive that `trnx.export` writes."""
    try:
        with zipfile.ZipFile(file) as opened:
            (root,) = {name.split("/", 1)[0] for name in opened.namelist()}
            program = json.loads(opened.read(f"{root}/models/model.json"))
            tensors = {**_tensors(opened, root, *_WEIGHTS), **_tensors(opened, root, *_CONSTANTS)}
    except (
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RuntimeError,
        EOFError,
        OSError,
    ) as error:
        raise DamagedFolderError(
            f"{file} is no archive of a plan ({type(error).__name__}: {error}); export anew"
        ) from error
    return Archive(program, tensors)


def _tensors(opened: zipfile.ZipFile, root: str, place: str, config: str) -> dict[str, Any]:
    described = json.loads(opened.read(f"{root}/{place}{config}"))["config"]
    storages: dict[str, torch.Tensor] = {}
    found = {}
    for name, payload in described.items():
        if payload["use_pickle"]:
            raise ValueError(f"{name} is pickled, and trnx unpickles nothing")
        path, meta = f"{root}/{place}{payload['path_name']}", payload["tensor_meta"]
        dtype = _DTYPES[meta["dtype"]]
        if path not in storages:
            storages[path] = _bytes(opened.read(path))
        whole = storages[path].view(dtype)
        sizes, strides = _numbers(meta["sizes"]), _numbers(meta["strides"])
        (offset,) = _numbers([meta["storage_offset"]])
        reach = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) + 1
        if 0 not in sizes and reach > whole.numel():
            raise ValueError(f"{name} reaches beyond its bytes")
        found[name] = whole.as_strided(sizes, strides, offset)
    return found


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()


def _numbers(sizes: Any) -> list[int]:
    """Sizes as numbers. An expression is a string that torch would evaluate."""
    found = [size["as_int"] for size in sizes]
    if not all(type(size) is int and size >= 0 for size in found):
        raise ValueError(f"{sizes} are no sizes")
    return found
