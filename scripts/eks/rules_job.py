"""Rules of job files: what the model's types cannot say, each a failure that users have met.

What can be read off a manifest as well is checked there (`rules_pod.py`, `rules_workload.py`), on
what `render` builds; here is what only the job file knows, or what rendering needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trnx.eks.documents import shown_key
from trnx.eks.errors import Finding
from trnx.eks.images import parse_image, parse_sdk
from trnx.eks.instances import INSTANCES, TOPOLOGY_COUNTS, generation_of
from trnx.eks.model import OPERATORS, Flavour, Kind, Operator, TrnxJob
from trnx.eks.pods import MANAGED_BY, NAME_LABEL, quantity
from trnx.eks.rules_storage import STORAGE_RULES

# Variables that the renderer writes.
OWNED_ENV = (
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_PROVIDER",
    "JOB_COMPLETION_INDEX",
    "NEURON_COMPILE_CACHE_URL",
    "NEURON_LOGICAL_NC_CONFIG",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "TORCH_NEURONX_COMPILE_ONLY",
    "TORCH_NEURONX_NEFF_CACHE_DIR",
    "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR",
)
# Seconds that saving a checkpoint may take at least.
SHORTEST_GRACE = 60
# Kinds of manifests that an operator renders; a Pod is what `render --pod` makes.
_ALWAYS = ("ResourceClaimTemplate", "Pod")
OVERRIDDEN = {
    Operator.JOB: ("Job", "Service", *_ALWAYS),
    Operator.JOBSET: ("JobSet", *_ALWAYS),
    Operator.TRAINJOB: ("TrainJob", "TrainingRuntime", *_ALWAYS),
    Operator.DEPLOYMENT: ("Deployment", "Service", *_ALWAYS),
}


def _instance(job: TrnxJob) -> Iterator[Finding]:
    if job.instance in INSTANCES:
        if job.instance_facts is not None:
            yield Finding(
                "instance-facts",
                "instance_facts",
                f"trnx has facts of {job.instance}",
                "leave `instance_facts` out",
            )
    elif job.instance_facts is None or generation_of(job.instance) is None:
        yield Finding(
            "unknown-instance",
            "instance",
            f"{job.instance!r} is no Trainium instance type that trnx has facts of",
            f"write one of {', '.join(INSTANCES)}; of a newer Trainium type write "
            "`instance_facts`, which `trnx eks instance` prints",
        )
    elif job.known_facts is None:
        yield Finding(
            "instance-facts",
            "instance_facts.physical_cores_per_device",
            "physical cores do not divide into logical ones of `default_lnc`",
            "write what `trnx eks instance` prints",
        )


def _operator(job: TrnxJob) -> Iterator[Finding]:
    if job.the_operator not in OPERATORS[job.kind]:
        allowed = ", ".join(OPERATORS[job.kind])
        yield Finding(
            "operator",
            "operator",
            f"{job.the_operator} does not run jobs of kind {job.kind}",
            f"write one of {allowed}, or leave it out",
        )


def _image(job: TrnxJob) -> Iterator[Finding]:
    if parse_image(job.image) is None:
        yield Finding(
            "image",
            "image",
            f"{job.image!r} is no image reference",
            "write repository:tag or repository@sha256:<64 hexadecimal digits>",
        )
    if job.sdk is not None and parse_sdk(job.sdk) is None:
        yield Finding(
            "image", "sdk", f"{job.sdk!r} is no SDK version", 'write it in quotes, such as "2.33"'
        )


def _lnc(job: TrnxJob) -> Iterator[Finding]:
    if job.the_lnc not in job.facts.lncs:
        yield Finding(
            "lnc",
            "lnc",
            f"{job.instance} has no logical NeuronCores of {job.lnc} physical ones",
            f"leave `lnc` out; the default is {job.facts.default_lnc}",
        )


def _devices(job: TrnxJob) -> Iterator[Finding]:
    facts, count = job.facts, job.the_devices
    if count == 0 and job.kind != Kind.WARM_CACHE:
        yield Finding(
            "device-count",
            "devices",
            f"a job of kind {job.kind} needs a device",
            "leave `devices` out; only warm-cache runs without one",
        )
    elif count and count not in facts.device_counts:
        counts = ", ".join(map(str, facts.device_counts))
        yield Finding(
            "device-count",
            "devices",
            f"{job.instance} places pods of {counts} devices, not of {count}",
            f"write one of {counts}",
        )
    elif count and job.flavour == Flavour.DRA and count not in TOPOLOGY_COUNTS:
        yield Finding(
            "device-count",
            "devices",
            f"the DRA driver's device groups hold 1, 4, 8 or 16 devices, not {count}",
            "write 1, 4, 8 or 16, or flavour: device-plugin",
        )


def _nodes(job: TrnxJob) -> Iterator[Finding]:
    if job.nodes == 1:
        return
    if job.kind != Kind.TRAIN:
        yield Finding(
            "multi-node",
            "nodes",
            f"a job of kind {job.kind} runs on one node",
            "leave `nodes` out (`shards` splits a warm-cache job, `replicas` multiplies a service)",
        )
        return
    if job.facts.efa == 0:
        yield Finding(
            "efa",
            "nodes",
            f"{job.instance} has no EFA, so {job.nodes} nodes of it cannot run collectives",
            "take nodes: 1, or a type with EFA, such as trn2.48xlarge",
        )
    if job.the_devices != job.facts.devices:
        yield Finding(
            "multi-node",
            "devices",
            f"multi-node training takes all {job.facts.devices} devices of a node, "
            f"not {job.the_devices}",
            "leave `devices` out",
        )


def _nproc(job: TrnxJob) -> Iterator[Finding]:
    if job.nproc is None:
        return
    if job.kind != Kind.TRAIN:
        yield Finding("nproc", "nproc", f"{job.kind} starts no torchrun", "leave `nproc` out")
        return
    cores = job.facts.cores_per_device(job.the_lnc)
    expected = job.the_devices * cores
    if job.nproc != expected:
        yield Finding(
            "nproc",
            "nproc",
            f"{job.the_devices} devices of {cores} logical cores (lnc {job.the_lnc}) "
            f"are {expected} processes, not {job.nproc}",
            f"leave `nproc` out, or write {expected}",
        )


_JOBS = (Kind.KERNEL, Kind.TRAIN, Kind.WARM_CACHE)
# Keys that only some kinds of jobs take.
_KINDS = {
    "shards": (Kind.WARM_CACHE,),
    "replicas": (Kind.SERVE,),
    "port": (Kind.SERVE,),
    "startup_seconds": (Kind.SERVE,),
    "health_path": (Kind.SERVE,),
    "ready_path": (Kind.SERVE,),
    "resume": (Kind.TRAIN,),
    "restarts": _JOBS,
    "deadline_seconds": _JOBS,
    "keep_seconds": _JOBS,
}


def _only_for(job: TrnxJob) -> Iterator[Finding]:
    given = [key for key in _KINDS if getattr(job, key) != TrnxJob.model_fields[key].default]
    for key in given:
        if job.kind not in _KINDS[key]:
            yield Finding(
                "kind",
                key,
                f"a job of kind {job.kind} has no {key}",
                f"leave `{key}` out, or write kind: {' or '.join(_KINDS[key])}",
            )
    if "keep_seconds" in given and job.the_operator == Operator.TRAINJOB:
        yield Finding(
            "kind",
            "keep_seconds",
            "a TrainJob is kept until it is deleted",
            "leave `keep_seconds` out, or write operator: jobset",
        )


def _size(job: TrnxJob) -> Iterator[Finding]:
    facts = job.facts
    memory = None if facts.memory_gi is None else facts.memory_gi * 2**30
    for field, value, known in (("cpu", job.cpu, facts.cpu), ("memory", job.memory, memory)):
        if value is None and known is None:
            yield Finding(
                "size",
                field,
                f"what a pod can use of {job.instance} is not published",
                f"write `{field}:` yourself",
            )
        elif value and known and job.the_devices and quantity(value) > known:
            most = f"{known:g}" if field == "cpu" else f"{known / 2**30:.0f}Gi"
            yield Finding(
                "size",
                field,
                f"pods can use {most} of a {job.instance}; {value} never fit",
                f"leave `{field}` out, or write at most {most}",
            )
    if job.shm and job.memory and quantity(job.shm) >= quantity(job.memory):
        yield Finding(
            "size",
            "shm",
            f"what is written to /dev/shm counts as memory: {job.shm} of {job.memory}",
            "leave `shm` out, or write a part of `memory`",
        )


def _command(job: TrnxJob) -> Iterator[Finding]:
    program = job.command[0].rpartition("/")[2]
    if job.kind == Kind.TRAIN and (program == "torchrun" or program.startswith("python")):
        yield Finding(
            "command",
            "command.0",
            f"{program} is written by trnx, with the rendezvous and the number of processes",
            "start with the script or module: [train.py, --steps=100], [-m, package.train]",
        )


def _env(job: TrnxJob) -> Iterator[Finding]:
    for name in job.env:
        if name in OWNED_ENV:
            yield Finding(
                "owned-env",
                f"env.{name}",
                "trnx writes this variable itself",
                "remove it; `cache`, `lnc` and `nodes` are where its value comes from",
            )


def _grace(job: TrnxJob) -> Iterator[Finding]:
    if job.kind == Kind.TRAIN and job.grace_seconds < SHORTEST_GRACE:
        yield Finding(
            "grace",
            "grace_seconds",
            f"{job.grace_seconds} s from SIGTERM to SIGKILL are too few to save a checkpoint",
            f"write at least {SHORTEST_GRACE}; an interrupted Spot instance leaves 120",
        )


def _overrides(job: TrnxJob) -> Iterator[Finding]:
    kinds = OVERRIDDEN[job.the_operator]
    for kind, patch in job.overrides.items():
        if kind not in kinds:
            yield Finding(
                "overrides",
                f"overrides.{shown_key(kind)}",
                f"the job renders no {shown_key(kind)}",
                f"write one of {', '.join(kinds)}",
            )
        meta = patch.get("metadata")
        fixed = {"apiVersion", "kind"} & set(patch)
        if isinstance(meta, dict):
            fixed |= {f"metadata.{key}" for key in ("name", "namespace") if key in meta}
            labels = meta.get("labels")
            owned = {NAME_LABEL, MANAGED_BY} & set(labels if isinstance(labels, dict) else ())
            fixed |= {f"metadata.labels.{key}" for key in owned}
        for field in sorted(fixed):
            yield Finding(
                "overrides",
                f"overrides.{kind}.{field}",
                "status, logs and delete find the job by it",
                "remove it; `name` and `namespace` of the job file say it",
            )


# Rules of the first group need nothing; those of the second need the instance's facts.
_FIRST: tuple[Callable[[TrnxJob], Iterator[Finding]], ...] = (_instance, _operator, _image)
_SECOND: tuple[Callable[[TrnxJob], Iterator[Finding]], ...] = (
    _lnc,
    _devices,
    _nodes,
    _nproc,
    _only_for,
    _size,
    _command,
    _env,
    _grace,
    _overrides,
    *STORAGE_RULES,
)


def check_job(job: TrnxJob) -> list[Finding]:
    """Every rule that the job file breaks."""
    findings = [finding for rule in _FIRST for finding in rule(job)]
    if not any(finding.rule in ("unknown-instance", "instance-facts") for finding in findings):
        findings += [finding for rule in _SECOND for finding in rule(job)]
    return findings
