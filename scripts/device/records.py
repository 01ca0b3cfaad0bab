"""What a task has found, one file each, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trnx.device.redaction import redacted

TASKS = "tasks"


def write_record(folder: Path, task: str, record: Mapping[str, Any]) -> None:
    """Write the record without what must not leave the machine."""
    text = json.dumps(redacted({"task": task, **record}), indent=1)
    write_whole(folder / TASKS / f"{task}.json", text.encode())


def write_whole(file: Path, data: bytes) -> None:
    """A file that is there with all of `data`, or not there, whenever the process ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
    with os.fdopen(handle, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    Path(temporary).replace(file)


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Task -> its record."""
    files = sorted((folder / TASKS).glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}
