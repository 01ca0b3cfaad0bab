"""logs against an API server over HTTP: each line once, over lost connections and restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stub_server import CUT, END, SILENT, Cluster, Log, status
from typer.testing import CliRunner

from trnx.eks.cli import app
from trnx.eks.cluster import logs
from trnx.eks.errors import AbsentError, TimedOutError, UnreachableError

LABELS = {"app.kubernetes.io/name": "j", "app.kubernetes.io/managed-by": "trnx-eks"}
INDEX = "batch.kubernetes.io/job-completion-index"

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("quick")


def _run(*arguments: str) -> list[str]:
    result = runner.invoke(app, ["logs", "j", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return list(result.stdout.splitlines())


def _job(cluster: Cluster, *, ended: bool = True) -> None:
    conditions = [{"type": "Complete", "status": "True"}] if ended else []
    meta = {"name": "j", "namespace": "default", "labels": LABELS}
    cluster.add("jobs", {"metadata": meta, "spec": {}, "status": {"conditions": conditions}})


def _pod(
    cluster: Cluster, rank: int, log: Log | None, phase: str = "Succeeded", **meta: Any
) -> None:
    name = meta.pop("name", f"j-{rank}")
    labels = {**LABELS, INDEX: str(rank)}
    spec = {"containers": [{"name": "istio-proxy"}, {"name": "node"}]}
    place = {"name": name, "namespace": "default", "labels": labels, **meta}
    cluster.add("pods", {"metadata": place, "spec": spec, "status": {"phase": phase}})
    if log is not None:
        cluster.logs[name] = log


def _lines(*texts: str) -> list[tuple[str, str]]:
    """Lines of which the second and the third have one stamp."""
    return [
        (f"2026-11-20T10:00:0{max(i, 2) if i < 3 else i}.5Z", text) for i, text in enumerate(texts)
    ]


ABCDE = _lines("a", "b", "c", "d", "e")
TEXT = ["a", "b", "c", "d", "e"]


def test_one_rank(cluster: Cluster) -> None:
    _job(cluster)
    _pod(cluster, 0, Log(ABCDE, [(5, END)]))
    _pod(cluster, 1, Log(_lines("x"), [(1, END)]))
    assert _run() == TEXT
    assert _run("--rank", "1") == ["x"]
    assert _run("--tail", "2") == ["d", "e"]
    asked = [request for request in cluster.requests if request.path.endswith("/log")]
    assert {request.query["container"] for request in asked} == {"node"}


def test_all_ranks_and_json(cluster: Cluster) -> None:
    _job(cluster)
    _pod(cluster, 0, Log(_lines("a"), [(1, END)]))
    _pod(cluster, 1, Log(_lines("b", "c"), [(2, END)]))
    assert _run("--rank", "all") == ["[0] a", "[1] b", "[1] c"]
    assert sorted(_run("--rank", "all", "-f")) == ["[0] a", "[1] b", "[1] c"]
    *lines, last = map(json.loads, _run("--rank", "all", "--json"))
    assert lines[0] == {"rank": 0, "line": "a"}
    assert last == {"name": "j", "namespace": "default", "lines": 3}


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 3), (1, 5), (2, 2), (3, 4), (5, 5)])
@pytest.mark.parametrize(("stamped", "follow"), [(True, True), (True, False), (False, True)])
def test_a_lost_connection_repeats_nothing(
    cluster: Cluster, first: int, second: int, stamped: bool, follow: bool
) -> None:
    _job(cluster)
    connections = [(first, CUT), (max(first, second), CUT), (5, END)]
    _pod(cluster, 0, Log(ABCDE, connections, stamped))
    assert _run(*(["-f"] if follow else [])) == TEXT
    opened = [request for request in cluster.requests if request.path.endswith("/log")]
    assert len(opened) == 3
    if stamped and first:
        assert opened[1].query["sinceTime"].startswith("2026-11-20T10:00:0")


def test_stamps_of_another_zone(cluster: Cluster) -> None:
    _job(cluster)
    lines = [(f"2026-11-20T12:00:0{i}.123456789+02:00", str(i)) for i in range(3)]
    _pod(cluster, 0, Log(lines, [(2, CUT), (3, END)]))
    cluster.faults.append(lambda request: request.query.pop("sinceTime", None) and None)
    assert _run() == ["0", "1", "2"]


def test_server_errors_between(cluster: Cluster) -> None:
    _job(cluster)
    _pod(cluster, 0, Log(ABCDE, [(2, CUT), (5, END)]))
    left = [4]

    def flaky(request: Any) -> Any:
        if request.path.endswith("/log") and cluster.logs["j-0"].opened == 1 and left[0]:
            left[0] -= 1
            return status(503, "ServiceUnavailable", "no")
        return None

    cluster.faults.append(flaky)
    assert _run() == TEXT
    assert left == [0]


def test_a_connection_that_is_lost_for_good(cluster: Cluster) -> None:
    _job(cluster)
    _pod(cluster, 0, Log(ABCDE, [(2, CUT)]))
    with pytest.raises(UnreachableError, match="cut off 5 times in a row"):
        _run()


def test_silence_is_no_failure(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SILENCE", 0.1)
    _job(cluster)
    _pod(cluster, 0, Log(ABCDE, [(3, SILENT), (3, SILENT), (5, END)]), phase="Running")
    pod = cluster.objects["pods", "default", "j-0"]

    def finish(_: Any) -> None:
        if cluster.logs["j-0"].opened == 3:
            pod["status"]["phase"] = "Succeeded"

    cluster.faults.append(finish)
    assert _run("-f") == TEXT
    cluster.logs["j-0"] = Log(ABCDE, [(3, SILENT)])
    assert _run("-f") == ["a", "b", "c"]


def test_follow_goes_on_with_the_pod_that_replaces_a_preempted_one(cluster: Cluster) -> None:
    _job(cluster, ended=False)
    created = {"creationTimestamp": "2026-11-20T09:00:00Z"}
    _pod(cluster, 0, Log(_lines("a"), [(1, END)]), phase="Running", **created)

    def replace(request: Any) -> None:
        here = "j-0" in cluster.names("pods")
        if "/pods" in request.path and cluster.logs["j-0"].opened and here:
            del cluster.objects["pods", "default", "j-0"]
            later = {"name": "j-0-again", "creationTimestamp": "2026-11-20T09:01:00Z"}
            _pod(cluster, 0, Log(_lines("b", "c"), [(2, END)]), **later)
            cluster.objects["jobs", "default", "j"]["status"]["conditions"] = [
                {"type": "Complete", "status": "True"}
            ]

    cluster.faults.append(replace)
    assert _run("-f") == ["a", "b", "c"]


def test_the_end_of_an_answer_is_not_the_end_of_a_running_pod(cluster: Cluster) -> None:
    """Load balancers end long answers politely."""
    _job(cluster)
    _pod(cluster, 0, Log(ABCDE, [(2, END), (2, END), (5, END)]), phase="Running")
    pod = cluster.objects["pods", "default", "j-0"]

    def finish(request: Any) -> None:
        if request.path.endswith("/log") and cluster.logs["j-0"].opened == 2:
            ended = {"name": "node", "state": {"terminated": {"exitCode": 0}}}
            sidecar = {"name": "istio-proxy", "state": {"running": {}}}
            pod["status"]["containerStatuses"] = [sidecar, ended]

    cluster.faults.append(finish)
    assert _run("-f") == TEXT
    assert _run() == TEXT


def test_a_server_that_is_away_while_a_pod_is_looked_for(cluster: Cluster) -> None:
    _job(cluster)
    _pod(cluster, 0, Log(ABCDE, [(5, END)]))
    away = [0]

    def fault(request: Any) -> Any:
        away[0] += request.path.endswith("/pods")
        return CUT if 0 < away[0] < 6 and request.path.endswith("/pods") else None

    cluster.faults.append(fault)
    assert _run("-f") == TEXT
    away[0] = 0
    with pytest.raises(UnreachableError):
        _run()


def test_waiting_is_told_with_its_cause(cluster: Cluster) -> None:
    _job(cluster, ended=False)
    _pod(cluster, 0, None, phase="Pending")
    missing = 'persistentvolumeclaim "fsx" not found'
    unscheduled = {"type": "PodScheduled", "status": "False", "message": missing}
    cluster.objects["pods", "default", "j-0"]["status"]["conditions"] = [unscheduled]
    result = runner.invoke(app, ["logs", "j", "-f", "--start-timeout", "0.05"])
    first, cause, fix = result.stderr.splitlines()
    assert first == "waiting for rank 0 of j to start: pending (1 of 1 pods do not run)"
    assert cause == f"  rank 0: claim-missing: {missing}"
    assert "create the claim" in fix


def test_pods_that_never_start(cluster: Cluster) -> None:
    _job(cluster, ended=False)
    with pytest.raises(AbsentError, match="no pod of rank 7"):
        _run("--rank", "7")
    _pod(cluster, 0, None, phase="Pending")
    with pytest.raises(TimedOutError, match=r"has not started for 0 s; `trnx eks status j"):
        _run("-f", "--start-timeout", "0.1")
    _pod(cluster, 1, None, phase="Failed")
    with pytest.raises(AbsentError, match="waiting to start"):
        _run("--rank", "1")
    with pytest.raises(TimedOutError):
        _run("-f", "--rank", "all", "--start-timeout", "0.1")


def test_unknown_jobs_and_ranks(cluster: Cluster) -> None:
    with pytest.raises(AbsentError, match="no job j of trnx"):
        _run()
    _job(cluster)
    assert runner.invoke(app, ["logs", "j", "--rank", "first"]).exit_code == 2
