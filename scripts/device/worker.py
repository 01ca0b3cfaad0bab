"""The process that runs tasks: `python -m trnx.device.worker FOLDER TARGET TASK...`.

Prints the name of each task as it starts, so that who waits knows which one takes too long, and
writes `FOLDER/tasks/NAME.json` as one whole file when the task has ended. Ends with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from trnx.device.records import write_record
from trnx.device.tasks import part_of


def _end_with_parent() -> None:
    """The parent holds the other end of the pipe; it is closed when the parent is gone."""
    sys.stdin.read()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # what it started too: a compiler would hold the device
    os._exit(1)


def _result(task: str, target: str) -> dict[str, Any]:
    """The doctor's and that of ranks do without what the others import: torch, and with it
    TorchNeuron, which may claim cores."""
    if task == "doctor":
        from trnx.backend.neuron.doctor import examine

        return examine().to_dict()
    if part_of(task) == "ranks":
        from trnx.device.ranks import measure_ranks

        return measure_ranks(task.partition(".")[2], target)
    from trnx.device.measures import measure

    return measure(task, target)


def _run(task: str, target: str) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        found: dict[str, Any] = {"status": "ok", "result": _result(task, target)}
    except Exception as error:  # noqa: BLE001  what it is goes into the archive
        last = traceback.extract_tb(error.__traceback__)[-3:]
        where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in last]
        message = f"{type(error).__name__}: {error}"[:4000]
        found = {"status": "failed", "error": message, "where": where}
    return {**found, "seconds": time.perf_counter() - start}


def main(arguments: list[str]) -> None:
    """Run the tasks, one after the other."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder, target, *tasks = arguments
    for task in tasks:
        print(task, flush=True)
        write_record(Path(folder), task, _run(task, target))


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # a device's runtime may wait for its threads
