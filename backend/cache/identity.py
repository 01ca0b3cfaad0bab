"""Parts of keys that say which programs are at work: trnx and its sources, Python, torch, JAX, and
the files of kernels."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from trnx import backend, fallback, fx_passes, nki_kernels, simulator
from trnx.backend.cache.entries import text_digest
from trnx.fallback import forks
from trnx.nki_kernels.registry import Registry

_ROOMS = tuple(
    Path(str(room.__file__)).resolve().parent
    for room in (simulator, nki_kernels, fx_passes, fallback, backend)
)
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


def kernels_part(kernels: Registry) -> str:
    """The registered kernels of users; those of trnx are among its sources."""
    files = {kernels.file_of(kernel.name) for kernel in kernels if not kernel.builtin}
    named = sorted(kernel.name for kernel in kernels if not kernel.builtin)
    digests = sorted(map(file_digest, filter(None, files)))
    return " ".join([*named, *digests])


def kernel_part(kernel: Any) -> str | None:
    """An NKI function: its name, and its files where they are not trnx's. None for a function that
    holds values of its own, which no name tells."""
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
    return f"{where}:{function.__qualname__} {grid} {platform_target}"


def file_digest(file: Path) -> str:
    """Digest of a kernel file and of the files beside it that it imports."""
    found = sorted(_with_imports(file.resolve()))
    return _digest_of(found)[:_SHOWN]


def is_told(text: str) -> bool:
    """Whether a representation tells a value from others in every process: it has no addresses."""
    return " at 0x" not in text


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _source_digest() -> str:
    files = (file for room in _ROOMS for file in sorted(room.rglob("*.py")))
    return _digest_of(files)[:_SHOWN]


def _digest_of(files: Iterable[Path]) -> str:
    digests = (f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)
    return text_digest("\n".join(digests))


def _with_imports(file: Path) -> set[Path]:
    """`file` and, through all of them, the modules in its folder that it imports."""
    found: set[Path] = set()
    pending = [file]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            status = current.stat()
            pending.extend(_imported(current, status.st_mtime_ns, status.st_size))
    return found


@functools.lru_cache(maxsize=1024)
def _imported(file: Path, _modified: int, _size: int) -> frozenset[Path]:
    names: set[str] = set()
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # whoever loads it says so
        return frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.name for alias in node.names)
            names.add(node.module or "")
    parts = {part for name in names for part in name.split(".") if part}
    beside = (file.parent / f"{part}.py" for part in parts)
    return frozenset(path for path in beside if path.is_file())
