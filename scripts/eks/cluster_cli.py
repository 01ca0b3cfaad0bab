"""The commands that talk to a cluster. What needs the `kubernetes` client is imported in them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trnx.eks.commands import (
    JOB_FAILED,
    ContextOption,
    DigestOption,
    FileArgument,
    JobArgument,
    JsonOption,
    KubeconfigOption,
    NamespaceOption,
    RequestTimeoutOption,
    SetOption,
    Target,
    cluster,
    read_job,
    target,
)
from trnx.eks.errors import AbsentError
from trnx.eks.model import TrnxJob
from trnx.eks.preflight_cli import run_warm, show_report, warm_job
from trnx.eks.reading import mapping, title
from trnx.eks.validate import render_checked

if TYPE_CHECKING:
    from trnx.eks.cluster.api import Api
    from trnx.eks.cluster.status import JobState
    from trnx.eks.cluster.submit import Applied

app = typer.Typer()

# Between two looks at why a pod does not start.
LOOK_SECONDS = 10.0

TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, help="Seconds to wait; else until the end.")
]
StartOption = Annotated[
    float, typer.Option("--start-timeout", min=0, help="Seconds to wait for a pod to start.")
]


def _object(done: list[Applied], state: JobState | None, *, dry_run: bool) -> dict[str, Any]:
    objects = [{"object": item.title, "outcome": item.outcome} for item in done]
    shown = None if state is None else state.to_dict()
    return {"objects": objects, "dry_run": dry_run, "state": shown}


class _Waiting:
    """Says on stderr that a pod has not started, and why, whenever that changes."""

    def __init__(self, api: Api, where: Target) -> None:
        self.api, self.where = api, where
        self.looked = -LOOK_SECONDS
        self.said: list[str] = []

    def __call__(self, said: str) -> None:
        from trnx.eks.cluster.snapshot import look
        from trnx.eks.cluster.status import state_of

        if time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        state = state_of(look(self.api, self.where.namespace, self.where.name))
        told = [f"{said}: {state.phase} ({state.message})"]
        for whose, cause in state.causes():
            told.append(f"  {whose}: {cause.name}: {cause.message}\n    fix: {cause.fix}")
        if told != self.said:
            typer.echo("\n".join(told), err=True)
            self.said = told


def _follow(api: Api, where: Target, start_timeout: float, until: float | None) -> None:
    from trnx.eks.cluster.logs import Follow, Wanted, rank_lines

    wanted = Wanted(follow=True, until=until)
    waiting = _Waiting(api, where)
    source = Follow(api, where.namespace, where.name, wanted, start_timeout, waiting)
    for line in rank_lines(source, 0):
        typer.echo(line)


def _warm_first(api: Api, warm: TrnxJob, job: TrnxJob) -> None:
    from trnx.eks.cluster.warm import check_match

    check_match(warm_job(warm), job)
    state, report = run_warm(api, warm, None, force=False, keep=False)
    show_report(report)
    if state.phase == "failed":
        raise typer.Exit(JOB_FAILED)


@app.command()
def submit(
    file: FileArgument,
    assignments: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the server check all, and keep nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until the job has ended.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print rank 0's log until the job has ended.")
    ] = False,
    timeout: TimeoutOption = None,
    start_timeout: StartOption = 3600,
    force: Annotated[
        bool, typer.Option("--force-conflicts", help="Take over fields that others manage.")
    ] = False,
    after_warm: Annotated[
        Path | None, typer.Option("--after-warm", help="Run this warm-cache job to its end first.")
    ] = None,
    digest: DigestOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    request_timeout: RequestTimeoutOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Render a job, check it, and hand it to the cluster; status 3 where it was awaited and failed.

    Server-side apply as the field manager trnx, after a dry run of all manifests.
    """
    from trnx.eks.cluster.flavour import with_flavour
    from trnx.eks.cluster.submit import submit as apply_all
    from trnx.eks.cluster.submit import wait as wait_for
    from trnx.eks.cluster_view import show_change

    job = read_job(file, assignments, digest=digest)
    api = cluster(kubeconfig, context, request_timeout)
    manifests = render_checked(with_flavour(api, job))
    if after_warm is not None and not dry_run:
        _warm_first(api, read_job(after_warm, None, digest=digest), job)
    done = apply_all(api, manifests, dry_run=dry_run, force=force)
    if not as_json:
        for item in done:
            typer.echo(f"{item.title} {item.outcome}" + (" (dry run)" if dry_run else ""))
    state = None
    if (wait or follow) and not dry_run:
        where = Target(job.name, job.namespace)
        until = None if timeout is None else time.monotonic() + timeout
        if follow:
            _follow(api, where, start_timeout, until)
        left = None if until is None else max(until - time.monotonic(), 0.0)
        state = wait_for(api, job.namespace, job.name, left, show_change)
    if as_json:
        print(json.dumps(_object(done, state, dry_run=dry_run)))
    if state is not None and state.phase == "failed":
        raise typer.Exit(JOB_FAILED)


@app.command()
def status(
    job: JobArgument,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    request_timeout: RequestTimeoutOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Show a job's pods, and for what waits or failed the cause and its fix."""
    from trnx.eks.cluster.snapshot import look
    from trnx.eks.cluster.status import state_of
    from trnx.eks.cluster_view import show_state

    where = target(job, namespace)
    api = cluster(kubeconfig, context, request_timeout)
    state = state_of(look(api, where.namespace, where.name))
    if as_json:
        print(json.dumps(state.to_dict()))
    else:
        show_state(state)


def _rank(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit():
        raise typer.BadParameter(f"{text!r} is neither a number nor all", param_hint="--rank")
    return int(text)


@app.command()
def logs(
    job: JobArgument,
    rank: Annotated[
        str, typer.Option("--rank", help="A pod's index (the node's rank in training), or all.")
    ] = "0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the job has ended, over restarts.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", help="Of the container before its last restart.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="The last lines alone.")] = None,
    start_timeout: StartOption = 600,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    request_timeout: RequestTimeoutOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Print a job's log. A lost connection is taken up again, and no line comes twice."""
    from trnx.eks.cluster.logs import Follow, Wanted, all_lines, rank_lines
    from trnx.eks.cluster.snapshot import workloads_of

    number, where = _rank(rank), target(job, namespace)
    api = cluster(kubeconfig, context, request_timeout)
    workloads_of(api, where.namespace, where.name)
    wanted = Wanted(follow, previous, tail)
    waiting = _Waiting(api, where)
    source = Follow(api, where.namespace, where.name, wanted, start_timeout, waiting)
    if number is None:
        lines = all_lines(source)
    else:
        lines = ((number, line) for line in rank_lines(source, number))
    count = 0
    for index, line in lines:
        count += 1
        shown = line if number is not None else f"[{index}] {line}"
        typer.echo(json.dumps({"rank": index, "line": line}) if as_json else shown)
    if as_json:
        print(json.dumps({"name": where.name, "namespace": where.namespace, "lines": count}))


@app.command()
def delete(
    job: JobArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until all of it is gone.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Of --wait.")] = 600,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    request_timeout: RequestTimeoutOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Remove what belongs to a job, by its labels; never volumes or claims of volumes."""
    from trnx.eks.cluster.snapshot import objects_of
    from trnx.eks.cluster.submit import delete as remove
    from trnx.eks.cluster.submit import wait_gone

    where = target(job, namespace)
    api = cluster(kubeconfig, context, request_timeout)
    found = objects_of(api, where.namespace, where.name)
    if not found:
        raise AbsentError(f"namespace {where.namespace} has nothing of a job {where.name}")
    names = [title(item) for _, item in found]
    claims = _claims_kept(found)
    if not as_json:
        for name in names:
            typer.echo(f"{name} {'would be removed' if dry_run else 'is removed, pods first'}")
        for claim in claims:
            typer.echo(f"PersistentVolumeClaim/{claim} is kept")
    if not dry_run:
        remove(api, found)
        if wait:
            wait_gone(api, where.namespace, where.name, timeout)
    if as_json:
        print(json.dumps({"removed": names, "kept_claims": claims, "dry_run": dry_run}))


def _claims_kept(found: list[tuple[Any, Any]]) -> list[str]:
    from trnx.eks.pod_views import Stream
    from trnx.eks.reading import items, text

    names = set()
    for pod in Stream([item for _, item in found]).pods():
        for volume in items(pod.spec, "volumes"):
            names.add(text(mapping(volume, "persistentVolumeClaim"), "claimName"))
    return sorted(names - {""})
