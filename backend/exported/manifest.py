"""`manifest.json`: versions, checksums, and the plan of the graph in the archive.

The checksums find what was damaged or changed. They do not say who wrote a folder: whoever can
write to it can write a manifest that fits. That is why nothing from a folder is executed.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from trnx.backend.exported.errors import (
    DamagedFolderError,
    FolderVersionError,
    ForeignFolderError,
    UnsafeFolderError,
)
from trnx.backend.exported.sources import digest_of
from trnx.backend.exported.structure import Structure

FORMAT = "trnx-export"
VERSION = 1
NAME = "manifest.json"
GRAPH = "graph.pt2"
_LARGEST = 64 << 20


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` holds.

    `options` are those of the backend that the plan was made with. `files` are all other files:
    path -> bytes and SHA-256. `inputs` and `outputs` are structures, `constants` the values of
    arguments that are no tensors, by their place among the arguments. `steps` is the plan
    (`plan_json.py`), `ledger` what does not run on NKI. `model_stablehlo` is the file with the
    whole model, or why there is none.
    """

    target: str
    options: Mapping[str, str]
    inputs: Structure
    outputs: Structure
    constants: Mapping[str, Any]
    steps: list[Any]
    ledger: list[Mapping[str, str]]
    model_stablehlo: Mapping[str, str]
    files: Mapping[str, Mapping[str, Any]]
    trnx: str = metadata.version("trnx")
    torch: str = torch.__version__
    format: str = FORMAT
    version: int = VERSION


def described(folder: Path) -> dict[str, dict[str, Any]]:
    """All files below `folder` but the manifest: path -> bytes and SHA-256."""
    return {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": digest_of(file),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / NAME
    }


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write `manifest.json`, which makes the folder whole."""
    text = json.dumps(asdict(manifest), indent=1, allow_nan=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder whose files are as they were written.

    Raises ForeignFolderError, UnsafeFolderError, DamagedFolderError or FolderVersionError.
    """
    file = folder / NAME
    if not file.is_file() or file.is_symlink():
        raise ForeignFolderError(f"{folder} has no {NAME}: it is no folder that trnx.export wrote")
    _check_rights(folder)
    given = _json(file)
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise ForeignFolderError(f"{file} is not the manifest of a folder that trnx.export wrote")
    if given.get("version") != VERSION:
        raise ForeignFolderError(
            f"{file} has version {given.get('version')!r} of the format, and this trnx reads "
            f"{VERSION}: export anew with this trnx"
        )
    if given.keys() != {field.name for field in fields(Manifest)}:
        raise DamagedFolderError(f"{file} lacks entries, or has others; export anew")
    _check_torch(str(given["torch"]))
    _check_files(folder, given["files"])
    return Manifest(**given)


def _json(file: Path) -> Any:
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFolderError(f"{file} cannot be read ({error}); export anew") from error


def _check_rights(folder: Path) -> None:
    """Raises UnsafeFolderError where every user of the machine could change the folder."""
    for path in (folder, *folder.rglob("*")):
        if path.lstat().st_mode & stat.S_IWOTH and not path.is_symlink():
            raise UnsafeFolderError(
                f"{path} can be changed by every user of this machine: chmod -R o-w {folder}, if "
                "you know that nobody did"
            )


def _check_torch(version: str) -> None:
    def numbers(text: str) -> list[str]:
        return re.findall(r"\d+", text)[:2]

    if numbers(version) != numbers(torch.__version__):
        raise FolderVersionError(
            f"the folder was exported with torch {version}, and torch {torch.__version__} is here, "
            f"whose archives and operators may differ: install torch {version.split('+')[0]}, or "
            "export anew"
        )


def _check_files(folder: Path, files: Any) -> None:
    """Raises DamagedFolderError unless the folder holds these files and no others."""
    try:
        wanted = {str(path): (int(f["bytes"]), str(f["sha256"])) for path, f in files.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFolderError(f"{folder / NAME} lists no files; export anew") from error
    if linked := next((p for p in folder.rglob("*") if p.is_symlink()), None):
        raise DamagedFolderError(f"{linked} is a link, and trnx.export writes none; export anew")
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {NAME}
    if there != set(wanted):
        name = sorted(there ^ set(wanted))[0]
        what = "is missing from" if name in wanted else "was added to"
        raise DamagedFolderError(f"{name} {what} {folder}; copy the folder again, or export anew")
    for name, (size, digest) in wanted.items():
        file = folder / name
        if file.stat().st_size != size:
            found = f"has {file.stat().st_size} bytes and not {size}"
        elif digest_of(file) != digest:
            found = "is not what was written"
        else:
            continue
        raise DamagedFolderError(f"{file} {found}; copy the folder again, or export anew")
