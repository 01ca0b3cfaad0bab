"""Requests to the API server by the `kubernetes` client: with timeouts, retries, named errors.

Retries are urllib3's: connections that fail, and answers 429 and 5xx. Everything sent is safe to be
sent again (reads, server-side apply, deletes by uid).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import urllib3
import yaml
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from trnx.eks.cluster.resources import KNOWN, Resource
from trnx.eks.cluster.translate import bad_answer, translated, unreachable
from trnx.eks.documents import Manifest, where_of
from trnx.eks.errors import (
    AbsentError,
    NoClusterError,
    NotInstalledError,
    ServerError,
    UnreachableError,
)

FIELD_MANAGER = "trnx"
APPLY = "application/apply-patch+yaml"
_PAGE = 500
T = TypeVar("T")
# Seconds between two attempts to reach a server that is away.
LONGEST_PAUSE = 15.0
_RETRIED = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds. `poll`: between two looks at the cluster."""

    connect: float = 10.0
    read: float = 30.0
    poll: float = 2.0
    retries: int = 3
    backoff: float = 0.3
    outages: int = 8


def outlast(patience: Patience, call: Callable[[], T], until: float | None = None) -> T:
    """What a call returns, over outages of the server that retries of one request do not outlast.

    Raises:
        ClusterError: the outage is longer, or `until` (of the monotonic clock) is over.
    """
    for attempt in range(patience.outages):
        try:
            return call()
        except (UnreachableError, ServerError):
            if until is not None and time.monotonic() >= until:
                raise
        time.sleep(min(patience.poll * 2**attempt, LONGEST_PAUSE))
    return call()


def _configuration(patience: Patience) -> Any:
    configuration = kubernetes_client.Configuration()
    configuration.retries = urllib3.Retry(
        total=patience.retries,
        # A server that is silent once is asked again once: an answer may take `read` seconds.
        read=1,
        backoff_factor=patience.backoff,
        status_forcelist=_RETRIED,
        allowed_methods=None,
        # A server's Retry-After may be an hour.
        respect_retry_after_header=False,
        raise_on_status=False,
    )
    return configuration


def _reason(error: Exception) -> str:
    """What is wrong with a kubeconfig, without a line of it."""
    if isinstance(error, yaml.YAMLError):
        return where_of(error)
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) if isinstance(error, ConfigException) else "it has not the form of one"


def connect(
    kubeconfig: Path | None = None, context: str | None = None, patience: Patience | None = None
) -> Api:
    """The cluster of a kubeconfig (else KUBECONFIG, else the usual file, else the pod's own).

    Raises:
        NoClusterError: no configuration that can be used.
    """
    patience = patience or Patience()
    configuration = _configuration(patience)
    file = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if file or context or not in_pod or Path("~/.kube/config").expanduser().is_file():
            kubernetes_config.load_kube_config(
                file, context, client_configuration=configuration, persist_config=False
            )
        else:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
    except (ConfigException, yaml.YAMLError, OSError, TypeError, KeyError) as error:
        place = file or "~/.kube/config"
        raise NoClusterError(
            f"no cluster: {place} cannot be used ({_reason(error)}); write it with `aws eks "
            "update-kubeconfig --name CLUSTER --region REGION`, or name a file with --kubeconfig"
        ) from None
    return Api(kubernetes_client.ApiClient(configuration), patience)


class Api:
    """One cluster. Safe to use from several threads."""

    def __init__(self, client: Any, patience: Patience) -> None:
        self.client = client
        self.patience = patience

    @property
    def host(self) -> str:
        """The server's address, for messages."""
        return str(self.client.configuration.host)

    def _call(
        self, method: str, path: str, query: Mapping[str, Any], body: Any, kind: str, **options: Any
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": kind}
        try:
            return self.client.call_api(
                path,
                method,
                query_params=[*query.items()],
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                response_types_map=dict.fromkeys((200, 201, 202), "object"),
                _return_http_data_only=True,
                **options,
            )
        except ApiException as error:
            raise translated(error, f"{method} {path}", self.host, body) from None
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise unreachable(error, f"{method} {path}", self.host) from None

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        kind: str = "application/json",
    ) -> Manifest:
        """The object that the server answers with.

        Raises:
            ClusterError: anything else than a good answer, as one of its named kinds.
        """
        timeout = (self.patience.connect, self.patience.read)
        found = self._call(method, path, query or {}, body, kind, _request_timeout=timeout)
        if not isinstance(found, dict):
            raise bad_answer(f"{method} {path}", self.host)
        return found

    def stream(self, path: str, query: Mapping[str, Any], read: float) -> urllib3.HTTPResponse:
        """An answer that is read piece by piece; `read`: seconds of silence that are allowed."""
        timeout = (self.patience.connect, read)
        options = {"_preload_content": False, "_request_timeout": timeout}
        answer: urllib3.HTTPResponse = self._call("GET", path, query, None, "*/*", **options)
        return answer

    def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """One object, or None where there is none."""
        try:
            return self.request("GET", resource.path(namespace, name))
        except (AbsentError, NotInstalledError):
            return None

    def items(self, resource: Resource, namespace: str, **selectors: str) -> list[Manifest]:
        """All objects of a kind that selectors (`labelSelector`, `fieldSelector`) take.

        Raises:
            NotInstalledError: the kind is not served.
        """
        found: list[Manifest] = []
        query: dict[str, Any] = {"limit": _PAGE, **selectors}
        while True:
            answer = self.request("GET", resource.path(namespace), query)
            for item in answer.get("items") or []:
                # Items of a list say neither.
                item.setdefault("kind", resource.kind)
                item.setdefault("apiVersion", resource.api_version)
                if resource.namespaced and namespace:
                    item.setdefault("metadata", {}).setdefault("namespace", namespace)
                found.append(item)
            onwards = (answer.get("metadata") or {}).get("continue")
            if not onwards or onwards == query.get("continue"):
                return found
            query["continue"] = onwards

    def resource_of(self, manifest: Manifest) -> Resource:
        """Where a manifest's kind is kept; kinds that trnx does not write are asked for.

        Raises:
            NotInstalledError: the server has no such kind.
        """
        version, kind = manifest["apiVersion"], manifest["kind"]
        if (version, kind) in KNOWN:
            return KNOWN[version, kind]
        root = "/apis" if "/" in version else "/api"
        for entry in self.request("GET", f"{root}/{version}").get("resources") or []:
            if entry.get("kind") == kind and "/" not in entry.get("name", "/"):
                return Resource(version, kind, entry["name"], bool(entry.get("namespaced")))
        raise NotInstalledError(f"the cluster serves {version}, but no kind {kind} in it")

    def apply(
        self, manifest: Manifest, namespace: str, *, dry_run: bool = False, force: bool = False
    ) -> Manifest:
        """Server-side apply of one manifest as the field manager `trnx`.

        Raises:
            ConflictError: another field manager owns a field, and `force` is False.
        """
        resource = self.resource_of(manifest)
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        path = resource.path(namespace, manifest["metadata"]["name"])
        return self.request("PATCH", path, query, manifest, APPLY)

    def delete(self, resource: Resource, item: Manifest) -> None:
        """Remove an object after what depends on it; only if it is still the same one."""
        meta = item["metadata"]
        body: Manifest = {"propagationPolicy": "Foreground"}
        if "uid" in meta:
            body["preconditions"] = {"uid": meta["uid"]}
        self.request("DELETE", resource.path(meta.get("namespace", ""), meta["name"]), body=body)
