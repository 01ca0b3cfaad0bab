"""The state of a job: its phase, its pods, and for what does not run the cause and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnx.eks.cluster.causes import Cause
from trnx.eks.cluster.ended import exit_code, preempted, why_ended, why_no_pods
from trnx.eks.cluster.pending import queue_cause, why_waiting
from trnx.eks.cluster.snapshot import Snapshot, condition, name_of, rank_of
from trnx.eks.documents import Manifest
from trnx.eks.reading import items, mapping, text, whole

ENDED = ("succeeded", "failed")
PHASES = ("queued", "starting", "pending", "running", "restarting", "deleting", *ENDED)
_COMPLETE = ("Complete", "Completed")


@dataclass(frozen=True)
class PodState:
    """One pod, as `trnx eks status` shows it."""

    rank: int
    name: str
    state: str
    node: str
    restarts: int
    exit_code: int | None
    why: tuple[Cause, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**self.__dict__, "why": [cause.to_dict() for cause in self.why]}


@dataclass(frozen=True)
class JobState:
    """A job. `restarts` counts starts of the whole job, `why` is what is not of one pod."""

    name: str
    namespace: str
    kind: str
    phase: str
    message: str
    restarts: int
    pods: tuple[PodState, ...]
    why: tuple[Cause, ...]

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in ENDED

    def causes(self) -> list[tuple[str, Cause]]:
        """(whose, cause): the job's, then those of its pods; equal ones of many pods once."""
        found = [(self.name, cause) for cause in self.why]
        seen: dict[tuple[str, str, str], str] = {}
        for pod in self.pods:
            for cause in pod.why:
                key = (cause.name, cause.message, cause.fix)
                if key not in seen:
                    seen[key] = f"rank {pod.rank}"
                    found.append((seen[key], cause))
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            **self.__dict__,
            "pods": [pod.to_dict() for pod in self.pods],
            "why": [cause.to_dict() for cause in self.why],
        }


def _pod_state(pod: Manifest) -> str:
    phase = text(mapping(pod, "status"), "phase")
    if phase == "Succeeded":
        return "succeeded"
    if preempted(pod):
        return "preempted"
    if phase == "Failed":
        return "failed"
    if mapping(pod, "metadata").get("deletionTimestamp"):
        return "deleting"
    if phase == "Running":
        waits = any(
            mapping(container, "state", "waiting")
            for container in items(mapping(pod, "status"), "containerStatuses")
        )
        return "waiting" if waits else "running"
    return "pending"


def pod_state(pod: Manifest, snapshot: Snapshot) -> PodState:
    """How one pod is, and why."""
    state = _pod_state(pod)
    why = why_ended(pod) if state in ("failed", "preempted") else []
    if state in ("pending", "waiting", "running"):
        why = why_waiting(pod, snapshot)
        why += [cause for cause in why_ended(pod) if state == "waiting"]
    statuses = items(mapping(pod, "status"), "containerStatuses")
    return PodState(
        rank_of(pod),
        name_of(pod),
        state,
        text(mapping(pod, "spec"), "nodeName"),
        sum(whole(container.get("restartCount")) or 0 for container in statuses),
        exit_code(pod),
        tuple(why),
    )


def _deployment_phase(workload: Manifest) -> tuple[str, str]:
    status, wanted = mapping(workload, "status"), mapping(workload, "spec").get("replicas", 1)
    for found in items(status, "conditions"):
        if found.get("type") == "Progressing" and found.get("status") == "False":
            return "failed", text(found, "message")
    ready = whole(status.get("readyReplicas")) or 0
    if ready >= (whole(wanted) or 0):
        return "running", f"{ready} of {wanted} replicas ready"
    return "pending", f"{ready} of {wanted} replicas ready"


def _ended_phase(workload: Manifest) -> tuple[str, str] | None:
    for kind in _COMPLETE:
        if found := condition(workload, kind):
            return "succeeded", text(found, "message")
    for kind in ("Failed", "FailureTarget"):
        if found := condition(workload, kind):
            reason, said = text(found, "reason"), text(found, "message")
            return "failed", f"{reason}: {said}" if said else reason
    return None


def _phase(workload: Manifest, pods: list[PodState]) -> tuple[str, str]:
    if workload["kind"] == "Deployment":
        return _deployment_phase(workload)
    if ended := _ended_phase(workload):
        return ended
    if mapping(workload, "metadata").get("deletionTimestamp"):
        return "deleting", "is being removed"
    if mapping(workload, "spec").get("suspend"):
        return "queued", "suspended until Kueue admits it"
    live = [pod for pod in pods if pod.state in ("pending", "waiting", "running")]
    gone = [pod for pod in pods if pod.state in ("failed", "preempted", "deleting")]
    if any(pod.state != "running" for pod in live):
        count = sum(pod.state != "running" for pod in live)
        return "pending", f"{count} of {len(live)} pods do not run"
    if live:
        return "running", f"{len(live)} pods run"
    if gone:
        return "restarting", f"{len(gone)} pods ended; the job starts them again"
    return "starting", "no pods yet"


def _restarts(snapshot: Snapshot) -> int:
    return max((_restarts_of(item) for item in snapshot.workloads), default=0)


def _restarts_of(workload: Manifest) -> int:
    status = mapping(workload, "status")
    if workload["kind"] == "JobSet":
        return whole(status.get("restarts")) or 0
    if workload["kind"] == "Job":
        return whole(status.get("failed")) or 0
    return 0


def state_of(snapshot: Snapshot) -> JobState:
    """The job's state. The snapshot has a workload."""
    workload = snapshot.workload
    assert workload is not None
    pods = tuple(pod_state(pod, snapshot) for pod in snapshot.pods)
    phase, message = _phase(workload, list(pods))
    why: list[Cause] = []
    if phase == "queued" and (cause := queue_cause(workload, snapshot)):
        why.append(cause)
    if phase in ("starting", "pending", "failed") and not pods:
        why += why_no_pods(workload, snapshot)
    if phase == "failed" and "DeadlineExceeded" in message:
        why.append(Cause("deadline", message, "write a longer `deadline_seconds`"))
    return JobState(
        snapshot.name,
        snapshot.namespace,
        workload["kind"],
        phase,
        message,
        _restarts(snapshot),
        pods,
        tuple(why),
    )
