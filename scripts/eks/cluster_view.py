"""How the state of a job and of a cluster look in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from trnx.eks.cluster.doctor import Diagnosis
    from trnx.eks.cluster.status import JobState

# Names of pods are long, and are copied from here: nothing is cut.
WIDTH = 160
_VERDICTS = {
    "yes": "the cluster can run it",
    "later": "the cluster has no room for it now: it would wait",
    "unknown": "whether the cluster can run it is not known: see what may not be read",
    "no": "something has to be mended first",
}


def show_change(state: JobState) -> None:
    """Say on stderr how an awaited job is now, and why it waits."""
    typer.echo(f"{state.name}: {state.phase} ({state.message})", err=True)
    for whose, cause in state.causes():
        typer.echo(f"  {whose}: {cause.name}: {cause.message}\n    fix: {cause.fix}", err=True)


def show_state(state: JobState) -> None:
    """A line about the job, a table of its pods, then causes with their fixes."""
    restarts = f", started again {state.restarts} times" if state.restarts else ""
    typer.echo(
        f"{state.kind}/{state.name} in {state.namespace}: {state.phase} ({state.message}){restarts}"
    )
    if state.pods:
        table = Table("rank", "pod", "state", "exit", "restarts", "node", "why", box=None)
        for pod in state.pods:
            code = "" if pod.exit_code is None else str(pod.exit_code)
            why = ", ".join(cause.name for cause in pod.why)
            row = (str(pod.rank), pod.name, pod.state, code, str(pod.restarts), pod.node, why)
            table.add_row(*row)
        Console(width=WIDTH, markup=False, highlight=False).print(table)
    for whose, cause in state.causes():
        typer.echo(f"{whose}: {cause.name}: {cause.message}\n    fix: {cause.fix}")


def show_diagnosis(found: Diagnosis) -> None:
    """Nodes with devices as a table, then every check, and the fix of what is not well."""
    console = Console(width=WIDTH, markup=False, highlight=False)
    if found.nodes:
        columns = ("node", "type", "zone", "ready", "neuron", "efa", "devices by", "image")
        table = Table(*columns, box=None)
        for node in found.nodes:
            table.add_row(*(str(value) for value in node.to_dict().values()))
        console.print(table)
    for check in found.checks:
        typer.echo(f"{check.result:7} {check.name}: {check.message}")
        if check.fix:
            typer.echo(f"        fix: {check.fix}")
    typer.echo(_VERDICTS[found.verdict])
