"""Hand a job to the cluster, wait for it, and remove it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trnx.eks.cluster.api import Api, outlast
from trnx.eks.cluster.resources import WORKLOADS, Resource
from trnx.eks.cluster.snapshot import Snapshot, is_ours, look, name_of, objects_of
from trnx.eks.cluster.status import JobState, state_of
from trnx.eks.documents import Manifest
from trnx.eks.errors import (
    AbsentError,
    ClusterError,
    JobExistsError,
    TimedOutError,
)
from trnx.eks.pods import MANAGED_BY, MANAGER
from trnx.eks.reading import mapping, title

_RUN_ONCE = {resource.kind for resource in WORKLOADS} - {"Deployment"}


@dataclass(frozen=True)
class Applied:
    """What became of one manifest: `created`, `configured` or `unchanged`."""

    title: str
    outcome: str


def _namespace(manifest: Manifest) -> str:
    return str(mapping(manifest, "metadata").get("namespace", "default"))


def _existing(api: Api, manifest: Manifest) -> Manifest | None:
    """The object that has the manifest's name.

    Raises:
        JobExistsError: it is not trnx's, a job that has ended, or on its way out.
    """
    name, namespace = name_of(manifest), _namespace(manifest)
    found = api.get(api.resource_of(manifest), namespace, name)
    if found is None:
        return None
    found.setdefault("kind", manifest["kind"])
    manager = mapping(found, "metadata", "labels").get(MANAGED_BY)
    if manager != MANAGER:
        raise JobExistsError(
            f"{title(manifest)} exists in namespace {namespace}, and is not trnx's (its label "
            f"{MANAGED_BY} is {manager!r}); give the job another `name`"
        )
    if mapping(found, "metadata").get("deletionTimestamp"):
        raise JobExistsError(
            f"{title(manifest)} is being removed; wait until `trnx eks status {name} --namespace "
            f"{namespace}` finds nothing, then submit again"
        )
    if manifest["kind"] in _RUN_ONCE and is_ours(found, name):
        state = state_of(Snapshot(name, namespace, [found], []))
        if state.ended:
            raise JobExistsError(
                f"{title(manifest)} is there and has {state.phase}; run `trnx eks delete {name} "
                f"--namespace {namespace}` first, or give the job another `name`"
            )
    return found


def _outcome(before: Manifest | None, after: Manifest) -> str:
    if before is None:
        return "created"
    versions = [mapping(item, "metadata").get("resourceVersion") for item in (before, after)]
    return "unchanged" if versions[0] == versions[1] else "configured"


def submit(
    api: Api, manifests: Sequence[Manifest], *, dry_run: bool = False, force: bool = False
) -> list[Applied]:
    """Server-side apply, after a dry run of all: where one is refused, none is made.

    Raises:
        JobExistsError: the name is taken.
        ClusterError: the server refuses, or cannot be asked.
    """
    before = [_existing(api, manifest) for manifest in manifests]
    applied: list[Applied] = []
    for dry in (True,) if dry_run else (True, False):
        applied = []
        for manifest, old in zip(manifests, before, strict=True):
            try:
                new = api.apply(manifest, _namespace(manifest), dry_run=dry, force=force)
            except ClusterError as error:
                if dry or not applied:
                    raise
                done = ", ".join(item.title for item in applied)
                raise type(error)(f"{error} (applied before that: {done})") from error
            applied.append(Applied(title(manifest), _outcome(old, new)))
    return applied


def wait(
    api: Api,
    namespace: str,
    name: str,
    timeout: float | None,
    show: Callable[[JobState], None],
) -> JobState:
    """Look until the job has ended (a service: until it runs); `show` sees every change.

    Raises:
        TimedOutError: neither in time.
        AbsentError: the job was removed.
        ClusterError: the server is away for longer than an update of it takes.
    """
    start, shown = time.monotonic(), None
    until = None if timeout is None else start + timeout
    while True:
        state = state_of(outlast(api.patience, partial(look, api, namespace, name), until))
        seen = (state.phase, state.message, tuple(cause.name for _, cause in state.causes()))
        if seen != shown:
            show(state)
            shown = seen
        if state.ended or (state.kind == "Deployment" and state.phase == "running"):
            return state
        if _over(start, timeout):
            raise TimedOutError(
                f"{name} is {state.phase} when the time is over ({state.message}); it goes on: "
                f"`trnx eks status {name} --namespace {namespace}` shows why and how far"
            )
        time.sleep(api.patience.poll)


def _over(start: float, timeout: float | None) -> bool:
    return timeout is not None and time.monotonic() - start >= timeout


def delete(api: Api, found: Sequence[tuple[Resource, Manifest]]) -> None:
    """Remove objects after what they own; what is gone already is left out.

    Raises:
        ClusterError: the server refuses, or cannot be asked.
    """
    for resource, item in found:
        try:
            api.delete(resource, item)
        except AbsentError:
            continue


def wait_gone(api: Api, namespace: str, name: str, timeout: float) -> None:
    """Look until nothing of a job is left.

    Raises:
        TimedOutError: something is left.
    """
    start = time.monotonic()
    while left := objects_of(api, namespace, name):
        if _over(start, timeout):
            names = ", ".join(title(item) for _, item in left)
            raise TimedOutError(
                f"{names} still there after {timeout:.0f} s: pods save and stop within "
                "`grace_seconds`, and a node that is gone holds its pods; see `kubectl get pods`"
            )
        time.sleep(api.patience.poll)
