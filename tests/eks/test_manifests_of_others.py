"""Manifests that trnx did not write: 60 right ones have no error, 100 broken ones are told so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import manifests_of_others as others
import pytest
import yaml
from typer.testing import CliRunner

from trnx.eks import documents
from trnx.eks.cli import app
from trnx.eks.levels import Level
from trnx.eks.loading import load_job
from trnx.eks.render import render_pod
from trnx.eks.rule_names import RULES
from trnx.eks.rules_security import restricted_problems
from trnx.eks.validate import render_checked, validate
from trnx.eks.views import line_of

CORRECT: dict[str, Callable[[], list[dict[str, Any]]]] = others.CORRECT
ROOT = Path(__file__).resolve().parents[2]
NEURON, EFA, TYPE = others.NEURON, others.EFA, others.TYPE
ERROR, WARNING, ADVICE = Level.ERROR, Level.WARNING, Level.ADVICE
runner = CliRunner()


@pytest.fixture(autouse=True)
def shipped_schemas_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRNX_CRD_SCHEMAS", raising=False)


@pytest.mark.parametrize("name", CORRECT)
def test_correct_manifests_have_no_error(name: str) -> None:
    report = validate(CORRECT[name](), "1.34")
    assert report.unchecked == ()
    assert [found for found in report.findings if found.level == ERROR] == []


def test_there_are_enough() -> None:
    assert len(CORRECT) >= 60
    assert len(BROKEN) >= 100
    assert len({(name, repr(edits)) for name, edits, *_ in BROKEN}) == len(BROKEN)


DROP = object()
Edits = dict[str, Any]
# Where things stand: in a Job, a JobSet's first Job, and so on.
POD = "0.spec.template.spec"
BOX = f"{POD}.containers.0"
GANG = "1.spec.template.spec.containers.0"
CHILD = "0.spec.replicatedJobs.0.template.spec"
NODE = f"{CHILD}.template.spec.containers.0"
WORKER = "0.spec.pytorchReplicaSpecs.Worker.template.spec"
LWS = "0.spec.leaderWorkerTemplate.workerTemplate.spec"
JOB, GANGS, SETS = (
    "requests and limits",
    "two nodes with a headless Service",
    "JobSet, pods in one Job",
)
SERVER, SPOT = (
    "a server and its Service",
    {"karpenter.sh/capacity-type": "spot", TYPE: "trn2.48xlarge"},
)
BOTH = "resources.requests", "resources.limits"


def both(box: str, resource: str, value: Any) -> Edits:
    """A resource in requests and limits."""
    return {f"{box}.{part}|{resource}": value for part in BOTH}


def env(box: str, name: str, value: Any) -> Edits:
    return {f"{box}.env": [{"name": name, "value": value}]}


INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# (a correct one, what is changed in it, the rule, how grave it is, what the field holds)
BROKEN: list[tuple[str, Edits, str, Level, str]] = [
    # What the API server refuses.
    (JOB, {"0.kind": DROP}, "manifest", ERROR, "kind"),
    (JOB, {"0.apiVersion": "batch"}, "manifest", ERROR, "apiVersion"),
    (JOB, {"0.metadata": {}}, "manifest", ERROR, "metadata.name"),
    (JOB, {"0.metadata.name": "Work"}, "name", ERROR, "metadata.name"),
    (JOB, {"0.metadata.name": "w" * 64}, "name", ERROR, "metadata.name"),
    ("a CronJob", {"0.metadata.name": "n" * 53}, "name", ERROR, "metadata.name"),
    (SERVER, {"1.metadata.name": "1vllm"}, "name", ERROR, "metadata.name"),
    (JOB, {"0.spec.backofLimit": 1}, "schema", ERROR, "Job/work spec"),
    (JOB, {"0.spec.parallelism": "two"}, "schema", ERROR, "spec.parallelism"),
    (JOB, {f"{BOX}.name": DROP}, "schema", ERROR, "containers.0"),
    (JOB, {f"{POD}.containers": DROP}, "schema", ERROR, "spec.template.spec"),
    (JOB, {f"{BOX}.env": {"A": "b"}}, "schema", ERROR, "env"),
    (JOB, {f"{BOX}.imagePullPolicy": "Sometimes"}, "schema", ERROR, "imagePullPolicy"),
    (JOB, {f"{POD}.tolerations.0.effects": "NoSchedule"}, "schema", ERROR, "tolerations.0"),
    (JOB, {f"{POD}.restartPolicy": "Always"}, "restart-policy", ERROR, "restartPolicy"),
    (SERVER, {f"{POD}.restartPolicy": "Never"}, "restart-policy", ERROR, "restartPolicy"),
    (SERVER, {"0.spec.template.metadata.labels": {"app": "x"}}, "selector", ERROR, "matchLabels"),
    (JOB, {f"{BOX}.resources.limits|{NEURON}": 2}, "requests-equal-limits", ERROR, "resources"),
    (JOB, {f"{BOX}.resources.limits": DROP}, "requests-equal-limits", ERROR, "resources"),
    (JOB, both(BOX, NEURON, "0.5"), "requests-equal-limits", ERROR, "resources"),
    (JOB, {f"{BOX}.volumeMounts.0.name": "dshm"}, "dangling-mount", ERROR, "volumeMounts.0"),
    (
        "a device by a claim",
        {"1.spec.template.spec.containers.0.resources.claims.0.name": "x"},
        "dangling-claim",
        ERROR,
        "claims.0",
    ),
    (
        "a device by a claim",
        {"0.apiVersion": "resource.k8s.io/v1beta1"},
        "dra-version",
        WARNING,
        "apiVersion",
    ),
    (SETS, {"0.spec.replicatedJob": []}, "schema", ERROR, "JobSet/train spec"),
    (SETS, {"0.spec.replicatedJobs.0.name": DROP}, "schema", ERROR, "replicatedJobs.0"),
    (SETS, {"0.spec.successPolicy": {"operator": "Most"}}, "schema", ERROR, "operator"),
    ("PyTorchJob", {"0.spec.pytorchReplicaSpecs": DROP}, "schema", ERROR, "PyTorchJob/train spec"),
    ("PyTorchJob", {"0.spec.nprocPerNodes": "64"}, "schema", ERROR, "PyTorchJob/train spec"),
    ("MPIJob", {"0.spec.slotsPerWorker": "many"}, "schema", ERROR, "slotsPerWorker"),
    (
        "LeaderWorkerSet with one template",
        {"0.spec.leaderWorkerTemplate.sizes": 2},
        "schema",
        ERROR,
        "leaderWorkerTemplate",
    ),
    ("TrainJob with its runtime", {"1.spec.runtimeRef.name": DROP}, "schema", ERROR, "runtimeRef"),
    ("Kueue", {"2.spec.clusterQueues": "all"}, "schema", ERROR, "LocalQueue/team spec"),
    (
        "Karpenter",
        {"1.spec.template.spec.requirements.0.operator": "Is"},
        "schema",
        ERROR,
        "operator",
    ),
    ("Karpenter", {"0.spec.amiSelectorTerms": DROP}, "schema", ERROR, "EC2NodeClass/trn spec"),
    (
        "Karpenter",
        {"1.spec.disruption": {"consolidationPolicy": "Never"}},
        "schema",
        ERROR,
        "consolidationPolicy",
    ),
    (JOB, {"0.apiVersion": "batch/v1beta9"}, "unchecked", ERROR, "Job/work"),
    (SETS, {"0.apiVersion": "jobset.x-k8s.io/v1"}, "unchecked", ERROR, "JobSet/train"),
    (SETS, {"0.kind": "JobSets"}, "unchecked", ERROR, "JobSets/train"),
    # What no scheduler can place.
    (JOB, both(BOX, "aws.amazon.com/neurons", 1), "device-resource", ERROR, "resources"),
    (JOB, both(BOX, "vpc.amazonaws.com/efas", 1), "device-resource", ERROR, "resources"),
    (JOB, both(BOX, "aws.amazon.com/Neuron", 1), "device-resource", ERROR, "resources"),
    (JOB, both(BOX, NEURON, 17), "device-count", ERROR, "Job/work"),
    ("the old label of types", both(BOX, NEURON, 2), "device-count", ERROR, "Job/work"),
    (
        "a native sidecar",
        both(BOX, NEURON, 16) | both(f"{POD}.initContainers.0", NEURON, 1),
        "device-count",
        ERROR,
        "Job/work",
    ),
    (
        "a sidecar without shared memory",
        both(BOX, NEURON, 12) | both(f"{POD}.containers.1", NEURON, 8),
        "device-count",
        ERROR,
        "Job/work",
    ),
    (JOB, both(BOX, EFA, 17), "efa", ERROR, "Job/work"),
    ("a sweep over an index", both(BOX, EFA, 1), "efa", ERROR, "Job/work"),
    (JOB, {f"{POD}.nodeSelector|{TYPE}": "p5.48xlarge"}, "unknown-instance", ERROR, "nodeSelector"),
    (
        "affinity in place of a selector",
        {f"{POD}.affinity": others.affinity(TYPE, "m7i.large")["affinity"]},
        "unknown-instance",
        ERROR,
        "nodeSelector",
    ),
    (JOB, both(BOX, "memory", "2Ti"), "size", ERROR, "containers"),
    (JOB, both(BOX, "cpu", "200"), "size", ERROR, "containers"),
    (
        "a sidecar without shared memory",
        both(BOX, "cpu", "100") | both(f"{POD}.containers.1", "cpu", 100),
        "size",
        ERROR,
        "containers",
    ),
    (
        "a sweep over an index",
        {f"{POD}.volumes.0.emptyDir.sizeLimit": "64Gi"},
        "size",
        ERROR,
        "sizeLimit",
    ),
    (JOB, {f"{POD}.nodeSelector|kubernetes.io/arch": "arm64"}, "architecture", ERROR, "arch"),
    (
        "a work queue on CPUs",
        {f"{BOX}.image": others.IMAGE, f"{POD}.nodeSelector": {"kubernetes.io/arch": "arm64"}},
        "architecture",
        ERROR,
        "arch",
    ),
    ("a device by a claim", both(GANG, NEURON, 1), "plugin-or-dra", ERROR, "resourceClaims"),
    (JOB, env(BOX, "NEURON_LOGICAL_NC_CONFIG", "4"), "lnc", ERROR, "NEURON_LOGICAL_NC_CONFIG"),
    # What must fail, or waits for ever, once it runs.
    (GANGS, {f"{GANG}.command.1": "--nnodes=4"}, "gang-size", ERROR, "args"),
    (GANGS, {"1.spec.parallelism": 3, "1.spec.completions": 3}, "gang-size", ERROR, "args"),
    (GANGS, {"1.spec.completions": 4}, "gang-size", ERROR, "completions"),
    (SETS, {f"{NODE}.command.1": "--nnodes=2"}, "gang-size", ERROR, "args"),
    (
        "JobSet, a pod for each Job",
        {"0.spec.replicatedJobs.0.replicas": 3},
        "gang-size",
        ERROR,
        "args",
    ),
    ("JobSet with a leader", {"0.spec.replicatedJobs.1.replicas": 2}, "gang-size", ERROR, "args"),
    (
        "PyTorchJob",
        {f"{WORKER}.containers.0.command": ["torchrun", "--nnodes", "2", "t.py"]},
        "gang-size",
        ERROR,
        "args",
    ),
    (
        "LeaderWorkerSet with one template",
        {f"{LWS}.containers.0.command": ["torchrun", "--nnodes=4", "t.py"]},
        "gang-size",
        ERROR,
        "args",
    ),
    ("StatefulSet as a ring", {"1.spec.replicas": 3}, "gang-size", ERROR, "args"),
    (
        "two nodes started by a script",
        {f"{GANG}.command.2": others.SCRIPT.replace("nnodes 2", "nnodes 8")},
        "gang-size",
        ERROR,
        "args",
    ),
    (GANGS, {"1.spec.completionMode": DROP}, "completion-index", ERROR, "args"),
    (
        "a sweep over an index",
        {"0.spec.completionMode": "NonIndexed"},
        "completion-index",
        ERROR,
        "args",
    ),
    (
        SERVER,
        {f"{BOX}.args.1": "--rank=$(JOB_COMPLETION_INDEX)"},
        "completion-index",
        ERROR,
        "args",
    ),
    (SETS, {f"{CHILD}.completionMode": "NonIndexed"}, "completion-index", ERROR, "args"),
    (
        JOB,
        {
            f"{BOX}.env": [
                {
                    "name": "R",
                    "valueFrom": {"fieldRef": {"fieldPath": INDEX_FIELD}},
                }
            ]
        },
        "completion-index",
        ERROR,
        "env.0",
    ),
    (
        GANGS,
        {f"{GANG}.command.4": "--master_addr=work-1.work"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        GANGS,
        {f"{GANG}.command.4": "--master_addr=localhost"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        GANGS,
        {f"{GANG}.command.4": "--rdzv_endpoint=work-0:29500"},
        "master-address",
        ERROR,
        "rdzv-endpoint",
    ),
    (GANGS, {"1.spec.template.spec.subdomain": DROP}, "master-address", ERROR, "master-addr"),
    (GANGS, {"0.spec.clusterIP": DROP}, "master-address", ERROR, "master-addr"),
    (GANGS, {"0.metadata.name": "works"}, "master-address", WARNING, "master-addr"),
    (
        GANGS,
        {f"{GANG}.command.4": "--master_addr=elsewhere.example"},
        "master-address",
        WARNING,
        "master-addr",
    ),
    (
        SETS,
        {f"{NODE}.command.4": "--master_addr=train-0-0.train"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        SETS,
        {"0.spec.network": {"enableDNSHostnames": False}},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        "JobSet with a subdomain",
        {"0.spec.network.subdomain": "other"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (
        "StatefulSet as a ring",
        {"1.spec.serviceName": "rings"},
        "master-address",
        ERROR,
        "master-addr",
    ),
    (GANGS, {f"{GANG}.command.2": "--nproc_per_node=128"}, "nproc", ERROR, "args"),
    (
        "TrainJob with its runtime",
        {"1.spec.trainer.numProcPerNode": 128},
        "nproc",
        ERROR,
        "numProcPerNode",
    ),
    (
        "TrainJob with its runtime",
        {"1.spec.trainer.numProcPerNode": DROP},
        "trainjob-processes",
        ERROR,
        "numProc",
    ),
    (
        "TrainJob with its runtime",
        {"1.spec.trainer.env": [{"name": "PET_NNODES", "value": "2"}]},
        "reserved-env",
        ERROR,
        "PET_NNODES",
    ),
    ("a sweep over an index", {f"{BOX}.image": others.IMAGE}, "sdk-trn1", ERROR, "image"),
    (SERVER, {f"{BOX}.startupProbe.httpGet.port": "web"}, "port", ERROR, "startupProbe"),
    (SERVER, {"1.spec.ports.0.targetPort": "web"}, "port", ERROR, "targetPort"),
    # Secrets that are given away.
    (JOB, env(BOX, "HF_TOKEN", "x"), "plain-secret", ERROR, "HF_TOKEN"),
    (JOB, {f"{BOX}.args": ["--api-key", "x"]}, "plain-secret", ERROR, "args.1"),
    (
        JOB,
        {f"{BOX}.command": ["sh", "-c", "login --token=x && run"]},
        "plain-secret",
        ERROR,
        "command.2",
    ),
    (
        JOB,
        {"0.metadata.annotations": {"db": "postgres://a:b@c/d"}},
        "plain-secret",
        ERROR,
        "annotations.db",
    ),
    ("a script in a ConfigMap", {"0.data.password": "x"}, "plain-secret", ERROR, "data.password"),
    (
        "a script in a ConfigMap",
        {"0.kind": "Secret", "0.data": {"a": "eA=="}},
        "secret-in-file",
        WARNING,
        "data.a",
    ),
    # What is likely to fail, or to cost money.
    (GANGS, both(GANG, EFA, 8), "multi-node", WARNING, "Job/work"),
    (
        GANGS,
        both(GANG, NEURON, 8) | {f"{GANG}.command.2": "--nproc_per_node=32"},
        "multi-node",
        WARNING,
        "Job/work",
    ),
    (
        "PyTorchJob",
        both(f"{WORKER}.containers.0", EFA, DROP),
        "multi-node",
        WARNING,
        "PyTorchJob/train",
    ),
    (
        "LeaderWorkerSet with one template",
        both(f"{LWS}.containers.0", EFA, 1),
        "multi-node",
        WARNING,
        "vllm",
    ),
    (GANGS, {f"{GANG}.command.2": "--nproc_per_node=32"}, "nproc", WARNING, "args"),
    (JOB, {f"{BOX}.image": "trnx:latest"}, "pinned-image", WARNING, "image"),
    (JOB, {f"{BOX}.volumeMounts": []}, "shared-memory", WARNING, "volumeMounts"),
    (JOB, {f"{POD}.tolerations": []}, "toleration", WARNING, "tolerations"),
    (JOB, {f"{POD}.hostIPC": True}, "host-access", WARNING, "hostIPC"),
    (JOB, {f"{BOX}.securityContext": {"privileged": True}}, "host-access", WARNING, "privileged"),
    ("suspended for Kueue", {"0.metadata.labels": DROP}, "suspended", WARNING, "suspend"),
    (
        "PyTorchJob, suspended for Kueue",
        {"0.metadata.labels": DROP},
        "suspended",
        WARNING,
        "suspend",
    ),
    (
        "JobSet for Kueue",
        {"3.metadata.labels": {"kueue.x-k8s.io/queue-name": "teams"}},
        "reference",
        WARNING,
        "queue-name",
    ),
    ("Kueue", {"2.spec.clusterQueue": "each"}, "reference", WARNING, "clusterQueue"),
    ("Kueue", {"1.spec.resourceGroups.0.flavors.0.name": "trn"}, "reference", WARNING, "flavors.0"),
    (
        "a device by a claim",
        {"0.metadata.name": "two-devices"},
        "reference",
        WARNING,
        "resourceClaimTemplateName",
    ),
    ("storage on FSx", {"2.metadata.name": "date"}, "reference", WARNING, "claimName"),
    ("a script in a ConfigMap", {"0.metadata.name": "script"}, "reference", WARNING, "configMap"),
    (
        "an account of its own",
        {"0.metadata.name": "train"},
        "reference",
        WARNING,
        "serviceAccountName",
    ),
    (
        "Karpenter",
        {"1.spec.template.spec.requirements.0.values": ["trn2.64xlarge"]},
        "nodepool",
        WARNING,
        "values",
    ),
    ("Karpenter", {"0.metadata.name": "trn2"}, "nodepool", WARNING, "nodeClassRef"),
    (GANGS, {"1.spec.template.spec.nodeSelector": SPOT}, "spot-resume", WARNING, "args"),
    (
        GANGS,
        {f"{GANG}.args": ["--checkpoint-dir=/data"]},
        "grace",
        WARNING,
        "terminationGracePeriodSeconds",
    ),
    (
        SERVER,
        {f"{POD}.volumes.0.emptyDir.sizeLimit": "64Gi"} | both(BOX, "memory", "32Gi"),
        "size",
        WARNING,
        "sizeLimit",
    ),
    (
        "a server with shared weights",
        {"0.spec.accessModes": ["ReadWriteOnce"]},
        "access-mode",
        WARNING,
        "claimName",
    ),
    (SERVER, {"1.spec.selector": {"app": "llm"}}, "selector", WARNING, "spec.selector"),
    (
        SERVER,
        {"0.spec.strategy": {"rollingUpdate": {"maxSurge": 1}}},
        "rollout",
        WARNING,
        "maxSurge",
    ),
    (
        "the old label of types",
        {f"{POD}.nodeSelector": {TYPE: "trn2.96xlarge"}},
        "unknown-instance",
        WARNING,
        "nodeSelector",
    ),
    (GANGS, env(GANG, "NEURON_RT_NUM_CORES", "64"), "runtime-env", WARNING, "NEURON_RT_NUM_CORES"),
    (JOB, {"0.metadata.name": "w" * 60}, "name", ADVICE, "metadata.name"),
]


def change(manifests: list[dict[str, Any]], path: str, value: Any) -> None:
    """Set or drop what is at a path; behind | stands a key with dots."""
    path, _, last = path.partition("|")
    keys = path.split(".")
    if not last:
        last = keys.pop()
    place: Any = manifests
    for key in keys:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if value is DROP:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value


@pytest.mark.parametrize(("name", "edits", "rule", "level", "field"), BROKEN)
def test_broken_manifests_are_told(
    name: str, edits: Edits, rule: str, level: Level, field: str
) -> None:
    before = [
        found.rule for found in validate(CORRECT[name](), "1.34").findings if found.level == level
    ]
    manifests = documents.parse(documents.dump(CORRECT[name]()), "text")
    for path, value in edits.items():
        change(manifests, path, value)
    found = validate(manifests, "1.34").all_findings()
    matching = [item for item in found if (item.rule, item.level) == (rule, level)]
    assert [item for item in matching if field in item.field], found
    assert len(matching) > before.count(rule) or rule == "rollout"
    assert all(item.message and len(item.fix) > 4 and item.to_dict()["page"] for item in found)
    if level == ERROR:
        assert {item.rule for item in found if item.level == ERROR} >= {rule}


def _file(tmp_path: Path, manifests: list[dict[str, Any]]) -> Path:
    path = tmp_path / "others.yaml"
    path.write_text(documents.dump(manifests))
    return path


def test_levels_set_the_exit_status(tmp_path: Path) -> None:
    file = str(_file(tmp_path, CORRECT[JOB]()))
    assert runner.invoke(app, ["validate", file]).exit_code == 0
    strict = runner.invoke(app, ["validate", file, "--strict"])
    assert strict.exit_code == 1
    assert "warning: [preemption] Job/work spec.podFailurePolicy" in strict.stdout
    allowed = runner.invoke(app, ["validate", file, "--strict", "--allow", "preemption"])
    assert allowed.exit_code == 0, allowed.stdout
    assert "advice: [pod-security]" in allowed.stdout
    as_json = json.loads(runner.invoke(app, ["validate", file, "--strict", "--json"]).stdout)
    assert as_json["failed"] is True
    assert {(f["rule"], f["level"]) for f in as_json["findings"]} >= {("preemption", "warning")}
    assert all(f["page"] == f"docs/eks.md#{f['rule']}" for f in as_json["findings"])
    wrong = runner.invoke(app, ["validate", file, "--allow", "preemptions"])
    assert "no such rule" in str(wrong.exception)


@pytest.mark.parametrize("place", ["0.metadata.annotations", "0.spec.template.metadata"])
def test_annotations_allow_a_rule(tmp_path: Path, place: str) -> None:
    manifests = CORRECT["a test with the host's /dev/shm"]()
    said = {"trnx/allow": "host-access, preemption\nschema"}
    change(manifests, place, said if "annotations" in place else {"annotations": said})
    other = others.job(others.pod(others.box(ask={NEURON: 1})), "other")
    report = validate([*manifests, other], "1.34")
    assert [f.field.split()[0] for f in report.findings if f.rule == "preemption"] == ["Job/other"]
    assert [f for f in report.findings if f.rule == "host-access"] == []
    assert (
        runner.invoke(app, ["validate", str(_file(tmp_path, manifests)), "--strict"]).exit_code == 0
    )


def test_a_kind_without_a_schema_can_be_allowed(tmp_path: Path) -> None:
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}
    file = str(_file(tmp_path, [thing]))
    assert runner.invoke(app, ["validate", file]).exit_code == 1
    assert runner.invoke(app, ["validate", file, "--allow", "unchecked"]).exit_code == 0
    thing["metadata"] = {"name": "a", "annotations": {"trnx/allow": "unchecked"}}
    assert runner.invoke(app, ["validate", str(_file(tmp_path, [thing]))]).exit_code == 0
    as_json = runner.invoke(app, ["validate", file, "--json"])
    assert json.loads(as_json.stdout)["unchecked"] == []


def test_every_rule_has_its_level_and_its_place_in_the_guide() -> None:
    text = (ROOT / "docs/eks.md").read_text()
    listing = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    for level, rules in listing["levels"].items():
        for rule in rules:
            assert f'| <a id="{rule}"></a>`{rule}` | {level} |' in text
    assert {rule for rules in listing["levels"].values() for rule in rules} == set(RULES)


def test_github_annotations_name_the_line(tmp_path: Path) -> None:
    manifests = CORRECT[GANGS]()
    change(manifests, f"{GANG}.command.1", "--nnodes=4")
    change(
        manifests, f"{GANG}.env", [{"name": "A", "value": "b"}, {"name": "HF_TOKEN", "value": "x"}]
    )
    file = _file(tmp_path, manifests)
    result = runner.invoke(app, ["validate", str(file), "--format", "github"])
    assert result.exit_code == 1
    lines = file.read_text().splitlines()
    (gang,) = [line for line in result.stdout.splitlines() if "gang-size" in line]
    assert gang.startswith(f"::error file={file},line=")
    (secret,) = [line for line in result.stdout.splitlines() if "title=plain-secret" in line]
    number = int(secret.partition("line=")[2].partition(",")[0])
    assert lines[number - 1].strip() == "- name: HF_TOKEN"
    assert "%0Afix%3A" in gang or "%0Afix:" in gang
    assert "\n" not in gang
    assert "::warning" in result.stdout
    assert "::notice" in result.stdout


def test_sarif_has_rules_results_and_lines(tmp_path: Path) -> None:
    manifests = CORRECT[JOB]()
    change(manifests, f"{BOX}.image", "trnx:latest")
    file = _file(tmp_path, manifests)
    result = runner.invoke(app, ["validate", str(file), "--format", "sarif"])
    assert result.exit_code == 0
    log = json.loads(result.stdout)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {found["ruleId"] for found in run["results"]} == set(ids) <= set(RULES)
    (image,) = [found for found in run["results"] if found["ruleId"] == "pinned-image"]
    place = image["locations"][0]["physicalLocation"]
    line = file.read_text().splitlines()[place["region"]["startLine"] - 1]
    assert line.strip() == "- name: main"[2:] or "trnx:latest" in line
    assert image["level"] == "warning"
    assert {found["level"] for found in run["results"]} == {"warning", "note"}


def test_lines_of_lists_annotations_and_what_is_not_there() -> None:
    text = "kind: List\nitems:\n- kind: Job\n  metadata:\n    name: a\n"
    text += "    annotations:\n      x/a.b: c\n"
    assert line_of(text, "Job/a metadata.annotations.x/a.b") == 7
    assert line_of(text, "Job/a spec.template.spec") == 3
    assert line_of(text, "Job/b spec") == 3
    assert line_of("a: [", "Job/a spec") == 1
    assert line_of("kind: train\nnodes: 0\n", "nodes") == 2
    assert line_of("", "nodes") == 1


def _pods(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            return [value]
        return [pod for part in value.values() for pod in _pods(part)]
    return [pod for part in value for pod in _pods(part)] if isinstance(value, list) else []


EXAMPLES = sorted((ROOT / "scripts/eks/examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_rendered_pods_are_restricted_and_strictly_valid(path: Path, tmp_path: Path) -> None:
    manifests = render_checked(load_job(path))
    assert (
        runner.invoke(app, ["validate", str(_file(tmp_path, manifests)), "--strict"]).exit_code == 0
    )
    assert runner.invoke(app, ["validate", str(path), "--strict"]).exit_code == 0
    pods = _pods(manifests)
    assert pods
    for pod in pods:
        assert restricted_problems(pod) == []
        assert pod["automountServiceAccountToken"] is False


def test_rendered_pod_for_airflow_is_restricted() -> None:
    pod = render_pod(load_job(ROOT / "scripts/eks/examples/kernel.yaml"))
    assert restricted_problems(pod["spec"]) == []


# What Pod Security `restricted` refuses: (where in a rendered pod, value, field that is named).
NOT_RESTRICTED: list[tuple[str, Any, str]] = [
    ("0.hostNetwork", True, "hostNetwork"),
    ("0.hostPID", True, "hostPID"),
    ("0.hostIPC", True, "hostIPC"),
    ("0.volumes.0", {"name": "dshm", "hostPath": {"path": "/dev/shm"}}, "volumes.0"),
    ("0.securityContext.runAsUser", 0, "securityContext.runAsUser"),
    ("0.securityContext.runAsNonRoot", False, "securityContext.runAsNonRoot"),
    ("0.securityContext.runAsNonRoot", DROP, "containers.0.securityContext.runAsNonRoot"),
    ("0.securityContext.seccompProfile", DROP, "containers.0.securityContext.seccompProfile.type"),
    ("0.securityContext.seccompProfile.type", "Unconfined", "securityContext.seccompProfile.type"),
    ("0.securityContext.seLinuxOptions", {"type": "spc_t"}, "securityContext.seLinuxOptions"),
    (
        "0.securityContext.appArmorProfile",
        {"type": "Unconfined"},
        "securityContext.appArmorProfile",
    ),
    (
        "0.securityContext.sysctls",
        [{"name": "kernel.msgmax", "value": "1"}],
        "securityContext.sysctls",
    ),
    (
        "0.containers.0.securityContext",
        DROP,
        "containers.0.securityContext.allowPrivilegeEscalation",
    ),
    ("0.containers.0.securityContext.privileged", True, "containers.0.securityContext.privileged"),
    ("0.containers.0.securityContext.capabilities.drop", ["NET_RAW"], "capabilities.drop"),
    ("0.containers.0.securityContext.capabilities.add", ["IPC_LOCK"], "capabilities.add"),
    ("0.containers.0.securityContext.procMount", "Unmasked", "procMount"),
    ("0.containers.0.ports", [{"containerPort": 1, "hostPort": 1}], "ports.0.hostPort"),
    ("0.initContainers", [{"name": "a", "image": "b:1"}], "initContainers.0.securityContext"),
]


@pytest.mark.parametrize(("path", "value", "field"), NOT_RESTRICTED)
def test_what_restricted_refuses(path: str, value: Any, field: str) -> None:
    pods = [
        yaml.safe_load(
            yaml.safe_dump(render_pod(load_job(ROOT / "scripts/eks/examples/kernel.yaml"))["spec"])
        )
    ]
    change(pods, path, value)
    assert any(field in place for place, _ in restricted_problems(pods[0]))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pods[0]}
    assert "pod-security" in {found.rule for found in validate([pod], "1.34").findings}
