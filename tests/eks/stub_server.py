"""An API server over HTTP, in memory: lists, server-side apply, deletes, logs, and planned faults.

It knows what its client does with it: label selectors, dry runs, field managers' conflicts, paging,
logs with timestamps and `sinceTime`. Faults are functions asked before every request.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
CORE = r"/(?:api/v1|apis/[^/]+/[^/]+)"
PATH = re.compile(rf"({CORE})(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?(/log)?")
# What of a log one connection serves: lines, then how it ends.
CUT, END, SILENT = "cut", "end", "silent"


@dataclass
class Log:
    """A pod's log: (stamp, text). `connections`: (lines that are there, how it ends), in turn."""

    lines: list[tuple[str, str]]
    connections: list[tuple[int, str]]
    stamped: bool = True
    opened: int = 0


@dataclass
class Request:
    """What was asked."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


Fault = Callable[[Request], tuple[int, Object] | str | None]


def status(code: int, reason: str, message: str, **details: Any) -> tuple[int, Object]:
    """An answer of kind Status."""
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return code, {**body, "details": details}


@dataclass
class Cluster:
    """What the server has, and what it was asked."""

    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    served: dict[str, list[Object]] = field(default_factory=dict)
    version: int = 0
    page: int = 500
    lock: threading.Lock = field(default_factory=threading.Lock)
    on_apply: Callable[[Cluster, str, Object], None] | None = None

    def add(self, plural: str, item: Object) -> Object:
        """Put an object where its namespace and name say."""
        meta = item["metadata"]
        self.version += 1
        meta.setdefault("uid", f"uid-{self.version}")
        meta["resourceVersion"] = str(self.version)
        self.objects[plural, meta.get("namespace", ""), meta["name"]] = item
        return item

    def names(self, plural: str) -> list[str]:
        """Names of the objects of a kind."""
        return [name for kind, _, name in self.objects if kind == plural]

    def methods(self, method: str) -> list[Request]:
        """What was asked by a method."""
        return [request for request in self.requests if request.method == method]


def _selected(item: Object, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels", {})
    wanted = [part.split("=") for part in query.get("labelSelector", "").split(",") if part]
    return all(labels.get(key) == value for key, value in wanted)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, code: int, body: Object | bytes) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        kind = "text/plain" if isinstance(body, bytes) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _serve(self) -> None:
        cluster, parts = self.server.cluster, urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        request = Request(self.command, parts.path, query, body)
        with cluster.lock:
            cluster.requests.append(request)
            faults = [fault(request) for fault in cluster.faults]
        for fault in faults:
            if fault == CUT:
                self.close_connection = True
                self.connection.close()
                return
            if fault == SILENT:
                self.server.stopped.wait(20)
                return
            if fault is not None:
                self._answer(*fault)  # type: ignore[misc]
                return
        found = PATH.fullmatch(parts.path)
        if found is None or found[3] in cluster.absent:
            self._discover(parts.path)
        elif found[5]:
            self._log(found[4], query)
        else:
            with cluster.lock:
                answer = self._object(request, found)
            self._answer(*answer)

    do_GET = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _discover(self, path: str) -> None:
        if path == "/version":
            self._answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.1-eks"})
            return
        kinds = self.server.cluster.served.get(path)
        if kinds is None:
            self._answer(404, b"404 page not found\n")
        else:
            self._answer(200, {"kind": "APIResourceList", "resources": kinds})

    def _object(self, request: Request, found: re.Match[str]) -> tuple[int, Object]:
        cluster, namespace, plural, name = self.server.cluster, found[2] or "", found[3], found[4]
        key = (plural, namespace, name)
        if request.method == "GET" and not name:
            return self._list(request, namespace, plural)
        item = cluster.objects.get(key)
        if request.method == "PATCH":
            return self._apply(request, key, item)
        if item is None:
            return status(404, "NotFound", f'{plural} "{name}" not found', name=name, kind=plural)
        if request.method == "DELETE":
            del cluster.objects[key]
            return 200, {"kind": "Status", "status": "Success"}
        return 200, item

    def _list(self, request: Request, namespace: str, plural: str) -> tuple[int, Object]:
        cluster = self.server.cluster
        items = [
            item
            for (kind, place, _), item in cluster.objects.items()
            if kind == plural and namespace in ("", place) and _selected(item, request.query)
        ]
        start = int(request.query.get("continue", "0"))
        shown = items[start : start + cluster.page]
        onwards = str(start + len(shown)) if start + len(shown) < len(items) else ""
        return 200, {"kind": "List", "metadata": {"continue": onwards}, "items": shown}

    def _apply(
        self, request: Request, key: tuple[str, str, str], item: Object | None
    ) -> tuple[int, Object]:
        cluster = self.server.cluster
        assert request.query["fieldManager"] == "trnx"
        assert self.headers["Content-Type"] == "application/apply-patch+yaml"
        new = json.loads(json.dumps(request.body))
        if request.query.get("dryRun") == "All":
            return 200, new
        if item is not None and item.get("applied") == request.body:
            return 200, item
        new["applied"] = request.body
        cluster.add(key[0], new)
        if cluster.on_apply:
            cluster.on_apply(cluster, key[0], new)
        return (200 if item else 201), new

    def _log(self, name: str, query: dict[str, str]) -> None:
        log = self.server.cluster.logs.get(name)
        if log is None:
            message = f'container "node" in pod "{name}" is waiting to start'
            self._answer(*status(400, "BadRequest", message))
            return
        turn = min(log.opened, len(log.connections) - 1)
        log.opened += 1
        count, ending = log.connections[turn]
        since = query.get("sinceTime", "")
        lines = [line for line in log.lines[:count] if not since or line[0][:19] >= since[:19]]
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        stamped = log.stamped and query.get("timestamps") == "true"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for stamp, said in lines:
            data = f"{stamp} {said}\n".encode() if stamped else f"{said}\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if ending == CUT:
            # Half a line, and the connection is gone in the middle of a chunk.
            self.wfile.write(b"40\r\n2026-11-20T10:00:09.5")
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
        elif ending == SILENT:
            self.wfile.flush()
            self.server.stopped.wait(20)
        else:
            self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    cluster: Cluster
    stopped: threading.Event

    def handle_error(self, *_: Any) -> None:
        """Clients that go away are part of the tests."""


def serve(cluster: Cluster) -> _Server:
    """The server, running in a thread; `shutdown` ends it."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.cluster, server.stopped = cluster, threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
