"""Why a pod or a job ended: exit statuses, preemptions, evictions, deadlines, pods refused."""

from __future__ import annotations

from trnx.eks.cluster.causes import Cause, recognised
from trnx.eks.cluster.snapshot import Snapshot, condition
from trnx.eks.documents import Manifest
from trnx.eks.reading import items, mapping, text, whole

# What train.py ends with when SIGTERM made it save: not a failure of the job's own.
SAVED_ON_SIGTERM = 75
SIGKILL, SIGTERM = 137, 143


def terminated(pod: Manifest) -> Manifest:
    """How the pod's failed container ended, else its first that ended; else an empty mapping."""
    found = []
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in items(mapping(pod, "status"), key):
            for part in ("state", "lastState"):
                if state := mapping(container, part, "terminated"):
                    found.append(state)
    failed = [state for state in found if state.get("exitCode")]
    return next(iter(failed or found), {})


def exit_code(pod: Manifest) -> int | None:
    """The exit status of the pod's container, where it ended."""
    return whole(terminated(pod).get("exitCode"))


def preempted(pod: Manifest) -> Cause | None:
    """The disruption that took the pod away, if one did."""
    found = condition(pod, "DisruptionTarget")
    if not found:
        return None
    reason = text(found, "reason") or "disrupted"
    return Cause(
        "preempted",
        f"{reason}: {text(found, 'message') or 'the pod was taken from its node'}",
        "nothing to do: this does not count against `restarts`, and training goes on from its last "
        "checkpoint; for nodes that stay, use a reservation or a higher priority",
    )


def _exit_cause(state: Manifest) -> Cause:
    code, reason = whole(state.get("exitCode")) or 0, text(state, "reason")
    said = text(state, "message")
    shown = f"exit status {code}" + (f" ({reason})" if reason not in ("", "Error") else "")
    if reason == "OOMKilled":
        fix = "write more `memory`, a smaller `shm` (it counts), or a smaller batch"
        return Cause("out-of-memory", shown, fix)
    hint = "read its last lines: trnx eks logs"
    if code == SAVED_ON_SIGTERM:
        hint = "nothing to do: it was told to stop, saved a checkpoint, and goes on from it"
    elif code in (126, 127):
        hint = "the command is not in the image: correct `command`, or the image"
    elif code == SIGKILL:
        hint = (
            "killed: out of memory of the node, or `grace_seconds` was too short for a checkpoint"
        )
    elif code == SIGTERM:
        hint = "it was told to stop; see `kubectl get events` for who did"
    return Cause("exit", f"{shown}: {said}" if said else shown, hint)


def why_ended(pod: Manifest) -> list[Cause]:
    """Causes why a pod failed or was taken away; none for one that succeeded or runs."""
    status = mapping(pod, "status")
    disruption = preempted(pod)
    if disruption:
        return [disruption]
    state = terminated(pod)
    if state.get("exitCode"):
        return [_exit_cause(state)]
    if text(status, "phase") != "Failed":
        return []
    reason, said = text(status, "reason"), text(status, "message")
    message = f"{reason}: {said}" if said else reason or "failed, and nothing says why"
    if found := recognised(message):
        return [found]
    if reason == "Evicted":
        fix = "write `memory` as the pod needs it, and see the node's disk"
        return [Cause("evicted", message, fix)]
    if reason == "DeadlineExceeded":
        return [Cause("deadline", message, "write a longer `deadline_seconds`")]
    return [Cause("unknown", message, "see `kubectl describe pod`")]


def why_no_pods(workload: Manifest, snapshot: Snapshot) -> list[Cause]:
    """Why a job's controller could not make pods, from its newest events."""
    for item in [workload, *snapshot.workloads]:
        for event in reversed(snapshot.events_of(item)):
            if event.get("type") != "Warning":
                continue
            said = f"{text(event, 'reason')}: {text(event, 'message')}"
            if found := recognised(said):
                return [found]
            fix = "correct the job file, or what the server's message names"
            name = "pods-refused" if text(event, "reason") == "FailedCreate" else "unknown"
            return [Cause(name, said, fix)]
    return []
