"""Commands for before a job: `doctor`, `warm-cache`, `instance` and `instances`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trnx.eks.commands import (
    JOB_FAILED,
    ContextOption,
    DigestOption,
    FileArgument,
    JsonOption,
    KubeconfigOption,
    RequestTimeoutOption,
    SetOption,
    cluster,
    read_job,
)
from trnx.eks.errors import EksError
from trnx.eks.instances import ALL_INSTANCES, INSTANCES, UNNAMED, Instance
from trnx.eks.model import Kind, TrnxJob
from trnx.eks.validate import render_checked

if TYPE_CHECKING:
    from trnx.eks.cluster.api import Api
    from trnx.eks.cluster.status import JobState
    from trnx.eks.cluster.warm import WarmReport

app = typer.Typer()

RegionOption = Annotated[str | None, typer.Option("--region", help="Else AWS_REGION.")]


@app.command()
def doctor(
    file: Annotated[
        Path | None, typer.Argument(help="A job file: look also for what that job needs.")
    ] = None,
    assignments: SetOption = None,
    region: RegionOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    request_timeout: RequestTimeoutOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Look whether a cluster can run jobs: nodes, devices, EFA, controllers; status 1 if not."""
    from trnx.eks.cluster.doctor import diagnose
    from trnx.eks.cluster_view import show_diagnosis

    job = None if file is None else read_job(file, assignments)
    found = diagnose(cluster(kubeconfig, context, request_timeout), job, region)
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        show_diagnosis(found)
    if not found.ok:
        raise typer.Exit(1)


def warm_job(job: TrnxJob) -> TrnxJob:
    """The job, if it is a warm-up. Raises EksError."""
    if job.kind != Kind.WARM_CACHE:
        raise EksError(
            f"{job.name} is of kind {job.kind}; warm-cache takes a job file of kind warm-cache "
            "with the same image, instance, lnc and cache (scripts/eks/examples/warm-cache.yaml)"
        )
    return job


def run_warm(
    api: Api, job: TrnxJob, timeout: float | None, *, force: bool, keep: bool
) -> tuple[JobState, WarmReport]:
    """Run a warm-up to its end; it is removed then, unless it failed or `keep` says so.

    Raises:
        EksError: the job is refused, the cluster cannot be asked, or the time is over.
    """
    from trnx.eks.cluster.flavour import with_flavour
    from trnx.eks.cluster.logs import Follow, Wanted
    from trnx.eks.cluster.snapshot import objects_of
    from trnx.eks.cluster.submit import delete, submit, wait
    from trnx.eks.cluster.warm import LAST_LINES, gather
    from trnx.eks.cluster_view import show_change

    submit(api, render_checked(with_flavour(api, job)), force=force)
    state = wait(api, job.namespace, job.name, timeout, show_change)
    source = Follow(api, job.namespace, job.name, Wanted(tail=LAST_LINES), 0)
    report = gather(source, job.shards)
    if state.phase != "failed" and not keep:
        delete(api, objects_of(api, job.namespace, job.name))
    return state, report


def show_report(report: WarmReport) -> None:
    """Counts on stdout, what is odd on stderr."""
    hits = "unknown" if report.hits is None else str(report.hits)
    typer.echo(f"NEFFs in the cache: {report.neffs}; hits: {hits}, misses: {report.misses}")
    if report.fetched or report.stored:
        typer.echo(f"from S3: {report.fetched} files, to S3: {report.stored}")
    for rank in report.silent:
        typer.echo(f"rank {rank} reported nothing: its log may be gone", err=True)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)


@app.command("warm-cache")
def warm_cache(
    file: FileArgument,
    assignments: SetOption = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds to wait; else to the end.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force-conflicts", help="Take over fields that others manage.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the job there at its end.")] = False,
    digest: DigestOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    request_timeout: RequestTimeoutOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Run a warm-cache job to its end, then say how many NEFFs there are, hits and misses.

    Status 3 where the job failed; it is then left there for `trnx eks logs`.
    """
    job = warm_job(read_job(file, assignments, digest=digest))
    api = cluster(kubeconfig, context, request_timeout)
    state, report = run_warm(api, job, timeout, force=force, keep=keep)
    if as_json:
        print(json.dumps({"state": state.to_dict(), "cache": report.to_dict()}))
    else:
        show_report(report)
    if state.phase == "failed":
        raise typer.Exit(JOB_FAILED)


@app.command()
def instance(
    name: Annotated[str, typer.Argument(help="An EC2 type, such as trn2.48xlarge.")],
    region: RegionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask EC2 for the facts of an instance type, and print them for a job file."""
    from trnx.eks import documents
    from trnx.eks.cluster.ec2 import describe

    found = describe([name], region)[name]
    facts = {
        "devices": found.devices,
        "physical_cores_per_device": found.physical_cores_per_device,
        "default_lnc": found.default_lnc,
        "efa": found.efa,
    }
    block = {"instance": name, "instance_facts": facts}
    if name in INSTANCES:
        typer.echo(f"trnx has facts of {name}: leave instance_facts out", err=True)
    if as_json:
        print(json.dumps(block))
    else:
        typer.echo(documents.dump([block]).removeprefix("---\n"), nl=False)


def _row(facts: Instance) -> dict[str, Any]:
    return {
        "name": facts.name,
        "devices": facts.devices,
        "physical_cores_per_device": facts.physical_cores_per_device,
        "default_lnc": facts.default_lnc,
        "efa": facts.efa,
        "cpu": facts.cpu,
        "memory_gi": None if facts.memory_gi is None else round(facts.memory_gi, 1),
        "jobs": facts.name in INSTANCES,
        "source": facts.origin.source,
        "read": facts.origin.read,
    }


def _unnamed(generation: str) -> dict[str, Any]:
    origin = UNNAMED[generation]
    return {"generation": generation, "source": origin.source, "read": origin.read}


def _show_table(rows: list[dict[str, Any]], unnamed: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from trnx.eks.cluster_view import WIDTH

    columns = ("type", "devices", "cores each", "lnc", "efa", "cpu", "GiB", "jobs", "source")
    table = Table(*columns, "read", box=None)
    for row in rows:
        shown = ("yes" if row[key] is True else row[key] for key in row)
        table.add_row(*("-" if value is None or value is False else str(value) for value in shown))
    for row in unnamed:
        table.add_row(row["generation"], *"-------", row["source"], row["read"])
    Console(width=WIDTH, markup=False, highlight=False).print(table)


@app.command()
def instances(
    check: Annotated[
        bool, typer.Option("--check", help="Compare the table with EC2; status 1 if they differ.")
    ] = False,
    region: RegionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what trnx knows of instance types, from where and of when."""
    rows, unnamed = [_row(facts) for facts in ALL_INSTANCES], [_unnamed(name) for name in UNNAMED]
    found = []
    if check:
        from trnx.eks.cluster.ec2 import check_table

        found = check_table(region)
    failed = any(item.result == "differs" for item in found)
    if as_json:
        checks = {"checks": [asdict(item) for item in found], "ok": not failed} if check else {}
        print(json.dumps({"instances": rows, "unnamed": unnamed, **checks}))
    else:
        _show_table(rows, unnamed)
        for item in found:
            why = f": {item.message}" if item.message else ""
            typer.echo(f"{item.result:8} {item.name}{why}")
    if failed:
        raise typer.Exit(1)
