"""doctor and warm-cache against an API server over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from stub_server import END, Cluster, Log, status
from typer.testing import CliRunner

from trnx.eks.cli import app
from trnx.eks.errors import EksError, UnauthorizedError

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts/eks/examples"
TRAIN, WARM = str(EXAMPLES / "train.yaml"), str(EXAMPLES / "warm-cache.yaml")
NEURON, EFA = "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("quick", "no_aws")


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of AWS, and no network for them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")


def _run(*arguments: str) -> Any:
    result = runner.invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _checks(*arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    result = _run("doctor", *arguments, "--json")
    found: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(result.stdout.splitlines()[-1])["checks"]:
        found.setdefault(check["name"], []).append(check)
    return result.exit_code, found


def _node(cluster: Cluster, name: str, **changes: Any) -> None:
    labels = {
        "node.kubernetes.io/instance-type": changes.get("kind", "trn2.48xlarge"),
        "topology.kubernetes.io/zone": changes.get("zone", "us-west-2d"),
    }
    ready = [{"type": "Ready", "status": "True" if changes.get("ready", True) else "False"}]
    advertised = {NEURON: changes.get("neuron", "16"), EFA: changes.get("efa", "16")}
    state = {
        "allocatable": {key: value for key, value in advertised.items() if value}
        | changes.get("allocatable", {}),
        "conditions": ready,
        "nodeInfo": {"osImage": changes.get("image", "Amazon Linux 2023")},
    }
    spec = {"unschedulable": changes.get("cordoned", False), "taints": changes.get("taints", [])}
    meta = {"name": name, "labels": labels | changes.get("labels", {})}
    cluster.add("nodes", {"metadata": meta, "spec": spec, "status": state})


def _running(cluster: Cluster, node: str, phase: str = "Running", **asked: str) -> None:
    """A pod of another namespace, bound to a node; `asked`: neuron, efa, cpu, memory."""
    names = {"neuron": NEURON, "efa": EFA}
    requests = {names.get(key, key): value for key, value in asked.items()}
    spec = {"nodeName": node, "containers": [{"name": "a", "resources": {"requests": requests}}]}
    name = f"other-{len(cluster.names('pods'))}"
    meta = {"name": name, "namespace": "elsewhere"}
    cluster.add("pods", {"metadata": meta, "spec": spec, "status": {"phase": phase}})


def _groups(cluster: Cluster, *groups: str, version: str = "") -> None:
    versions = {"jobset.x-k8s.io": "v1alpha2", "kueue.x-k8s.io": "v1beta2"}
    found = [
        {"name": group, "versions": [{"version": version or versions.get(group, "v1alpha1")}]}
        for group in groups
    ]

    def answer(request: Any) -> Any:
        return (200, {"groups": found}) if request.path == "/apis" else None

    cluster.faults.append(answer)


def _claim(cluster: Cluster, *modes: str, phase: str = "Bound") -> None:
    meta = {"name": "trnx-fsx", "namespace": "default"}
    spec = {"accessModes": list(modes)}
    cluster.add(
        "persistentvolumeclaims", {"metadata": meta, "spec": spec, "status": {"phase": phase}}
    )


def _good(cluster: Cluster) -> None:
    for index in range(2):
        _node(cluster, f"n{index}")
    _groups(cluster, "jobset.x-k8s.io", "trainer.kubeflow.org", "kueue.x-k8s.io")
    _claim(cluster, "ReadWriteMany")
    active = {"conditions": [{"type": "Active", "status": "True"}]}
    queue = {"metadata": {"name": "trn-queue", "namespace": "default"}, "status": active}
    cluster.add("localqueues", queue)


def test_a_cluster_that_has_all(cluster: Cluster) -> None:
    _good(cluster)
    code, found = _checks(TRAIN)
    assert code == 0
    for name in ("kubernetes", "nodes", "controllers", "capacity", "claims", "queue"):
        assert {check["result"] for check in found[name]} == {"ok"}, found[name]
    assert found["ec2"][0]["result"] == "skipped"
    assert found["driver"][0]["result"] == "warn"
    shown = _run("doctor", TRAIN).stdout
    assert "the cluster can run it" in shown
    assert "device plugin" in shown


def test_an_empty_cluster_for_nobody_in_particular(cluster: Cluster) -> None:
    _groups(cluster)
    code, found = _checks()
    assert code == 0
    assert found["nodes"][0]["result"] == "warn"
    assert {check["result"] for check in found["controllers"]} == {"warn"}


def test_what_a_job_lacks(cluster: Cluster) -> None:
    _groups(cluster)
    code, found = _checks(TRAIN, "--set", "service_account=robot")
    assert code == 1
    failed = {name for name, checks in found.items() if any(c["result"] == "fail" for c in checks)}
    assert failed == {"capacity", "controllers", "claims", "queue", "account"}
    assert all(
        check["fix"] for checks in found.values() for check in checks if check["result"] == "fail"
    )
    assert "something has to be mended first" in _run("doctor", TRAIN).stdout


@pytest.mark.parametrize(
    ("nodes", "name", "result", "text"),
    [
        ([{"neuron": ""}] * 2, "plugin-or-dra", "fail", "neuron-helm-chart"),
        ([{"efa": ""}] * 2, "efa", "fail", "aws-efa-k8s-device-plugin"),
        ([{"efa": "8"}, {}], "efa", "warn", "launch template"),
        ([{"neuron": "15"}, {}], "devices", "warn", "neuron-ls"),
        ([{"zone": "us-west-2a"}, {"zone": "us-west-2b"}], "capacity", "fail", "one zone"),
        ([{"ready": False}, {}], "nodes", "warn", "describe node"),
        ([{"image": "amazon-eks-node-al2023-x86_64-standard-1.34"}, {}], "ami", "fail", "neuron"),
        ([{"kind": "trn9.huge"}, {}], "instance", "warn", "trnx eks instance trn9.huge"),
    ],
)
def test_what_nodes_lack(
    cluster: Cluster, nodes: list[dict[str, Any]], name: str, result: str, text: str
) -> None:
    _groups(cluster, "jobset.x-k8s.io", "kueue.x-k8s.io")
    for index, changes in enumerate(nodes):
        _node(cluster, f"n{index}", **changes)
    _, found = _checks(TRAIN)
    matching = [check for check in found[name] if check["result"] == result]
    assert any(text in check["message"] + check["fix"] for check in matching), found[name]


def test_the_table_is_held_against_ec2(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    _good(cluster)
    labels = cluster.objects["nodes", "", "n0"]["metadata"]["labels"]
    with mock_aws():
        ec2 = boto3.client("ec2", region_name="us-west-2")
        ami = ec2.describe_images()["Images"][0]
        labels["eks.amazonaws.com/nodegroup-image"] = ami["ImageId"]
        found = json.loads(_run("doctor", "--json").stdout.splitlines()[-1])
    (check,) = [check for check in found["checks"] if check["name"] == "ec2"]
    assert (check["result"], check["message"]) == ("ok", "trn2.48xlarge is as EC2 describes it")
    assert ami["Name"] in {node["image"] for node in found["nodes"]}


def test_plugin_and_dra(cluster: Cluster) -> None:
    _good(cluster)
    spec = {"driver": "neuron.aws.com", "nodeName": "n0"}
    cluster.add("resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    code, found = _checks()
    assert code == 1
    assert "device plugin and DRA driver on one node: n0" in found["plugin-or-dra"][0]["message"]
    assert found["dra"][0]["result"] == "warn"
    cluster.add("deviceclasses", {"metadata": {"name": "neuron.aws.com"}})
    assert _checks()[1]["dra"][0]["result"] == "ok"
    _, found = _checks(TRAIN, "--set", "flavour=dra")
    assert "flavour" not in found
    del cluster.objects["resourceslices", "", "s"]
    _, found = _checks(TRAIN, "--set", "flavour=dra")
    assert "write flavour: device-plugin or auto" in found["flavour"][0]["fix"]


@pytest.mark.parametrize(
    ("modes", "phase", "result"),
    [(["ReadWriteOnce"], "Bound", "fail"), (["ReadWriteMany"], "Pending", "warn")],
)
def test_claims(cluster: Cluster, modes: list[str], phase: str, result: str) -> None:
    _good(cluster)
    _claim(cluster, *modes, phase=phase)
    assert _checks(TRAIN)[1]["claims"][0]["result"] == result


def test_queue_and_controllers_of_another_version(cluster: Cluster) -> None:
    _good(cluster)
    stopped = {"conditions": [{"type": "Active", "status": "False", "message": "no ClusterQueue"}]}
    cluster.objects["localqueues", "default", "trn-queue"]["status"] = stopped
    _, found = _checks(TRAIN)
    assert "no ClusterQueue" in found["queue"][0]["message"]
    cluster.faults.clear()
    _groups(cluster, "jobset.x-k8s.io", version="v1")
    _, found = _checks(TRAIN)
    assert "JobSet serves v1, not v1alpha2" in found["controllers"][0]["message"]


DEDICATED = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
OURS = {"key": NEURON, "value": "true", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("nodes", "asked", "text"),
    [
        ([{}, {}], {"neuron": "16"}, f"n1: 0 {NEURON} free, a pod asks for 16"),
        ([{}, {}], {"neuron": "1"}, f"n1: 15 {NEURON} free"),
        ([{}, {}], {"efa": "16"}, f"n1: 0 {EFA} free"),
        ([{"allocatable": {"cpu": "191450m"}}] * 2, {"cpu": "100"}, "n1: 91.45 cpu free"),
        ([{"allocatable": {"memory": "1893Gi"}}] * 2, {"memory": "1Ti"}, "869Gi of memory free"),
    ],
)
def test_what_is_taken_has_no_room(
    cluster: Cluster, nodes: list[dict[str, Any]], asked: dict[str, str], text: str
) -> None:
    _good(cluster)
    for index, changes in enumerate(nodes):
        _node(cluster, f"n{index}", **changes)
    _running(cluster, "n1", "Succeeded", **asked)
    assert _checks(TRAIN)[1]["capacity"][0]["result"] == "ok"
    _running(cluster, "n1", **asked)
    code, found = _checks(TRAIN)
    (check,) = found["capacity"]
    assert (code, check["result"]) == (0, "warn")
    assert "room for 1 now" in check["message"]
    assert text in check["message"]
    result = _run("doctor", TRAIN)
    assert "the cluster has no room for it now: it would wait" in result.stdout
    assert json.loads(_run("doctor", TRAIN, "--json").stdout)["verdict"] == "later"


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"cordoned": True}, "n1 is cordoned"),
        ({"ready": False}, "n1 is not ready"),
        ({"taints": [OURS, DEDICATED]}, "n1 has the taint dedicated"),
        ({"zone": "us-west-2a"}, "room for 1 now"),
        ({"efa": ""}, f"n1: 0 {EFA} free"),
        ({"neuron": "8"}, f"n1: 8 {NEURON} free"),
        ({"kind": "trn2.3xlarge"}, "room for 1 now"),
    ],
)
def test_closed_nodes_are_not_counted(cluster: Cluster, node: dict[str, Any], text: str) -> None:
    _good(cluster)
    _node(cluster, "n1", **node)
    code, found = _checks(TRAIN)
    (check,) = found["capacity"]
    assert (code, check["result"]) == (1, "fail")
    assert text in check["message"]
    _groups(cluster, "jobset.x-k8s.io", "kueue.x-k8s.io", "karpenter.sh")
    cluster.faults.pop(0)
    assert _checks(TRAIN)[1]["capacity"][0]["result"] == "warn"


def test_taints_that_the_pod_tolerates(cluster: Cluster) -> None:
    _good(cluster)
    _node(cluster, "n1", taints=[OURS, {**DEDICATED, "effect": "PreferNoSchedule"}])
    assert _checks(TRAIN)[1]["capacity"][0]["result"] == "ok"


def test_zones_that_a_job_names(cluster: Cluster) -> None:
    _good(cluster)
    assert _checks(TRAIN, "--set", "zone=us-west-2d")[1]["capacity"][0]["result"] == "ok"
    code, found = _checks(TRAIN, "--set", "zone=us-west-2a")
    (check,) = found["capacity"]
    assert (code, check["result"]) == (1, "fail")
    assert "no node in us-west-2a" in check["message"]
    assert "2 in us-west-2d" in check["message"]
    _groups(cluster, "jobset.x-k8s.io", "kueue.x-k8s.io", "karpenter.sh")
    cluster.faults.pop(0)
    (check,) = _checks(TRAIN, "--set", "zone=us-west-2a")[1]["capacity"]
    assert "NodePool" in check["fix"]


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ({"key": "team", "operator": "In", "values": ["a"]}, "ok"),
        ({"key": "team", "operator": "NotIn", "values": ["a"]}, "fail"),
        ({"key": "team", "operator": "Exists"}, "ok"),
        ({"key": "team", "operator": "DoesNotExist"}, "fail"),
        ({"key": "cores", "operator": "Gt", "values": ["4"]}, "ok"),
        ({"key": "cores", "operator": "Lt", "values": ["4"]}, "fail"),
        ({"key": "team", "operator": "Gt", "values": ["4"]}, "fail"),
    ],
)
def test_affinity_selects_nodes(cluster: Cluster, expression: dict[str, Any], result: str) -> None:
    _good(cluster)
    for name in ("n0", "n1"):
        _node(cluster, name, labels={"team": "a", "cores": "8"})
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    job = {"template": {"spec": {"template": {"spec": {"affinity": affinity}}}}, "name": "node"}
    overrides = {"JobSet": {"spec": {"replicatedJobs": [job]}}}
    found = _checks(TRAIN, "--set", f"overrides={json.dumps(overrides)}")[1]
    assert found["capacity"][0]["result"] == result


def test_secrets_that_a_job_names(cluster: Cluster) -> None:
    _good(cluster)
    named = ["--set", "secrets=[hf-token, wandb]"]
    value = "c2VjcmV0LXZhbHVl"
    meta = {"name": "hf-token", "namespace": "default"}
    cluster.add("secrets", {"metadata": meta, "data": {"HF_TOKEN": value}})
    code, found = _checks(TRAIN, *named)
    assert code == 1
    assert [check["result"] for check in found["secrets"]] == ["ok", "fail"]
    assert "create secret generic wandb" in found["secrets"][1]["fix"]
    assert value not in _run("doctor", TRAIN, *named).output
    forbidden = status(403, "Forbidden", "no")
    cluster.faults.append(lambda request: forbidden if "/secrets/" in request.path else None)
    code, found = _checks(TRAIN, *named)
    assert (code, {check["result"] for check in found["secrets"]}) == (0, {"unknown"})


def test_what_is_forbidden_is_not_missing(cluster: Cluster) -> None:
    _good(cluster)
    forbidden = status(403, "Forbidden", "no")
    cluster.faults.insert(0, lambda request: forbidden if request.path == "/apis" else None)
    code, found = _checks(TRAIN)
    assert code == 0
    (check,) = found["controllers"]
    assert check["result"] == "unknown"
    assert "JobSet" in check["message"]
    assert "is not known: see what may not be read" in _run("doctor", TRAIN).stdout
    cluster.faults.pop(0)
    cluster.faults.append(lambda request: forbidden if request.path in ("/api/v1/pods",) else None)
    code, found = _checks(TRAIN)
    assert (code, found["capacity"][0]["result"]) == (0, "unknown")
    for name in ("n0", "n1"):
        _node(cluster, name, neuron="")
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    cluster.faults.append(lambda request: forbidden if request.path == slices else None)
    assert _checks()[1]["plugin-or-dra"][0]["result"] == "unknown"


def _slice(cluster: Cluster, node: str, devices: int, generation: int = 1) -> None:
    spec = {
        "driver": "neuron.aws.com",
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": f"neuron-{number}"} for number in range(devices)],
    }
    cluster.add("resourceslices", {"metadata": {"name": f"{node}-{generation}"}, "spec": spec})


def _device_claim(cluster: Cluster, name: str, pool: str, devices: int, **values: object) -> None:
    results = [
        {"driver": "neuron.aws.com", "pool": pool, "device": f"neuron-{number}", **values}
        for number in range(devices)
    ]
    allocated = {"status": {"allocation": {"devices": {"results": results}}}}
    meta = {"name": name, "namespace": "others"}
    cluster.add("resourceclaims", {"metadata": meta, **allocated})


def test_devices_that_claims_hold_are_not_free(cluster: Cluster) -> None:
    _good(cluster)
    arguments = (TRAIN, "--set", "flavour=auto")
    for name in ("n0", "n1"):
        _node(cluster, name, neuron="")
        _slice(cluster, name, 16, generation=2)
        # Of an older generation of the pool, and so out of date.
        _slice(cluster, name, 99)
    code, found = _checks(*arguments)
    assert (code, found["capacity"][0]["result"]) == (0, "ok")
    # What another driver gave, and what only looks, hold nothing.
    _device_claim(cluster, "network", "n1", 16, driver="dra.net")
    _device_claim(cluster, "watcher", "n1", 16, adminAccess=True)
    assert _checks(*arguments)[1]["capacity"][0]["result"] == "ok"
    _device_claim(cluster, "training", "n1", 15)
    code, found = _checks(*arguments)
    assert (code, found["capacity"][0]["result"]) == (0, "warn")
    message = found["capacity"][0]["message"]
    assert "room for 1 now: n1: 1 devices free of claims (DRA), a pod asks for 16" in message
    forbidden = status(403, "Forbidden", "no")
    cluster.faults.append(
        lambda request: forbidden if request.path.endswith("/resourceclaims") else None
    )
    code, found = _checks(*arguments)
    assert (code, found["capacity"][0]["result"]) == (0, "unknown")
    assert "what claims hold is not known" in found["capacity"][0]["message"]


def test_what_may_not_be_read_is_unknown(cluster: Cluster) -> None:
    _good(cluster)
    forbidden = status(403, "Forbidden", "no")
    hidden = (
        "/nodes",
        "/resourceslices",
        "/deviceclasses/neuron.aws.com",
        "/trn-queue",
        "/trnx-fsx",
    )
    cluster.faults.append(lambda request: forbidden if request.path.endswith(hidden) else None)
    code, found = _checks(TRAIN)
    assert code == 0
    unknown = {name for name, checks in found.items() if checks[0]["result"] == "unknown"}
    assert unknown == {"nodes", "capacity", "localqueues", "persistentvolumeclaims"}
    assert found["ec2"][0]["result"] == "skipped"


def test_a_server_that_does_not_know_who_asks(cluster: Cluster) -> None:
    cluster.faults.append(lambda _: status(401, "Unauthorized", "Unauthorized"))
    with pytest.raises(UnauthorizedError):
        _run("doctor")


def _report(**changes: Any) -> str:
    counts = {
        "neffs_before": 2,
        "neffs_after": 5,
        "hits": 2,
        "misses": 3,
        "fetched": 0,
        "stored": 0,
    }
    return json.dumps({"trnx_cache": {**counts, "warnings": [], **changes}})


def _warm(cluster: Cluster, end: str, *reports: str | None) -> None:
    labels = {"app.kubernetes.io/name": "llama-warm", "app.kubernetes.io/managed-by": "trnx-eks"}

    def run(cluster: Cluster, plural: str, item: dict[str, Any]) -> None:
        item["status"] = {"conditions": [{"type": end, "status": "True"}]}
        for rank, report in enumerate(reports):
            index = {"batch.kubernetes.io/job-completion-index": str(rank)}
            meta = {"name": f"w{rank}", "namespace": "default", "labels": {**labels, **index}}
            cluster.add("pods", {"metadata": meta, "status": {"phase": "Succeeded"}})
            if report is not None:
                lines = [("2026-11-20T10:00:00Z", "compiling"), ("2026-11-20T10:00:01Z", report)]
                cluster.logs[f"w{rank}"] = Log(lines, [(2, END)])
        assert plural == "jobs"

    cluster.on_apply = run


def test_warm_cache_says_hits_and_misses(cluster: Cluster) -> None:
    _warm(cluster, "Complete", _report(), _report(hits=1, misses=0, warnings=["slow"]))
    result = _run("warm-cache", WARM, "--set", "shards=2")
    assert result.exit_code == 0
    assert result.stdout == "NEFFs in the cache: 5; hits: 3, misses: 3\n"
    assert "warning: slow" in result.stderr
    assert cluster.names("jobs") == []


def test_warm_cache_with_pods_that_say_nothing(cluster: Cluster) -> None:
    _warm(cluster, "Complete", _report(hits=None, stored=4), None)
    result = _run("warm-cache", WARM, "--set", "shards=2", "--json", "--keep")
    report = json.loads(result.stdout.splitlines()[-1])["cache"]
    assert (report["hits"], report["silent"], report["stored"]) == (None, [1], 4)
    assert cluster.names("jobs") == ["llama-warm"]


def test_a_job_after_its_warm_up(cluster: Cluster) -> None:
    _warm(cluster, "Complete", _report())
    warm = cluster.on_apply

    def run(cluster: Cluster, plural: str, item: dict[str, Any]) -> None:
        if plural == "jobs" and warm:
            warm(cluster, plural, item)

    cluster.on_apply = run
    result = _run("submit", TRAIN, "--after-warm", WARM)
    assert "hits: 2, misses: 3" in result.stdout
    assert cluster.names("jobsets") == ["llama-fsdp"]
    with pytest.raises(EksError, match=r"differ in instance \(trn2.48xlarge and trn2u"):
        _run("submit", TRAIN, "--set", "instance=trn2u.48xlarge", "--after-warm", WARM)
    cluster.objects.clear()
    _warm(cluster, "Failed", None)
    assert _run("submit", TRAIN, "--after-warm", WARM).exit_code == 3
    assert cluster.names("jobsets") == []


def test_a_server_that_says_little(cluster: Cluster) -> None:
    cluster.faults.append(
        lambda request: (404, b"404") if request.path in ("/version", "/apis") else None
    )
    code, found = _checks()
    assert code == 0
    assert found["kubernetes"][0]["result"] == "skipped"


def test_warm_cache_that_failed_stays(cluster: Cluster) -> None:
    _warm(cluster, "Failed", "no report")
    result = _run("warm-cache", WARM)
    assert result.exit_code == 3
    assert cluster.names("jobs") == ["llama-warm"]
    with pytest.raises(EksError, match="is of kind train"):
        _run("warm-cache", TRAIN)
