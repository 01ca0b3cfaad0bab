"""What the commands share: options, reading a job file, and naming a job of the cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trnx.eks import documents
from trnx.eks.errors import EksError
from trnx.eks.loading import job_from_data
from trnx.eks.model import TrnxJob

if TYPE_CHECKING:
    from trnx.eks.cluster.api import Api

# Exit statuses: 0 as asked, 1 a named error or a refusal, 2 a wrong command line.
JOB_FAILED = 3

FileArgument = Annotated[Path, typer.Argument(help="A job file; - is standard input.")]
JobArgument = Annotated[str, typer.Argument(help="A job's name, or its job file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the job file, as in env.A=1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, last.")]
DigestOption = Annotated[
    bool, typer.Option("--resolve-digest", help="Ask ECR for the digest of the image's tag.")
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Of the job; a job file says it itself."),
]
KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Else KUBECONFIG, or ~/.kube/config.")
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Of the kubeconfig.")]
RequestTimeoutOption = Annotated[
    float, typer.Option("--request-timeout", min=0.1, help="Seconds for one answer.")
]


def read(file: Path) -> list[Any]:
    """The YAML documents of a file, or of standard input."""
    if str(file) == "-":
        return documents.parse(sys.stdin.read(), "standard input")
    return documents.read(file)


def read_job(file: Path, assignments: list[str] | None, *, digest: bool = False) -> TrnxJob:
    """The job of a file, its image's tag replaced by the digest where that is asked for.

    Raises:
        EksError: no job file, a broken rule, or ECR does not know the tag.
    """
    found = read(file)
    if len(found) != 1:
        raise EksError(f"{file} holds {len(found)} YAML documents; a job file has exactly one")
    job = job_from_data(found[0], assignments or [])
    if not digest:
        return job
    from trnx.eks.cluster.ecr import with_digest

    return job.model_copy(update={"image": with_digest(job.image)})


@dataclass(frozen=True)
class Target:
    """A job of the cluster."""

    name: str
    namespace: str


def target(job: str, namespace: str | None, assignments: list[str] | None = None) -> Target:
    """A name, or what a job file says; `namespace` is default where nothing says it.

    Raises:
        EksError: the file is none, or says another namespace.
    """
    if not job.endswith((".yaml", ".yml")):
        return Target(job, namespace or "default")
    found = read_job(Path(job), assignments)
    if namespace not in (None, found.namespace):
        raise EksError(f"{job} says namespace {found.namespace}; leave --namespace out")
    return Target(found.name, found.namespace)


def cluster(kubeconfig: Path | None, context: str | None, request_timeout: float) -> Api:
    """The API server.

    Raises:
        ClusterError: no kubeconfig that can be used.
    """
    import logging

    from trnx.eks.cluster.api import Patience, connect

    # Its warnings of every retry stand beside the named error that the last one ends with.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    connect_timeout = min(request_timeout, 10.0)
    return connect(kubeconfig, context, Patience(connect_timeout, request_timeout))
