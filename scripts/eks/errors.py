"""Findings, and the named errors of `trnx.eks`.

A `Finding` is what a check has to say about one field: which rule, where, what is wrong, and what
to do. Checks return findings; only the outermost callers raise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import InitVar, asdict, dataclass
from typing import Any

from trnx.eks.levels import Level, level_of
from trnx.eks.rule_names import RULES, page_of
from trnx.eks.secret_forms import redact
from trnx.simulator.errors import TrnxError


@dataclass(frozen=True)
class Finding:
    """What a check has to say: `field` is a dotted path, `rule` a key of `RULES`; no text shows a
    secret. `level` is the rule's unless it is given."""

    rule: str
    field: str
    message: str
    fix: str
    given: InitVar[Level | None] = None
    level: Level = dataclasses.field(init=False)

    def __post_init__(self, given: Level | None) -> None:
        assert self.rule in RULES, self.rule
        object.__setattr__(self, "level", given or level_of(self.rule))
        for part in ("field", "message", "fix"):
            object.__setattr__(self, part, redact(getattr(self, part)))

    def __str__(self) -> str:
        return f"[{self.rule}] {self.field}: {self.message}\n    fix: {self.fix}"

    def to_dict(self) -> dict[str, str]:
        """JSON form; `page` is where the rule is explained."""
        return {**asdict(self), "page": page_of(self.rule)}


class EksError(TrnxError):
    """Root of the errors of `trnx.eks`; the message shows no secret."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))

    def to_dict(self) -> dict[str, Any]:
        """JSON form, which a command with `--json` ends with."""
        return {"error": type(self).__name__, "message": str(self)}


class MissingExtraError(EksError):
    """`trnx eks` without the packages of the extra `eks`."""


class YamlError(EksError):
    """A file that is not YAML, or that says something twice."""


class SchemaFolderError(EksError):
    """The folder of custom-resource schemas is missing, or a download of it failed."""


class JobRefusedError(EksError):
    """A job file or manifest that breaks rules; `findings` holds all of them."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        # What is refused is an error, however grave it would be in manifests of others.
        self.findings = tuple(
            dataclasses.replace(finding, given=Level.ERROR) for finding in findings
        )
        count = f"{len(self.findings)} problem" + ("s" if len(self.findings) > 1 else "")
        super().__init__("\n".join([count, *map(str, self.findings)]))

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**super().to_dict(), "findings": [finding.to_dict() for finding in self.findings]}


class ClusterError(EksError):
    """Root of what goes wrong with a cluster."""


class NoClusterError(ClusterError):
    """No kubeconfig that can be used."""


class UnreachableError(ClusterError):
    """The API server gives no answer."""


class UnauthorizedError(ClusterError):
    """The API server does not know who asks (401)."""


class ForbiddenError(ClusterError):
    """The API server knows who asks, and does not allow it (403)."""


class AbsentError(ClusterError):
    """A namespace, a job or a pod that is not there."""


class NotInstalledError(ClusterError):
    """The cluster does not serve a kind: its custom resource definition is not installed."""


class ConflictError(ClusterError):
    """A field is managed by somebody else, or was changed at the same time (409)."""


class InvalidError(ClusterError):
    """The API server refuses the object itself (400, 422)."""


class ServerError(ClusterError):
    """The API server failed (5xx), or is none."""


class TimedOutError(ClusterError):
    """What was waited for did not happen in time."""


class JobExistsError(ClusterError):
    """The name is taken: by a job that has ended, or by something that is not trnx's."""


class AwsError(EksError):
    """An AWS service refused, failed, or cannot be asked."""
