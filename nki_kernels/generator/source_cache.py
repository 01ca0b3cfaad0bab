"""Generated source on disk: a file is named by its content, and its content is checked before use.

The front end parses kernels from files, and a user may want to read them. The folder belongs to
the user alone; whoever could write there could run code as the user. Where there is no such folder
(a read-only or foreign home), the files go to a private one that lives as long as the process.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from trnx.nki_kernels.errors import GeneratorError

log = logging.getLogger(__name__)


def folder() -> Path:
    """`$XDG_CACHE_HOME/trnx/generated`, by default under ~/.cache; made with mode 0700.

    A folder of this process alone where that cannot be made or written, or where other users could
    change it or a folder around it.
    """
    found, reason = why_temporary()
    return _temporary(os.getpid(), reason) if found is None else found


def why_temporary() -> tuple[Path | None, str]:
    """The folder that is kept and an empty reason, or None and why there is none."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return _private(Path(base) / "trnx" / "generated"), ""
    except (OSError, RuntimeError, GeneratorError) as error:  # RuntimeError: no home
        return None, str(error)


@functools.lru_cache(maxsize=1)
def _temporary(process: int, reason: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="trnx-generated-"))
    log.warning("generated kernels go to %s, until this process ends: %s", path, reason)
    atexit.register(_remove, path, process)
    return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # not in what was forked from it
        shutil.rmtree(path, ignore_errors=True)


def _private(path: Path) -> Path:
    """`path`, created if missing; raises OSError or GeneratorError where code must not be put."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise GeneratorError(
            f"{path} belongs to another user; set XDG_CACHE_HOME to a folder of yours"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written")
    _check_parents(path.resolve())
    return path


def _check_parents(path: Path) -> None:
    """Raises GeneratorError where another user could put a folder in the place of `path`."""
    for parent in path.parents:
        status = parent.stat()
        is_shared = bool(status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if is_shared or status.st_uid not in (0, os.geteuid()):
            raise GeneratorError(
                f"{parent} can be changed by other users, who could run code as you through "
                f"{path}; set XDG_CACHE_HOME to a folder that only you can change"
            )


def write(name: str, source: str) -> Path:
    """The file with exactly this `source`; written atomically."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = folder() / f"{name[:80]}_{digest}.py"
    if not _holds(path, source):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(source)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    if not _holds(path, source):
        raise GeneratorError(f"{path} changed while it was written; remove it and try again")
    return path


def _holds(path: Path, source: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return path.read_text(encoding="utf-8") == source
