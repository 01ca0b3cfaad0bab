"""A function in a process of its own, within limits of time and memory."""

from __future__ import annotations

import logging
import multiprocessing
import re
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def _work(pipe: Any, function: Callable[[], Any], gigabytes: int) -> None:
    """In the process of its own."""
    size = _data_bytes() + (gigabytes << 30)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe.send((function(), ""))
    except Exception as error:  # noqa: BLE001 - whatever a model raises is what is reported
        pipe.send((None, " ".join(f"{type(error).__name__}: {error}".split())[:300]))


def _data_bytes() -> int:
    """What this process has mapped already, which is its parent's."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def run_apart(function: Callable[[], Any], seconds: int, gigabytes: int) -> tuple[Any, str]:
    """What `function` returns (it is pickled) and "", or None and why there is no result. It may
    take `gigabytes` more than this process has.
    """
    context = multiprocessing.get_context("fork")  # what is imported stays so; no thread runs here
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, function, gigabytes))
    process.start()
    there.close()
    try:
        if not here.poll(seconds):
            return None, f"took longer than {seconds} s"
        result, error = here.recv()
        return result, error
    except EOFError:
        process.join()
        return None, f"its process ended with status {process.exitcode} (memory: {gigabytes} GiB)"
    finally:
        process.kill()
        process.join()
