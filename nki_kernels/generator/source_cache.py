"""Generated source on disk: a file is named by its content, and its content is checked before use.

The front end parses kernels from files, and a user may want to read them. The folder belongs to
the user alone; whoever could write there could run code as the user.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from trnx.nki_kernels.errors import GeneratorError


def folder() -> Path:
    """`$XDG_CACHE_HOME/trnx/generated`, by default under ~/.cache; made with mode 0700."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "trnx" / "generated"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise GeneratorError(
            f"{path} belongs to another user; set XDG_CACHE_HOME to a folder of yours"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def write(name: str, source: str) -> Path:
    """The file that holds exactly `source`; written at once or not at all."""
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
