"""`trnx eks`: a job file in, manifests or findings out. Nothing here contacts a cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from trnx.eks import documents
from trnx.eks.errors import EksError, JobRefusedError
from trnx.eks.instances import INSTANCES, Instance
from trnx.eks.loading import job_from_data
from trnx.eks.model import OPERATORS, Flavour, Kind, TrnxJob
from trnx.eks.render import render_pod
from trnx.eks.rule_names import RULES
from trnx.eks.validate import Report, check_rules, render_checked, validate

app = typer.Typer(
    help="Trainium jobs on Amazon EKS: one file in, checked manifests out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FileArgument = Annotated[
    Path, typer.Argument(help="A job file, or manifests to validate; - is standard input.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the job file, as in env.A=1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
KubernetesOption = Annotated[
    str, typer.Option("--kubernetes", help="The cluster's version, for the schemas.")
]


def _read(file: Path) -> list[Any]:
    if str(file) == "-":
        return documents.parse(sys.stdin.read(), "standard input")
    return documents.read(file)


def _is_job(found: list[Any]) -> bool:
    """A job file has no apiVersion; anything else is taken for manifests."""
    return len(found) == 1 and isinstance(found[0], dict) and "apiVersion" not in found[0]


def _job(file: Path, assignments: list[str] | None) -> TrnxJob:
    found = _read(file)
    if len(found) != 1:
        raise EksError(f"{file} holds {len(found)} YAML documents; a job file has exactly one")
    return job_from_data(found[0], assignments or [])


@app.command()
def render(
    file: FileArgument,
    assignments: SetOption = None,
    pod: Annotated[
        bool, typer.Option("--pod", help="One Pod, for Airflow's KubernetesPodOperator.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a job's manifests as YAML, for `kubectl apply -f -`, once all rules hold."""
    job = _job(file, assignments)
    manifests = [render_pod(job)] if pod else render_checked(job)
    if pod and (findings := check_rules(manifests)):
        raise JobRefusedError(findings)
    if as_json:
        print(json.dumps({"manifests": manifests}))
    else:
        print(documents.dump(manifests), end="")


def _report(found: list[Any], assignments: list[str], kubernetes: str) -> Report:
    if not _is_job(found):
        if assignments:
            raise EksError("--set changes job files; these are manifests")
        return validate(found, kubernetes)
    try:
        manifests = render_checked(job_from_data(found[0], assignments))
    except JobRefusedError as error:
        return Report((), error.findings, ())
    return validate(manifests, kubernetes)


def _show(report: Report) -> None:
    for finding in report.findings:
        print(finding)
    for name in report.unchecked:
        print(f"note: no schema of {name} here; only rules were checked (see docs/eks.md)")
    if not report.findings:
        print(f"{len(report.manifests)} manifests hold: {', '.join(report.manifests)}")


@app.command("validate")
def validate_command(
    file: FileArgument,
    assignments: SetOption = None,
    kubernetes: KubernetesOption = "1.34",
    as_json: JsonOption = False,
) -> None:
    """Check a job file, or any manifests, by schema and rules; status 1 where one is broken."""
    report = _report(_read(file), assignments or [], kubernetes)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _show(report)
    if report.findings:
        raise typer.Exit(1)


def _instance(facts: Instance) -> dict[str, Any]:
    return {
        "name": facts.name,
        "devices": facts.devices,
        "cores": facts.devices * facts.cores_per_device(facts.default_lnc),
        "lnc": facts.default_lnc,
        "efa": facts.efa,
    }


def _listing() -> dict[str, Any]:
    return {
        "kinds": {kind.value: [item.value for item in OPERATORS[kind]] for kind in Kind},
        "flavours": [flavour.value for flavour in Flavour],
        "instances": [_instance(facts) for facts in INSTANCES.values()],
        "rules": RULES,
    }


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """Show kinds with their operators, flavours, instance types, and all rules."""
    listing = _listing()
    if as_json:
        print(json.dumps(listing))
        return
    console = Console()
    kinds = Table("kind", "operators (the first is the default)", title="kinds")
    for kind, operators in listing["kinds"].items():
        kinds.add_row(kind, ", ".join(operators))
    columns = ("name", "devices", "cores", "lnc", "efa")
    instances = Table("instance", *columns[1:], title="instance types")
    for facts in listing["instances"]:
        instances.add_row(*(str(facts[column]) for column in columns))
    rules = Table("rule", "what it wants", title="rules")
    for name, wants in listing["rules"].items():
        rules.add_row(name, wants)
    for table in (kinds, instances, rules):
        console.print(table)
    console.print(f"flavours: {', '.join(listing['flavours'])}")
