"""Logs of a job's pods: line by line, over lost connections and restarts, each line once.

Lines are asked for with their timestamps; after a lost connection the server is asked for those
since the last one, and what was printed is left out. A server that sends no timestamps starts again
from the first line, so as many are skipped. `rank` is a pod's completion index.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import urllib3

from trnx.eks.cluster.api import Api, outlast
from trnx.eks.cluster.ended import terminated
from trnx.eks.cluster.log_lines import Position, Sieve, whole_lines
from trnx.eks.cluster.resources import POD
from trnx.eks.cluster.snapshot import Snapshot, name_of, pods_of, rank_of, workloads_of
from trnx.eks.cluster.status import ENDED, state_of
from trnx.eks.documents import Manifest
from trnx.eks.errors import (
    AbsentError,
    EksError,
    InvalidError,
    ServerError,
    TimedOutError,
    UnreachableError,
)
from trnx.eks.reading import items, mapping, text

# A silent stream is opened again after so many seconds: a dead connection says nothing.
SILENCE = 60.0
# Lost connections in a row, without a new line between them, until it is given up.
LOST = 5


def _container(pod: Manifest) -> str:
    """The pod's own container; a service mesh or monitor may have added others."""
    names = [text(item, "name") for item in items(mapping(pod, "spec"), "containers")]
    return next((name for name in ("node", "main", "server") if name in names), "")


@dataclass(frozen=True)
class Wanted:
    """What of a log is asked for. `until`: when following ends, by the monotonic clock."""

    follow: bool = False
    previous: bool = False
    tail: int | None = None
    until: float | None = None

    def is_over(self) -> bool:
        """Whether the time for following is over."""
        return self.until is not None and time.monotonic() >= self.until

    def silence(self) -> float:
        """Seconds that a followed log may say nothing until its connection is opened again."""
        left = SILENCE if self.until is None else self.until - time.monotonic()
        return min(SILENCE, max(left, 0.1))


def _open(api: Api, pod: Manifest, wanted: Wanted, position: Position) -> urllib3.HTTPResponse:
    query = {"timestamps": "true", **position.query()}
    if container := _container(pod):
        query["container"] = container
    if wanted.follow:
        query["follow"] = "true"
    if wanted.previous:
        query["previous"] = "true"
    if wanted.tail is not None and not position.lines:
        query["tailLines"] = str(wanted.tail)
    meta = mapping(pod, "metadata")
    path = f"{POD.path(text(meta, 'namespace'), name_of(pod))}/log"
    return api.stream(path, query, wanted.silence() if wanted.follow else api.patience.read)


def pod_lines(api: Api, pod: Manifest, wanted: Wanted) -> Iterator[str]:
    """A pod's lines until its log ends, over lost connections, each line once.

    Raises:
        UnreachableError: the connection was lost again and again.
        ClusterError: the server refuses.
    """
    position, lost = Position(), 0
    while not wanted.is_over():
        before = position.lines
        sieve = Sieve(position)
        ended = silent = False
        reason = ""
        try:
            answer = _open(api, pod, wanted, position)
            try:
                for raw in whole_lines(answer):
                    if (line := sieve.line(raw)) is not None:
                        yield line
                    if wanted.is_over():
                        return
                ended = True
            finally:
                answer.release_conn()
                answer.close()
        except urllib3.exceptions.ReadTimeoutError:
            silent = wanted.follow
            reason = "no line in time"
        except urllib3.exceptions.HTTPError as error:
            reason = str(error)
        except (UnreachableError, ServerError) as error:
            reason = str(error)
        if ended and not wanted.follow:
            return
        if ended or silent:
            # Neither the end of an answer nor silence is the end of a log: the pod's is.
            if outlast(api.patience, partial(_is_over, api, pod)):
                return
            time.sleep(api.patience.poll if ended else 0)
            continue
        lost = 0 if position.lines > before else lost + 1
        if lost >= LOST:
            raise UnreachableError(
                f"the log of {name_of(pod)} was cut off {lost} times in a row ({reason}); run the "
                "command again, or read it on the node"
            )
        time.sleep(min(api.patience.poll, api.patience.backoff * 2**lost))


def _is_over(api: Api, pod: Manifest) -> bool:
    """Whether the pod is gone, or has ended, or its container has (others may go on)."""
    now = api.get(POD, text(mapping(pod, "metadata"), "namespace"), name_of(pod))
    status = mapping(now, "status")
    if now is None or text(status, "phase") in ("Succeeded", "Failed"):
        return True
    return any(
        text(container, "name") == _container(pod) and mapping(container, "state", "terminated")
        for container in items(status, "containerStatuses")
    )


def _has_log(pod: Manifest) -> bool:
    status = mapping(pod, "status")
    if text(status, "phase") in ("Running", "Succeeded", "Failed"):
        return True
    return bool(terminated(pod))


def _newest(api: Api, namespace: str, name: str, rank: int) -> Manifest | None:
    """The rank's youngest pod that has a log, else its youngest."""
    pods = [pod for pod in pods_of(api, namespace, name) if rank_of(pod) == rank]
    return next((pod for pod in reversed(pods) if _has_log(pod)), pods[-1] if pods else None)


def _say_nothing(_: str) -> None:
    """What is said of waiting, where nobody is there to read it."""


@dataclass(frozen=True)
class Follow:
    """Where lines come from, how long is waited for a pod to start, and who is told of it."""

    api: Api
    namespace: str
    name: str
    wanted: Wanted
    timeout: float
    notice: Callable[[str], None] = _say_nothing


def _job_ended(source: Follow) -> bool:
    try:
        workloads = workloads_of(source.api, source.namespace, source.name)
    except AbsentError:
        return True
    pods = pods_of(source.api, source.namespace, source.name)
    return state_of(Snapshot(source.name, source.namespace, workloads, pods)).phase in ENDED


def _ended(source: Follow) -> bool:
    return outlast(source.api.patience, partial(_job_ended, source))


def _wait_for_pod(source: Follow, rank: int, seen: set[str]) -> Manifest | None:
    """The rank's next pod with a log; None once the job has ended without one.

    Raises:
        TimedOutError: none in time; AbsentError: the job has no such rank.
    """
    start = time.monotonic()
    while True:
        pod = outlast(
            source.api.patience,
            partial(_newest, source.api, source.namespace, source.name, rank),
            None if source.wanted.follow else start,
        )
        if pod and _has_log(pod) and _identity(pod) not in seen:
            return pod
        if not source.wanted.follow or _ended(source):
            if pod is None and not seen:
                raise AbsentError(
                    f"job {source.name} has no pod of rank {rank}; `trnx eks status {source.name} "
                    f"--namespace {source.namespace}` says which there are, and why"
                )
            return None
        source.notice(f"waiting for rank {rank} of {source.name} to start")
        if source.wanted.is_over():
            return None
        if time.monotonic() - start > source.timeout:
            raise TimedOutError(
                f"rank {rank} of {source.name} has not started for {source.timeout:.0f} s; "
                f"`trnx eks status {source.name} --namespace {source.namespace}` says why"
            )
        time.sleep(source.api.patience.poll)


def _identity(pod: Manifest) -> str:
    return text(mapping(pod, "metadata"), "uid") or name_of(pod)


def rank_lines(source: Follow, rank: int) -> Iterator[str]:
    """Lines of a rank; with `follow` also those of the pods that replace it, until the job ends.

    Raises:
        AbsentError: no such rank. TimedOutError: it does not start.
        ClusterError: the server cannot be asked, or refuses.
    """
    seen: set[str] = set()
    while not source.wanted.is_over() and (pod := _wait_for_pod(source, rank, seen)) is not None:
        seen.add(_identity(pod))
        try:
            yield from pod_lines(source.api, pod, source.wanted)
        except (AbsentError, InvalidError) as error:
            # The pod went away, or its container never started.
            if not source.wanted.follow:
                raise AbsentError(f"pod {name_of(pod)} has no such log: {error}") from error
        if not source.wanted.follow:
            return


def all_lines(source: Follow) -> Iterator[tuple[int, str]]:
    """(rank, line) of every rank, as they come; the first failure ends it.

    Raises:
        AbsentError: the job has no pods.
        ClusterError: the server cannot be asked, or refuses.
    """
    pods = pods_of(source.api, source.namespace, source.name)
    ranks = sorted({rank_of(pod) for pod in pods}) or [0]
    if not source.wanted.follow:
        for rank in ranks:
            yield from ((rank, line) for line in rank_lines(source, rank))
        return
    yield from _merged({rank: partial(rank_lines, source, rank) for rank in ranks})


def _merged(sources: dict[int, Callable[[], Iterator[str]]]) -> Iterator[tuple[int, str]]:
    found: queue.Queue[tuple[int, str | None, EksError | None]] = queue.Queue(maxsize=1000)
    stopped = threading.Event()

    def put(rank: int, line: str | None, failure: EksError | None) -> None:
        while not stopped.is_set():
            try:
                found.put((rank, line, failure), timeout=0.2)
                return
            except queue.Full:
                continue

    def read(rank: int, lines: Callable[[], Iterator[str]]) -> None:
        failure = None
        try:
            for line in lines():
                put(rank, line, None)
                if stopped.is_set():
                    return
        except EksError as error:
            failure = error
        finally:
            put(rank, None, failure)

    for rank, lines in sources.items():
        threading.Thread(target=read, args=(rank, lines), daemon=True).start()
    left = len(sources)
    try:
        while left:
            rank, line, failure = found.get()
            if failure is not None:
                raise failure
            if line is None:
                left -= 1
            else:
                yield rank, line
    finally:
        stopped.set()
