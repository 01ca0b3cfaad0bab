"""From what the client raises to named errors that say what happened and what to do.

Messages carry the server's own reason and nothing of headers or tokens.
"""

from __future__ import annotations

import json
import re
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from trnx.eks.cluster.resources import INSTALL
from trnx.eks.errors import (
    AbsentError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotInstalledError,
    ServerError,
    UnauthorizedError,
    UnreachableError,
)
from trnx.eks.redaction import texts_at_risk, without
from trnx.eks.secret_forms import HIDDEN

_LONGEST = 600
_GROUP = re.compile(r" /apis/([^/ ]+)/([^/ ]+)(?:/namespaces/[^/]+)?(?:/([^/ ]+))?")
# A text, an object of Go or JSON, or a word.
_VALUE = re.compile(
    r"((?:Invalid|Unsupported|Duplicate) value: )"
    r'(?:"(?:[^"\\]|\\.)*"|[\w.*\[\]]*\{.*\}|[^\s:,"]+(?=:))',
    re.DOTALL,
)
_MANAGER = re.compile(r'conflicts? with "([^"]+)"')


def _status(error: ApiException) -> dict[str, Any]:
    try:
        found = json.loads(error.body or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(error: ApiException, status: dict[str, Any]) -> str:
    text = str(status.get("message") or error.reason or "no reason given")
    # The API server repeats the value that it refuses.
    text = _VALUE.sub(rf"\g<1>{HIDDEN}", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _details(status: dict[str, Any]) -> dict[str, Any]:
    found = status.get("details")
    return found if isinstance(found, dict) else {}


def _not_found(request: str, message: str, status: dict[str, Any]) -> ClusterError:
    details = _details(status)
    if details.get("kind") == "namespaces":
        name = details.get("name")
        return AbsentError(f"there is no namespace {name}; run: kubectl create namespace {name}")
    if details.get("name"):
        return AbsentError(f"{message}; `trnx eks status` shows what there is")
    found = _GROUP.search(request)
    if found is None:
        return AbsentError(f"{request}: {message}")
    group, version, plural = found.groups()
    fix = INSTALL.get(group, "install its custom resource definition")
    what = f"{plural} of {group}/{version}" if plural else f"{group}/{version}"
    return NotInstalledError(f"the cluster does not serve {what}: {fix}")


def _conflict(request: str, message: str, status: dict[str, Any]) -> ClusterError:
    causes = [item for item in _details(status).get("causes") or [] if isinstance(item, dict)]
    parts = [
        f"{cause.get('field', '?')} ({''.join(_MANAGER.findall(str(cause.get('message'))))})"
        for cause in causes
        if cause.get("reason") == "FieldManagerConflict"
    ]
    if parts:
        return ConflictError(
            f"{request.partition(' ')[2]}: others manage fields that this job sets: "
            f"{', '.join(parts)}; undo their change, or take the fields over with --force-conflicts"
        )
    return ConflictError(f"{message}; it was changed at the same time: run the command again")


def translated(error: ApiException, request: str, host: str, sent: Any = None) -> ClusterError:
    """The named error of an answer that is not 2xx; it shows nothing of the variables in `sent`."""
    status = _status(error)
    message, code = without(_message(error, status), texts_at_risk(sent)), error.status or 0
    if code == 401:
        return UnauthorizedError(
            f"{host} does not know who asks (401); renew the credentials, for example with "
            "`aws sso login` and `aws eks update-kubeconfig --name CLUSTER`"
        )
    if code == 403:
        return ForbiddenError(
            f"{message} (403); have an administrator allow it: an EKS access entry, or a Role and "
            "RoleBinding in the namespace"
        )
    if code == 404:
        return _not_found(request, message, status)
    if code == 409:
        return _conflict(request, message, status)
    if code in (400, 413, 415, 422):
        return InvalidError(
            f"{request.partition(' ')[2]}: {message} ({code}); correct the job file. Pods of a job "
            "cannot be changed once it is there: remove it with `trnx eks delete`, submit it again"
        )
    return ServerError(
        f"{request}: {host} answered {code}: {message}; retries did not help: see the health of "
        "the control plane, and run the command again"
    )


def unreachable(error: Exception, request: str, host: str) -> ClusterError:
    """The named error of a request without an answer."""
    reason = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else None
    inner: BaseException = reason if isinstance(reason, BaseException) else error
    timed_out = isinstance(inner, urllib3.exceptions.TimeoutError | TimeoutError)
    what = "no answer in time" if timed_out else re.sub(r"<[^>]*>:? ?", "", str(inner))
    return UnreachableError(
        f"{request}: {host} cannot be reached ({type(inner).__name__}: {what[:_LONGEST]}); see "
        "that the cluster exists, that network or VPN lead there, and `kubectl cluster-info`"
    )


def bad_answer(request: str, host: str) -> ClusterError:
    """The named error of an answer that is no JSON object."""
    return ServerError(
        f"{request}: {host} answered with something that is no Kubernetes object; see that the "
        "kubeconfig's server is the cluster's, and no proxy or login page is in between"
    )
