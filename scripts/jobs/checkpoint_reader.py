"""Reads checkpoints without running what is in them.

The metadata of torch.distributed.checkpoint is a pickle, which can name any function to call. This
reader knows the few classes that such metadata consists of and refuses every other name; values
that are no tensors are read with `weights_only`; data files lie beside the metadata.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from trnx.jobs.errors import CheckpointError, UnreadableCheckpointError

METADATA = ".metadata"
_ALLOWED = frozenset(
    {
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
        ("torch", "Size"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
        ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
        ("torch.distributed.checkpoint.metadata", "Metadata"),
        ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
        ("torch.distributed.checkpoint.metadata", "StorageMeta"),
        ("torch.distributed.checkpoint.metadata", "TensorProperties"),
        ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
        ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
        ("torch.serialization", "_get_layout"),
    }
)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return self._member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise self._refused(f"{module}.{name}")

    def _member(self, kind: Any, name: str) -> Any:
        """A member of an enumeration, which early releases of Python 3.11 pickle by getattr."""
        if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
            return kind[name]
        raise self._refused(f"builtins.getattr of {name!r}")

    def _refused(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path} names {what}, which no checkpoint consists of: it was not loaded, and "
            "nothing of it was run"
        )


def read_metadata(folder: Path) -> Metadata:
    """The metadata of a checkpoint.

    Raises CheckpointError where it names what metadata does not consist of, or data elsewhere;
    UnreadableCheckpointError where it is cut short or no metadata.
    """
    path = folder / METADATA
    try:
        with path.open("rb") as file:
            metadata = _Unpickler(file, path).load()
        names = {info.relative_path for info in metadata.storage_data.values()}
    except (
        OSError,
        EOFError,
        pickle.UnpicklingError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise UnreadableCheckpointError(f"{path} cannot be read: {error}") from None
    if elsewhere := sorted(str(name) for name in names if Path(name).name != str(name)):
        raise CheckpointError(f"{path} names data outside of its folder: {elsewhere[0]}")
    assert isinstance(metadata, Metadata)
    return metadata


class SafeReader(FileSystemReader):
    """torch's reader of a folder, with the metadata of `read_metadata`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """See the module's docstring."""
        return read_metadata(self._folder)


class SafePlanner(DefaultLoadPlanner):
    """torch's planner; values that are no tensors are plain numbers, texts and lists."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Read safely, then hand on what was read: torch's own method would unpickle anything."""
        try:
            plain = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            first = str(error).partition("\n")[0]
            raise CheckpointError(
                f"{read_item.storage_index.fqn} in the checkpoint is no plain value: {first}"
            ) from None
        copy = io.BytesIO()
        torch.save(plain, copy)
        copy.seek(0)
        hand_on: Callable[[ReadItem, io.BytesIO], None] = super().load_bytes
        hand_on(read_item, copy)
