"""`trnx eks`: a job file in, manifests or findings out; what talks to a cluster is added to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.table import Table

from trnx.eks import documents
from trnx.eks.cluster_cli import app as cluster_app
from trnx.eks.commands import (
    ContextOption,
    DigestOption,
    FileArgument,
    JsonOption,
    KubeconfigOption,
    RequestTimeoutOption,
    SetOption,
    cluster,
    read,
    read_job,
)
from trnx.eks.documents import Manifest
from trnx.eks.errors import EksError, Finding, JobRefusedError
from trnx.eks.instances import INSTANCES, Instance
from trnx.eks.levels import Level, level_of
from trnx.eks.loading import job_from_data
from trnx.eks.model import OPERATORS, Flavour, Kind
from trnx.eks.preflight_cli import app as preflight_app
from trnx.eks.redaction import redacted_output
from trnx.eks.render import render_pod
from trnx.eks.rule_names import RULES
from trnx.eks.secret_forms import redact
from trnx.eks.validate import Report, refusals, render_checked, validate
from trnx.eks.views import as_github, as_sarif, as_text

# The class above every error of a command line, in each version of typer.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]


@contextmanager
def _redacted_usage() -> Iterator[None]:
    """Errors of the command line repeat what was typed; terminals' boxes would cut it in pieces."""
    try:
        yield
    except _UsageError as error:
        error.message = redact(error.message)
        raise


class _Commands(typer.core.TyperGroup):
    """The boundary: nothing that a command prints shows a secret."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with redacted_output():
            return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _redacted_usage():
            return super().make_context(*args, **kwargs)

    def invoke(self, context: Any) -> Any:
        with _redacted_usage():
            return super().invoke(context)


app = typer.Typer(
    cls=_Commands,
    help="Trainium jobs on Amazon EKS: one file in, checked manifests out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cluster_app)
app.add_typer(preflight_app)

ManifestArgument = Annotated[
    Path, typer.Argument(help="A job file, or manifests to validate; - is standard input.")
]
KubernetesOption = Annotated[
    str, typer.Option("--kubernetes", help="The cluster's version, for the schemas.")
]


def _is_job(found: list[Any]) -> bool:
    """A job file has no apiVersion; anything else is taken for manifests."""
    return len(found) == 1 and isinstance(found[0], dict) and "apiVersion" not in found[0]


@app.command()
def render(
    file: FileArgument,
    assignments: SetOption = None,
    pod: Annotated[
        bool, typer.Option("--pod", help="One Pod, for Airflow's KubernetesPodOperator.")
    ] = False,
    digest: DigestOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print a job's manifests as YAML, for `kubectl apply -f -`, once all rules hold.

    Contacts nothing, but for ECR with --resolve-digest.
    """
    job = read_job(file, assignments, digest=digest)
    manifests = [render_pod(job)] if pod else render_checked(job)
    if pod and (findings := refusals(manifests)):
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


class Format(StrEnum):
    """How a report is printed."""

    TEXT = "text"
    SARIF = "sarif"
    GITHUB = "github"


def _show(report: Report, findings: list[Finding], *, failed: bool) -> None:
    for line in as_text(findings):
        print(line)
    for name in report.unchecked:
        print(f"no schema of {name} here; only rules were checked (see docs/eks.md)")
    if not failed:
        print(f"{len(report.manifests)} manifests hold: {', '.join(report.manifests)}")


def _source(file: Path) -> str:
    """The file's text, in which lines are counted."""
    return "" if str(file) == "-" else file.read_text(encoding="utf-8")


def _check_rule_names(rules: list[str]) -> None:
    if unknown := [rule for rule in rules if rule not in RULES]:
        names = ", ".join(unknown)
        raise EksError(f"--allow {names}: no such rule; `trnx eks list` shows them")


def _ask_server(api: Any, manifests: list[Manifest]) -> list[Finding]:
    from trnx.eks.cluster.server_check import check

    return check(api, manifests)


@app.command("validate")
def validate_command(
    file: ManifestArgument,
    assignments: SetOption = None,
    kubernetes: KubernetesOption = "1.34",
    server: Annotated[
        bool, typer.Option("--server", help="Let the cluster check too: a dry run, nothing kept.")
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    request_timeout: RequestTimeoutOption = 30,
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings too set the exit status.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="RULE", help="Leave a rule out.")
    ] = None,
    allow_unchecked: Annotated[
        bool, typer.Option("--allow-unchecked", help="A kind without a schema is no error.")
    ] = False,
    form: Annotated[
        Format, typer.Option("--format", help="Of what is printed: text, SARIF, GitHub's.")
    ] = Format.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Check a job file, or any manifests, by schema and rules; status 1 where one is broken.

    Errors set the status, with --strict warnings too.
    """
    _check_rule_names(allow or [])
    found = read(file)
    report = _report(found, assignments or [], kubernetes)
    if server and report.manifests:
        manifests = found
        if _is_job(found):
            manifests = render_checked(job_from_data(found[0], assignments or []))
        api = cluster(kubeconfig, context, request_timeout)
        refused = _ask_server(api, manifests)
        report = replace(report, findings=(*report.findings, *refused))
    report = report.without(allow or [])
    allow_unchecked = allow_unchecked or "unchecked" in (allow or [])
    findings = report.all_findings(allow_unchecked=allow_unchecked)
    graver = (Level.ERROR, Level.WARNING) if strict else (Level.ERROR,)
    failed = any(finding.level in graver for finding in findings)
    if as_json:
        print(json.dumps({**report.to_dict(), "failed": failed}))
    elif form == Format.SARIF:
        print(json.dumps(as_sarif(findings, str(file), _source(file))))
    elif form == Format.GITHUB:
        for line in as_github(findings, str(file), _source(file)):
            print(line)
    else:
        _show(report, findings, failed=failed)
    if failed:
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
        "levels": {level: [r for r in RULES if level_of(r) == level] for level in Level},
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
    rules = Table("rule", "level", "what it wants", title="rules")
    for name, wants in listing["rules"].items():
        rules.add_row(name, level_of(name), wants)
    for table in (kinds, instances, rules):
        console.print(table)
    console.print(f"flavours: {', '.join(listing['flavours'])}")
