"""What keys of a job file do to its manifests; entry points take the flags that they are given."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnx.eks import documents
from trnx.eks.loading import job_from_data, load_job
from trnx.eks.model import OPERATORS, Flavour, Kind, Operator
from trnx.eks.overlay import merge
from trnx.eks.render import render, render_pod
from trnx.eks.validate import check_rules, render_checked, validate

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "scripts/eks/examples").glob("*.yaml"))
MakeJob = Callable[..., dict[str, Any]]
# A type that trnx has no facts of; the user says its name and its facts.
NEW_TYPE = {
    "instance": "trn3.of-the-user",
    "instance_facts": {
        "devices": 16,
        "physical_cores_per_device": 8,
        "default_lnc": 2,
        "efa": 8,
    },
    "cpu": "100",
    "memory": "1Ti",
}


def _pod_spec(manifests: list[Any]) -> Any:
    for manifest in manifests:
        if manifest["kind"] in ("Job", "Deployment"):
            return manifest["spec"]["template"]["spec"]
        if manifest["kind"] in ("JobSet", "TrainingRuntime"):
            spec = manifest["spec"]
            spec = spec["template"]["spec"] if manifest["kind"] == "TrainingRuntime" else spec
            return spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    raise AssertionError(manifests)


def _env(spec: Any) -> dict[str, str]:
    return {item["name"]: item["value"] for item in spec["containers"][0]["env"]}


@pytest.mark.parametrize("flavour", list(Flavour))
@pytest.mark.parametrize(
    ("kind", "operator"),
    [(kind, operator) for kind, operators in OPERATORS.items() for operator in operators],
)
def test_a_type_whose_facts_the_file_brings(
    make_job: MakeJob,
    request: pytest.FixtureRequest,
    kind: Kind,
    operator: Operator,
    flavour: Flavour,
) -> None:
    if operator in (Operator.JOBSET, Operator.TRAINJOB):
        request.getfixturevalue("custom_schemas")
    wide = {"nodes": 2} if kind == Kind.TRAIN else {}
    data = make_job(kind, operator=operator, flavour=flavour, **NEW_TYPE, **wide)
    manifests = render_checked(job_from_data(data))
    report = validate(manifests, "1.34")
    assert (report.findings, report.unchecked) == ((), ())
    if kind == Kind.TRAIN:
        text = documents.dump(manifests)
        assert "--nproc-per-node=64" in text or "numProcPerNode: 64" in text
        assert "vpc.amazonaws.com/efa: '8'" in text
        # The facts travel with the manifests, so that other rules hold on them too.
        broken = documents.parse(text.replace("efa: '8'", "efa: '4'"), "text")
        assert {finding.rule for finding in check_rules(broken)} == {"multi-node"}


def test_training_has_time_to_save(make_job: MakeJob) -> None:
    for operator in ("jobset", "job", "trainjob"):
        spec = _pod_spec(render(job_from_data(make_job(operator=operator, grace_seconds=300))))
        assert spec["terminationGracePeriodSeconds"] == 300
        assert _env(spec)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "285"


def test_a_deadline_is_final(make_job: MakeJob) -> None:
    (jobset,) = render(job_from_data(make_job(deadline_seconds=60)))
    rules = jobset["spec"]["failurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == [
        "RestartJobSetAndIgnoreMaxRestarts",
        "FailJobSet",
    ]
    assert rules[1]["onJobFailureReasons"] == ["DeadlineExceeded"]


def test_nodes_of_one_job_are_in_one_zone(make_job: MakeJob) -> None:
    spec = _pod_spec(render(job_from_data(make_job(nodes=2))))
    (term,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "topology.kubernetes.io/zone"
    assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/name"] == "job"
    named = _pod_spec(render(job_from_data(make_job(nodes=2, zone="us-west-2d"))))
    assert "affinity" not in named
    assert named["nodeSelector"]["topology.kubernetes.io/zone"] == "us-west-2d"
    assert "affinity" not in _pod_spec(render(job_from_data(make_job())))


@pytest.mark.parametrize("operator", ["jobset", "job", "trainjob"])
def test_secrets_come_by_name(make_job: MakeJob, operator: str) -> None:
    spec = _pod_spec(render(job_from_data(make_job(operator=operator, secrets=["hf-token"]))))
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": "hf-token"}}]


def test_a_cache_on_s3_is_copied_around_the_command(make_job: MakeJob) -> None:
    changes = {"cache": None, "cache_s3": "s3://bucket/neff", "operator": "job"}
    spec = _pod_spec(render_checked(job_from_data(make_job(**changes))))
    (main,) = spec["containers"]
    assert main["command"] == [
        "python",
        "-m",
        "trnx.eks.cache_run",
        "--folder=/var/cache/neff",
        "--s3=s3://bucket/neff",
        "--",
        "torchrun",
    ]
    assert {"name": "neff-cache", "emptyDir": {}} in spec["volumes"]
    assert _env(spec)["TORCH_NEURONX_NEFF_CACHE_DIR"] == "/var/cache/neff"
    shared = make_job(cache_s3="s3://bucket/neff", operator="job")
    names = [volume["name"] for volume in _pod_spec(render(job_from_data(shared)))["volumes"]]
    assert "neff-cache" not in names


def test_what_fills_a_cache_counts_it(make_job: MakeJob) -> None:
    command = _pod_spec(render(job_from_data(make_job("warm-cache"))))["containers"][0]["command"]
    assert command[2:5] == ["trnx.eks.cache_run", "--folder=/data/neff-cache", "--"]
    stored = make_job("warm-cache", cache_s3="s3://bucket/x")
    assert "--must-store" in _pod_spec(render(job_from_data(stored)))["containers"][0]["command"]


def test_probes_of_a_service(make_job: MakeJob) -> None:
    spec = _pod_spec(render(job_from_data(make_job("serve", ready_path="/ready"))))
    paths = {
        name: spec["containers"][0][name]["httpGet"]["path"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {
        "startupProbe": "/ready",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }


def test_overrides_patch_what_is_rendered(make_job: MakeJob) -> None:
    pod = {
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "env": [{"name": "A", "value": "2"}], "args": ["x"]}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    data = make_job("kernel", env={"A": "1", "B": "1"}, service_account="robot")
    patch = {"spec": {"template": {"spec": {**pod, "serviceAccountName": None}}}}
    job = job_from_data({**data, "overrides": {"Job": patch, "Pod": {"spec": pod}}})
    (manifest,) = render_checked(job)
    assert validate([manifest], "1.34").findings == ()
    spec = manifest["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert {"A": "2", "B": "1"}.items() <= _env(spec).items()
    assert [volume["name"] for volume in spec["volumes"]][-1] == "scratch"
    assert "serviceAccountName" not in spec
    assert render_pod(job)["spec"]["containers"][0]["args"] == ["x"]


def test_merging() -> None:
    old = {
        "a": 1,
        "env": [{"name": "x", "value": "1"}, {"name": "y"}],
        "plain": [1, 2],
        "m": {"k": 1},
    }
    patch = {
        "env": [{"name": "y", "$patch": "delete"}, {"name": "x", "value": "2"}, {"name": "z"}],
        "plain": [3],
        "m": {"$patch": "replace", "n": 1},
        "new": {"deep": {"$patch": "replace"}},
    }
    assert merge(old, patch) == {
        "a": 1,
        "env": [{"name": "x", "value": "2"}, {"name": "z"}],
        "plain": [3],
        "m": {"n": 1},
        "new": {"deep": {}},
    }
    assert merge({"ports": [{"port": 80}]}, {"ports": [{"port": 80, "name": "h"}]}) == {
        "ports": [{"port": 80, "name": "h"}]
    }
    assert old["m"] == {"k": 1}


# Module of an entry point -> the module whose `parse(description, arguments)` reads its flags.
FLAGS = {
    "trnx.jobs.train": "trnx.jobs.train_flags",
    "trnx.jobs.serve": "trnx.jobs.serve_flags",
    "trnx.jobs.kernel_bench": "trnx.jobs.kernel_bench_flags",
}


RUNNING = [path for path in EXAMPLES if any(module in path.read_text() for module in FLAGS)]


@pytest.mark.parametrize("path", RUNNING, ids=lambda path: path.stem)
def test_entry_points_take_the_flags_of_the_examples(path: Path) -> None:
    job = load_job(path)
    manifests = render(job)
    main = _pod_spec(manifests)["containers"][0]
    if job.the_operator == Operator.TRAINJOB:
        main = manifests[-1]["spec"]["trainer"]
    words = [*main["command"], *main.get("args", [])]
    module = next(word for word in words if word in FLAGS)
    assert words[words.index(module) - 1] == "-m"
    flags = words[words.index(module) + 1 :]
    settings = importlib.import_module(FLAGS[module]).parse("", flags)
    if job.kind == Kind.TRAIN:
        assert settings.resume == "auto"
        assert settings.checkpoint_dir is not None
    if job.kind == Kind.SERVE:
        assert settings.port == job.port
        assert settings.host == "0.0.0.0"
        assert settings.grace + settings.drain_delay < job.grace_seconds
    if job.kind == Kind.WARM_CACHE:
        assert settings.warm_only


def test_the_warm_up_has_the_flags_of_the_training_that_shape_graphs() -> None:
    jobs = {path.stem: load_job(path) for path in EXAMPLES}
    warm, train = jobs["warm-cache"], jobs["train"]
    assert (warm.image, warm.instance, warm.the_lnc) == (train.image, train.instance, train.the_lnc)
    assert warm.the_cache == train.the_cache
    shaping = ("--preset", "--sequence-length", "--batch", "--dtype", "--activation-checkpointing")
    flags = [[w for w in job.command if w.startswith(shaping)] for job in (warm, train)]
    assert flags[0] == flags[1]
    assert len(flags[0]) == len(shaping)
