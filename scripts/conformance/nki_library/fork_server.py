"""Runs cases in forks of the process that collected them: the suite is imported once, a fork takes
milliseconds, and what one case leaves behind, or a process that ends, is no other case's.

The parent of the forks stays single-threaded. It talks to the driver through one connection, with
JSON messages: `collected`, then the driver's plan, `begun` and a record for each case, `done`.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import shutil
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

Record = dict[str, Any]
# Bytes that a fork may have more than at its start when it begins another case.
_MUCH = 1 << 30
# The status of a case that a signal ended which no process gives itself: the system does, where
# memory runs out.
KILLED = "killed"


def is_out_of_memory(record: Record) -> bool:
    """True for a case that asked for more memory than it may have, or than there is."""
    said = f"{record['message']}{record.get('text', '')}"
    if record["status"] == KILLED:
        return True
    return record["status"] == "failed" and bool(
        re.search(r"MemoryError|can't allocate memory", said)
    )


def send(connection: Connection, message: Record) -> None:
    """Send one message."""
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> Record:
    """The next message. Raises EOFError when the other side has ended."""
    try:
        message: Record = json.loads(connection.recv_bytes())
    except OSError:
        # It ended within a message.
        raise EOFError from None
    return message


@dataclass
class _Fork:
    """A process that runs `cases`; `begun` is the one that it is at."""

    process: int
    number: int
    cases: list[str]
    begun: str = ""
    finished: set[str] = field(default_factory=set)


class Server:
    """Runs the plan of a driver.

    `run_case(item, following, tell)` runs one case in a fork; it tells the case's record.
    """

    def __init__(
        self,
        driver: Connection,
        items: dict[str, Any],
        output: str,
        run_case: Callable[[Any, Any, Callable[[Record], None]], None],
    ) -> None:
        self._driver = driver
        self._items = items
        self._output = output
        self._run_case = run_case
        self._started = 0
        self._gigabytes = 0
        # Cases that had too little memory beside others; None where a case has all of it.
        self._again: list[str] | None = None
        self._forks: dict[Connection, _Fork] = {}

    def run(self, chunks: list[list[str]], jobs: int, gigabytes: int) -> None:
        """Run all chunks, `jobs` at once, each process within its limit of memory; then those
        cases alone for which that was too little.
        """
        # Pages with collected cases stay shared as long as nobody's garbage collection visits them.
        gc.collect()
        gc.freeze()
        again: list[str] = []
        self._again = again if jobs > 1 else None
        self._run_all(chunks, jobs, gigabytes)
        self._again = None
        self._run_all([[case] for case in again], 1, jobs * gigabytes)

    def _run_all(self, chunks: list[list[str]], jobs: int, gigabytes: int) -> None:
        self._gigabytes = gigabytes
        waiting = deque(chunks)
        try:
            while waiting or self._forks:
                while waiting and len(self._forks) < jobs:
                    self._start(waiting.popleft())
                for connection in wait([*self._forks, self._driver]):
                    assert isinstance(connection, Connection)
                    if connection is self._driver:
                        raise EOFError("the driver has ended")  # it sends nothing more
                    left = self._hear(connection)
                    if left:
                        waiting.appendleft(left)
        finally:
            for fork in self._forks.values():
                os.kill(fork.process, signal.SIGKILL)

    def _start(self, cases: list[str]) -> None:
        self._started += 1
        ours, theirs = Pipe(duplex=False)
        process = os.fork()
        if process:
            theirs.close()
            self._forks[ours] = _Fork(process, self._started, cases)
            return
        status = 1
        try:
            self._work(cases, theirs)
            status = 0
        finally:
            os._exit(status)

    def _work(self, cases: list[str], parent: Connection) -> None:
        """The fork's life. It ends early when it holds much memory: what failed is kept alive."""
        self._driver.close()
        address_space, resident = _memory()
        if self._gigabytes:
            limit = (self._gigabytes << 30) + address_space
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        items = [self._items[case] for case in cases]
        for item, following in zip(items, [*items[1:], None], strict=True):
            # Two cases of one name, cut to the length of a file's name, may run at once.
            item.config.option.output_directory = f"{self._output}-{self._started}"
            send(parent, {"begun": item.nodeid})
            self._run_case(item, following, lambda record: send(parent, record))
            if _memory()[1] > resident + _MUCH:
                return

    def _hear(self, connection: Connection) -> list[str]:
        """Pass on what a fork says; what it left undone when it has ended."""
        fork = self._forks[connection]
        try:
            record = receive(connection)
        except EOFError:
            return self._end(connection, fork)
        if "begun" in record:
            fork.begun = record["begun"]
            send(self._driver, record)
        else:
            fork.finished.add(record["case"])
            self._tell(record)
        return []

    def _tell(self, record: Record) -> None:
        """Tell the driver, unless the case gets another chance."""
        if self._again is not None and is_out_of_memory(record):
            self._again.append(record["case"])
        else:
            send(self._driver, record)

    def _end(self, connection: Connection, fork: _Fork) -> list[str]:
        del self._forks[connection]
        connection.close()
        _, status = os.waitpid(fork.process, 0)
        shutil.rmtree(f"{self._output}-{fork.number}", ignore_errors=True)
        left = [case for case in fork.cases if case not in fork.finished]
        # Whatever ended the process, the case that it was at has had its chance.
        case = fork.begun or fork.cases[0]
        if case in left:
            left.remove(case)
            code = os.waitstatus_to_exitcode(status)
            how = KILLED if code == -signal.SIGKILL else "failed"
            why = f"the process ended with status {code}"
            self._tell({"case": case, "status": how, "message": why, "text": ""})
        return left


def _memory() -> tuple[int, int]:
    """Bytes of this process: of address space, and resident."""
    with open("/proc/self/statm") as file:
        size, resident = file.read().split()[:2]
    page = os.sysconf("SC_PAGE_SIZE")
    return int(size) * page, int(resident) * page
