"""submit and delete against an API server over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stub_server import Cluster, Request, status
from typer.testing import CliRunner

from trnx.eks.cli import app
from trnx.eks.errors import (
    AbsentError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    JobExistsError,
    NoClusterError,
    NotInstalledError,
    ServerError,
    TimedOutError,
    UnauthorizedError,
    UnreachableError,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "scripts/eks/examples"
TRAIN, KERNEL, SERVE = (str(EXAMPLES / f"{kind}.yaml") for kind in ("train", "kernel", "serve"))
LABELS = {"app.kubernetes.io/name": "llama-fsdp", "app.kubernetes.io/managed-by": "trnx-eks"}

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("quick")


def _run(*arguments: str) -> Any:
    result = runner.invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _last(result: Any) -> Any:
    return json.loads(result.stdout.strip().splitlines()[-1])


def _finish(kind: str) -> Any:
    """Ends every workload as soon as it is applied."""

    def ended(_: Cluster, plural: str, item: dict[str, Any]) -> None:
        if plural in ("jobs", "jobsets", "trainjobs"):
            done = {"type": kind, "status": "True", "reason": "R", "message": "all over"}
            item["status"] = {"conditions": [done]}

    return ended


def test_submit_checks_all_before_it_applies_any(cluster: Cluster) -> None:
    result = _run("submit", SERVE, "--json")
    assert result.exit_code == 0
    assert [item["outcome"] for item in _last(result)["objects"]] == ["created"] * 3
    patches = cluster.methods("PATCH")
    assert [patch.query.get("dryRun") for patch in patches] == ["All"] * 3 + [None] * 3
    assert all(patch.query["force"] == "false" for patch in patches)
    assert cluster.names("deployments") == ["embeddings"]
    assert cluster.objects["services", "default", "embeddings"]["kind"] == "Service"
    template = cluster.objects["resourceclaimtemplates", "default", "embeddings"]
    assert template["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "trnx-eks"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_comes_and_goes(cluster: Cluster, path: Path) -> None:
    applied = [item["object"] for item in _last(_run("submit", str(path), "--json"))["objects"]]
    assert len(cluster.objects) == len(applied)
    assert (
        "starting" in _run("status", str(path)).stdout
        or "pending" in _run("status", str(path)).stdout
    )
    assert sorted(_last(_run("delete", str(path), "--json"))["removed"]) == sorted(applied)
    assert cluster.objects == {}


def test_submit_again_changes_nothing(cluster: Cluster) -> None:
    assert _run("submit", TRAIN).stdout == "JobSet/llama-fsdp created\n"
    assert _run("submit", TRAIN).stdout == "JobSet/llama-fsdp unchanged\n"
    changed = _run("submit", TRAIN, "--set", "restarts=7")
    assert changed.stdout == "JobSet/llama-fsdp configured\n"
    assert cluster.names("jobsets") == ["llama-fsdp"]


def test_dry_run_keeps_nothing(cluster: Cluster) -> None:
    assert "JobSet/llama-fsdp created (dry run)" in _run("submit", TRAIN, "--dry-run").stdout
    assert cluster.objects == {}


@pytest.mark.parametrize(
    ("kind", "phase", "code"), [("Completed", "succeeded", 0), ("Failed", "failed", 3)]
)
def test_wait_ends_with_the_job(cluster: Cluster, kind: str, phase: str, code: int) -> None:
    cluster.on_apply = _finish(kind)
    result = _run("submit", TRAIN, "--wait", "--json")
    assert result.exit_code == code
    assert _last(result)["state"]["phase"] == phase
    assert "all over" in result.stderr


def test_wait_has_an_end(cluster: Cluster) -> None:
    with pytest.raises(
        TimedOutError, match=r"is starting when the time is over.*`trnx eks status llama-fsdp"
    ):
        _run("submit", TRAIN, "--wait", "--timeout", "0.1")
    assert cluster.names("jobsets") == ["llama-fsdp"]


def test_wait_outlives_a_server_that_is_away_for_a_while(cluster: Cluster) -> None:
    cluster.on_apply = _finish("Completed")
    left = [7]

    def away(request: Request) -> str | None:
        if request.method == "GET" and "labelSelector" in request.query and left[0]:
            left[0] -= 1
            return "cut"
        return None

    cluster.faults.append(away)
    assert _run("submit", TRAIN, "--wait").exit_code == 0
    assert left == [0]


def test_follow_prints_the_log_and_ends(cluster: Cluster) -> None:
    def start(cluster: Cluster, plural: str, item: dict[str, Any]) -> None:
        _finish("Completed")(cluster, plural, item)
        meta = {"name": "p0", "namespace": "default", "labels": LABELS}
        cluster.add("pods", {"metadata": meta, "status": {"phase": "Succeeded"}})

    from stub_server import Log

    cluster.on_apply = start
    cluster.logs["p0"] = Log([("2026-11-20T10:00:00.1Z", "step 1")], [(1, "end")])
    result = _run("submit", TRAIN, "--follow", "--json")
    assert result.exit_code == 0
    assert "step 1\n" in result.stdout
    assert _last(result)["state"]["phase"] == "succeeded"


@pytest.mark.parametrize("pod", [True, False])
def test_following_has_an_end_too(cluster: Cluster, pod: bool) -> None:
    def start(cluster: Cluster, plural: str, _: dict[str, Any]) -> None:
        assert plural == "jobsets"
        meta = {"name": "p0", "namespace": "default", "labels": LABELS}
        if pod:
            cluster.add("pods", {"metadata": meta, "status": {"phase": "Running"}})

    from stub_server import Log

    cluster.on_apply = start
    cluster.logs["p0"] = Log([("2026-11-20T10:00:00.1Z", "step 1")], [(1, "silent")])
    with pytest.raises(TimedOutError, match="when the time is over"):
        _run("submit", TRAIN, "--follow", "--timeout", "0.3")


def test_a_job_that_has_ended_is_not_taken_for_a_new_one(cluster: Cluster) -> None:
    cluster.on_apply = _finish("Failed")
    _run("submit", KERNEL)
    with pytest.raises(JobExistsError, match="has failed; run `trnx eks delete kernel"):
        _run("submit", KERNEL)


def test_a_job_on_its_way_out(cluster: Cluster) -> None:
    _run("submit", KERNEL)
    (item,) = cluster.objects.values()
    item["metadata"]["deletionTimestamp"] = "2026-11-20T10:00:00Z"
    with pytest.raises(JobExistsError, match="is being removed"):
        _run("submit", KERNEL)


def test_somebody_elses_object_is_left_alone(cluster: Cluster) -> None:
    cluster.add("jobsets", {"metadata": {"name": "llama-fsdp", "namespace": "default"}})
    with pytest.raises(JobExistsError, match="is not trnx's"):
        _run("submit", TRAIN)
    assert cluster.methods("PATCH") == []


def test_missing_custom_resource(cluster: Cluster) -> None:
    cluster.absent.add("jobsets")
    with pytest.raises(
        NotInstalledError, match=r"jobsets of jobset.x-k8s.io/v1alpha2.*operator: job"
    ):
        _run("submit", TRAIN)
    assert cluster.objects == {}


CONFLICT = status(
    409,
    "Conflict",
    'Apply failed with 1 conflict: conflict with "kubectl-edit": .spec.failurePolicy.maxRestarts',
    causes=[
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl-edit" using jobset.x-k8s.io/v1alpha2',
            "field": ".spec.failurePolicy.maxRestarts",
        }
    ],
)
REFUSALS = [
    (status(401, "Unauthorized", "Unauthorized"), UnauthorizedError, "update-kubeconfig"),
    (
        status(403, "Forbidden", 'jobsets is forbidden: User "u" cannot patch resource'),
        ForbiddenError,
        'User "u" cannot patch.*access entry',
    ),
    (CONFLICT, ConflictError, r"maxRestarts \(kubectl-edit\).*--force-conflicts"),
    (
        status(409, "Conflict", "the object has been modified"),
        ConflictError,
        "run the command again",
    ),
    (
        status(404, "NotFound", 'namespaces "ml" not found', name="ml", kind="namespaces"),
        AbsentError,
        "kubectl create namespace ml",
    ),
    (
        status(422, "Invalid", "spec.template: Invalid value: field is immutable"),
        InvalidError,
        "field is immutable.*trnx eks delete",
    ),
    (status(400, "BadRequest", "strict decoding error"), InvalidError, "strict decoding"),
    (status(429, "TooManyRequests", "slow down"), ServerError, "429: slow down"),
    (status(500, "InternalError", "etcdserver: no leader"), ServerError, "500: etcdserver"),
    (status(503, "ServiceUnavailable", "no endpoints for webhook"), ServerError, "webhook"),
    ((502, b"<html>bad gateway</html>"), ServerError, "502"),
]


@pytest.mark.parametrize(("answer", "error", "message"), REFUSALS)
def test_refusals_are_named(cluster: Cluster, answer: Any, error: type, message: str) -> None:
    cluster.faults.append(lambda request: answer if request.method == "PATCH" else None)
    with pytest.raises(error, match=message) as caught:
        _run("submit", TRAIN)
    assert "very-secret-token" not in str(caught.value)
    assert cluster.objects == {}


@pytest.mark.parametrize("command", ["submit", "status", "logs", "delete"])
def test_every_command_names_who_may_not(cluster: Cluster, command: str) -> None:
    cluster.faults.append(lambda _: status(401, "Unauthorized", "Unauthorized"))
    with pytest.raises(UnauthorizedError):
        _run(command, *([TRAIN] if command != "doctor" else []))


def test_forced_conflicts_and_transient_failures(cluster: Cluster) -> None:
    left = [2]

    def flaky(request: Request) -> Any:
        if request.method == "PATCH" and left[0]:
            left[0] -= 1
            return status(503, "ServiceUnavailable", "rolling over")
        return None

    cluster.faults.append(flaky)
    assert _run("submit", TRAIN, "--force-conflicts").exit_code == 0
    assert all(patch.query["force"] == "true" for patch in cluster.methods("PATCH"))


def test_a_failure_half_way_says_what_is_there(cluster: Cluster) -> None:
    def second(request: Request) -> Any:
        real = request.method == "PATCH" and "dryRun" not in request.query
        return status(403, "Forbidden", "no") if real and "/services/" in request.path else None

    cluster.faults.append(second)
    with pytest.raises(ForbiddenError, match=r"applied before that: .*Deployment/embeddings"):
        _run("submit", SERVE)


@pytest.mark.parametrize("fault", ["cut", "silent"])
def test_no_answer_is_named_and_does_not_hang(cluster: Cluster, fault: str) -> None:
    cluster.faults.append(lambda _: fault)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        _run("submit", TRAIN, "--request-timeout", "0.2")


def test_what_is_no_api_server(cluster: Cluster) -> None:
    cluster.faults.append(lambda _: (200, b"<html>log in</html>"))
    with pytest.raises(ServerError, match="no proxy or login page"):
        _run("status", TRAIN)


def test_refused_connection_and_missing_kubeconfig(tmp_path: Path, monkeypatch: Any) -> None:
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {}}]\n"
    )
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 cannot be reached"):
        _run("status", "x", "--kubeconfig", str(config))
    for broken in ("a: [", "[]", "", "apiVersion: v1\nkind: Config\n"):
        config.write_text(broken)
        with pytest.raises(NoClusterError, match="update-kubeconfig"):
            _run("status", "x", "--kubeconfig", str(config))
    with pytest.raises(NoClusterError, match="update-kubeconfig"):
        _run("status", "x", "--kubeconfig", str(tmp_path / "missing"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(NoClusterError, match=r"--kubeconfig"):
        _run("delete", "x")


def test_rules_come_before_the_cluster(cluster: Cluster) -> None:
    result = runner.invoke(app, ["submit", TRAIN, "--set", "nproc=3"])
    assert "nproc" in str(result.exception)
    assert cluster.requests == []


@pytest.mark.parametrize(
    ("published", "plugin", "flavour"), [(2, 0, "dra"), (0, 2, "plugin"), (0, 0, "plugin")]
)
def test_flavour_auto_asks_the_cluster(
    cluster: Cluster, published: int, plugin: int, flavour: str
) -> None:
    label = {"node.kubernetes.io/instance-type": "trn2.48xlarge"}
    for index in range(2):
        advertised = {"aws.amazon.com/neuron": "16"} if index < plugin else {}
        meta = {"name": f"n{index}", "labels": label}
        cluster.add("nodes", {"metadata": meta, "status": {"allocatable": advertised}})
        if index < published:
            spec = {"driver": "neuron.aws.com", "nodeName": f"n{index}"}
            cluster.add("resourceslices", {"metadata": {"name": f"s{index}"}, "spec": spec})
    _run("submit", KERNEL, "--set", "flavour=auto")
    assert ("resourceclaimtemplates" in {key[0] for key in cluster.objects}) is (flavour == "dra")


def test_delete_removes_the_jobs_objects_alone(cluster: Cluster) -> None:
    _run("submit", SERVE)
    _run("submit", TRAIN)
    labels = {"app.kubernetes.io/name": "embeddings", "app.kubernetes.io/managed-by": "trnx-eks"}
    for plural in ("persistentvolumeclaims", "persistentvolumes"):
        meta = {"name": "models", "namespace": "default", "labels": dict(labels)}
        cluster.add(plural, {"metadata": meta})
    owned = {"name": "child", "namespace": "default", "labels": labels}
    owned["ownerReferences"] = [{"controller": True, "name": "x"}]  # type: ignore[assignment]
    cluster.add("jobs", {"metadata": owned})
    shown = _run("delete", SERVE, "--dry-run")
    assert "Deployment/embeddings would be removed" in shown.stdout
    assert cluster.methods("DELETE") == []
    result = _run("delete", SERVE, "--json", "--wait")
    removed = _last(result)["removed"]
    assert removed == [
        "Deployment/embeddings",
        "Service/embeddings",
        "ResourceClaimTemplate/embeddings",
    ]
    assert _last(result)["kept_claims"] == ["models"]
    assert sorted(key[0] for key in cluster.objects) == [
        "jobs",
        "jobsets",
        "persistentvolumeclaims",
        "persistentvolumes",
    ]
    for request in cluster.methods("DELETE"):
        assert request.body["propagationPolicy"] == "Foreground"
        assert request.body["preconditions"]["uid"].startswith("uid-")


def test_a_server_that_ignores_selectors_endangers_nothing(cluster: Cluster) -> None:
    _run("submit", KERNEL)
    cluster.add("jobs", {"metadata": {"name": "other", "namespace": "default"}})
    cluster.faults.append(lambda request: request.query.pop("labelSelector", None) and None)
    assert _last(_run("delete", KERNEL, "--json"))["removed"] == ["Job/kernel-bench"]
    assert cluster.names("jobs") == ["other"]


def test_delete_of_nothing_and_of_what_stays(cluster: Cluster) -> None:
    with pytest.raises(AbsentError, match="nothing of a job nosuch"):
        _run("delete", "nosuch")
    _run("submit", TRAIN)
    cluster.faults.append(
        lambda request: (200, {"kind": "Status"}) if request.method == "DELETE" else None
    )
    with pytest.raises(TimedOutError, match="JobSet/llama-fsdp still there"):
        _run("delete", TRAIN, "--wait", "--timeout", "0.1")


def test_delete_of_what_went_away_meanwhile(cluster: Cluster) -> None:
    _run("submit", TRAIN)
    gone = status(404, "NotFound", 'jobsets "llama-fsdp" not found', name="llama-fsdp")
    cluster.faults.append(lambda request: gone if request.method == "DELETE" else None)
    assert _run("delete", TRAIN).exit_code == 0


def test_server_side_validation(cluster: Cluster) -> None:
    held = _run("validate", TRAIN, "--server", "--json")
    assert held.exit_code == 0
    assert [patch.query["dryRun"] for patch in cluster.methods("PATCH")] == ["All"]
    cluster.faults.append(
        lambda request: (
            status(422, "Invalid", "denied by webhook") if request.method == "PATCH" else None
        )
    )
    refused = _run("validate", TRAIN, "--server", "--json")
    assert refused.exit_code == 1
    (finding,) = _last(refused)["findings"]
    assert finding["rule"] == "server"
    assert "denied by webhook" in finding["message"]


def test_server_side_validation_of_kinds_that_trnx_does_not_write(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "queue.yaml"
    file.write_text("apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: t, namespace: ml}\n")
    refused = _last(_run("validate", str(file), "--server", "--json"))
    assert "does not serve example.com/v1" in refused["findings"][0]["message"]
    cluster.served["/apis/example.com/v1"] = [
        {"name": "things/status", "kind": "Thing", "namespaced": True},
        {"name": "things", "kind": "Thing", "namespaced": True},
    ]
    assert _last(_run("validate", str(file), "--server", "--json"))["findings"] == []
    assert cluster.methods("PATCH")[0].path == "/apis/example.com/v1/namespaces/ml/things/t"
    file.write_text("apiVersion: example.com/v1\nkind: Other\nmetadata: {name: t}\n")
    assert "no kind Other" in _run("validate", str(file), "--server", "--json").stdout
