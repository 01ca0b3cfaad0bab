"""Parts of keys that say which programs are at work: trnx and its sources, Python, torch, JAX, and
the files of kernels."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import os
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from trnx import backend, fallback, fx_passes, nki_kernels, simulator
from trnx.backend.cache.entries import text_digest
from trnx.fallback import forks
from trnx.nki_kernels.registry import Registry, is_edited

_ROOMS = tuple(
    Path(str(room.__file__)).resolve().parent
    for room in (simulator, nki_kernels, fx_passes, fallback, backend)
)
# What kernel files import besides the standard library: its versions are in every key.
_INSTALLED = frozenset({"nki", "numpy", "torch", "trnx"})
# Characters of a digest in a part that people read.
_SHOWN = 16


@functools.cache
def versions() -> dict[str, str]:
    """The parts of every key: versions of trnx (with a digest of its sources), Python and torch."""
    return {
        "trnx": f"{metadata.version('trnx')} {_source_digest()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def jax_version() -> str:
    """Which XLA answers here what it takes: JAX's version, or why there is none."""
    if importlib.util.find_spec("jax") is None or importlib.util.find_spec("jaxlib") is None:
        return "missing"
    return f"{_version('jax')} {_version('jaxlib')}{' lost in a fork' if forks.jax_is_lost else ''}"


def kernels_part(kernels: Registry) -> str | None:
    """The registered kernels of users; those of trnx are among its sources. None where one is
    defined in no file, or in one whose digest does not tell all of it."""
    parts: list[str] = []
    for kernel in kernels:
        if kernel.builtin:
            continue
        file = kernels.file_of(kernel.name)
        digest = None if file is None else file_digest(file)
        if digest is None:
            return None
        parts.append(f"{kernel.name} {digest}")
    return " ".join(sorted(parts))


def kernel_part(kernel: Any) -> str | None:
    """An NKI function: its name, and its files where they are not trnx's. None for a function that
    holds values of its own, which no name tells, and as `kernels_part`."""
    function: Any = inspect.unwrap(getattr(kernel, "function", kernel))
    code = getattr(function, "__code__", None)
    if code is None or function.__closure__ or "<" in function.__qualname__:
        return None
    file = Path(code.co_filename).resolve()
    if not file.is_file():
        return None
    grid, platform_target = (getattr(kernel, name, None) for name in ("grid", "platform_target"))
    room = next((room for room in _ROOMS if file.is_relative_to(room)), None)
    where = file_digest(file) if room is None else file.relative_to(room.parent).as_posix()
    return None if where is None else f"{where}:{function.__qualname__} {grid} {platform_target}"


def file_digest(file: Path) -> str | None:
    """Digest of a kernel file and of the files beside it that it imports. None where one of them
    imports other code of the user, or the file was edited after it was loaded."""
    found = _with_imports(file.resolve())
    if found is None or any(map(is_edited, found)):
        return None
    return _digest_of(sorted(found))[:_SHOWN]


def is_told(text: str) -> bool:
    """Whether a representation tells a value from others in every process: it has no addresses."""
    return " at 0x" not in text


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _source_digest() -> str:
    # By `os` and strings: every process that compiles waits for it, and paths cost as much again.
    digest = hashlib.sha256()
    for room in map(str, _ROOMS):
        for folder, folders, names in os.walk(room):
            folders.sort()
            for file in (os.path.join(folder, name) for name in sorted(names)):
                if file.endswith(".py"):
                    with open(file, "rb") as source:
                        content = hashlib.sha256(source.read())
                    digest.update(f"{file[len(room) :]} {content.hexdigest()}\n".encode())
    return digest.hexdigest()[:_SHOWN]


def _digest_of(files: Iterable[Path]) -> str:
    digests = (f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)
    return text_digest("\n".join(digests))


def _with_imports(file: Path) -> set[Path] | None:
    """`file` and, through all of them, the modules in its folder that it imports; None where one
    imports what is neither there nor installed with trnx."""
    found: set[Path] = set()
    pending = [file]
    while pending:
        current = pending.pop()
        if current in found:
            continue
        found.add(current)
        status = current.stat()
        imported = _imported(current, status.st_mtime_ns, status.st_size)
        if imported is None:
            return None
        pending.extend(imported)
    return found


@functools.lru_cache(maxsize=1024)
def _imported(file: Path, _modified: int, _size: int) -> frozenset[Path] | None:
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # whoever loads it says so
        return None
    found: set[Path] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for name in _names(node):
            beside = file.parent / f"{name}.py"
            if beside.is_file():
                found.add(beside)
            elif name not in sys.stdlib_module_names | _INSTALLED:
                return None
    return frozenset(found)


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The first parts of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if node.module is None:  # from . import a
        return [alias.name for alias in node.names]
    # Of a package around the file the whole name is no module beside it, and the file is refused.
    return [node.module if node.level else node.module.partition(".")[0]]
