"""Manifests of a job, as data: deterministic, and nothing is contacted.

A job's objects have its name. Restarts: a preempted pod (DisruptionTarget) never counts against
`restarts`; a plain Job does not try a failed kernel test (exit status 1 or 2) again.
"""

from __future__ import annotations

from collections.abc import Callable

from trnx.eks.documents import Manifest
from trnx.eks.errors import Finding, JobRefusedError
from trnx.eks.model import Kind, Operator, TrnxJob
from trnx.eks.overlay import overlaid
from trnx.eks.pods import (
    RENDEZVOUS_PORT,
    claim_templates,
    container,
    container_name,
    labels,
    metadata,
    pod_metadata,
    pod_spec,
    resources,
)

_DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
# Failures that another try does not mend: pytest's "tests failed" and "interrupted", Python's 1.
_FINAL_EXIT_CODES = [1, 2]


def _template(job: TrnxJob) -> Manifest:
    return {"metadata": pod_metadata(job), "spec": pod_spec(job)}


def _width(job: TrnxJob) -> int:
    """Pods that run side by side."""
    return job.shards if job.kind == Kind.WARM_CACHE else job.nodes


def _failure_policy(job: TrnxJob, *, gang: bool) -> Manifest:
    """`gang`: a lost pod ends the child job, and JobSet starts all again without counting it."""
    if gang:
        return {"rules": [{"action": "FailJob", "onPodConditions": _DISRUPTED}]}
    rules: list[Manifest] = [{"action": "Ignore", "onPodConditions": _DISRUPTED}]
    if job.kind == Kind.KERNEL:
        codes = {"containerName": container_name(job), "operator": "In"}
        rules.append({"action": "FailJob", "onExitCodes": {**codes, "values": _FINAL_EXIT_CODES}})
    return {"rules": rules}


def _job_spec(job: TrnxJob, template: Manifest, *, gang: bool) -> Manifest:
    width = _width(job)
    spec: Manifest = {}
    if width > 1:
        spec.update(completionMode="Indexed", completions=width, parallelism=width)
    # One loss takes every rank down, so a gang of a plain Job counts a failure once a rank.
    spec["backoffLimit"] = 0 if gang else job.restarts * width
    if job.deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = job.deadline_seconds
    spec["podFailurePolicy"] = _failure_policy(job, gang=gang)
    spec["template"] = template
    return spec


def _headless_service(job: TrnxJob) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": job.name},
            "ports": [{"name": "rdzv", "port": RENDEZVOUS_PORT}],
        },
    }


def _job(job: TrnxJob) -> list[Manifest]:
    template = _template(job)
    services = []
    if job.nodes > 1:
        template["spec"] = {"subdomain": job.name, **template["spec"]}
        services = [_headless_service(job)]
    spec = _job_spec(job, template, gang=False)
    spec["ttlSecondsAfterFinished"] = job.keep_seconds
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, queued=True),
        "spec": spec,
    }
    return [*services, manifest]


def _jobset_spec(job: TrnxJob, template: Manifest) -> Manifest:
    rule = {
        "name": "preempted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    rules = [rule]
    if job.deadline_seconds is not None:
        late = {"name": "late", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
        rules.append(late)
    child = {"metadata": {"labels": labels(job)}, "spec": _job_spec(job, template, gang=True)}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": job.restarts,
            "restartStrategy": "Recreate",
            "rules": rules,
        },
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": child}],
    }


def _jobset(job: TrnxJob) -> list[Manifest]:
    spec = _jobset_spec(job, _template(job))
    spec["ttlSecondsAfterFinished"] = job.keep_seconds
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, queued=True),
        "spec": spec,
    }
    return [manifest]


def _trainjob(job: TrnxJob) -> list[Manifest]:
    """A TrainingRuntime of the job's own, and the TrainJob, which says image, command and size."""
    template = _template(job)
    main = container(job)
    kept = ("name", "image", "env", "envFrom", "securityContext", "volumeMounts")
    template["spec"]["containers"] = [{key: main[key] for key in kept if key in main}]
    jobset = _jobset_spec(job, template)
    # JobSet's defaults give pods DNS names; the width of its Job is Trainer's to set.
    del jobset["network"]
    child = jobset["replicatedJobs"][0]["template"]
    child["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] = "trainer"
    for key in ("completionMode", "completions", "parallelism"):
        child["spec"].pop(key, None)
    del jobset["replicatedJobs"][0]["replicas"]
    meta = metadata(job)
    meta["labels"]["trainer.kubeflow.org/framework"] = "torch"
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": meta,
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": jobset}},
    }
    trainer = {
        "image": job.image,
        "command": main["command"],
        "args": main["args"],
        "numNodes": job.nodes,
        # Trainer counts devices in resources named "gpu" alone, else the CPUs.
        "numProcPerNode": job.the_nproc,
        "resourcesPerNode": resources(job),
    }
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name}
    trainjob = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, queued=True),
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }
    return [runtime, trainjob]


def _deployment(job: TrnxJob) -> list[Manifest]:
    selector = {"app.kubernetes.io/name": job.name}
    spec = {
        "replicas": job.replicas,
        "progressDeadlineSeconds": job.startup_seconds,
        # There is no spare Trainium node for a surge pod.
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
        },
        "selector": {"matchLabels": selector},
        "template": _template(job),
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(job, queued=True),
        "spec": spec,
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job),
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }
    return [deployment, service]


_BUILDERS: dict[Operator, Callable[[TrnxJob], list[Manifest]]] = {
    Operator.JOB: _job,
    Operator.JOBSET: _jobset,
    Operator.TRAINJOB: _trainjob,
    Operator.DEPLOYMENT: _deployment,
}


def render(job: TrnxJob) -> list[Manifest]:
    """The job's manifests, in the order in which they are to be applied."""
    manifests = [*claim_templates(job), *_BUILDERS[job.the_operator](job)]
    return [overlaid(manifest, job.overrides) for manifest in manifests]


def render_pod(job: TrnxJob) -> Manifest:
    """One Pod, as Airflow's KubernetesPodOperator takes it for `pod_template_file`.

    Raises:
        JobRefusedError: the job is more than one pod, or a service.
    """
    if job.kind == Kind.SERVE or _width(job) > 1:
        what = "a service" if job.kind == Kind.SERVE else f"{_width(job)} pods"
        field = {Kind.SERVE: "kind", Kind.WARM_CACHE: "shards"}.get(job.kind, "nodes")
        fix = "leave `--pod` out, or render a job of one pod"
        raise JobRefusedError([Finding("one-pod", field, f"{what}: not one pod that ends", fix)])
    if job.the_operator == Operator.TRAINJOB:
        job = job.model_copy(update={"operator": Operator.JOB})
    meta = metadata(job) | {
        key: value for key, value in pod_metadata(job).items() if key == "annotations"
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec(job)}
    return overlaid(pod, job.overrides)
