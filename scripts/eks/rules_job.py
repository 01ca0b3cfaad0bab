"""Rules of job files: what the model's types cannot say, each a failure that users have met.

What can be read off a manifest as well is checked there (`rules_pod.py`, `rules_workload.py`), on
what `render` builds; here is what only the job file knows, or what rendering needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trnx.eks.errors import Finding
from trnx.eks.images import parse_image, parse_sdk
from trnx.eks.instances import INSTANCES, TOPOLOGY_COUNTS
from trnx.eks.model import OPERATORS, Flavour, Kind, TrnxJob, Volume

# Variables and volumes that the renderer writes.
OWNED_ENV = (
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_PROVIDER",
    "JOB_COMPLETION_INDEX",
    "NEURON_COMPILE_CACHE_URL",
    "NEURON_LOGICAL_NC_CONFIG",
    "TORCH_NEURONX_COMPILE_ONLY",
    "TORCH_NEURONX_NEFF_CACHE_DIR",
    "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR",
)
OWNED_VOLUMES = ("dshm", "neff-local")
OWNED_MOUNTS = ("/dev/shm", "/var/cache/neff-local")
S3_DRIVER = "s3.csi.aws.com"


def _instance(job: TrnxJob) -> Iterator[Finding]:
    if job.instance not in INSTANCES:
        yield Finding(
            "unknown-instance",
            "instance",
            f"{job.instance!r} is no Trainium instance type that trnx has facts of",
            f"write one of {', '.join(INSTANCES)}",
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


def _only_for(job: TrnxJob) -> Iterator[Finding]:
    for field, value, kind in (
        ("shards", job.shards, Kind.WARM_CACHE),
        ("replicas", job.replicas, Kind.SERVE),
    ):
        if value > 1 and job.kind != kind:
            yield Finding(
                "kind",
                field,
                f"only a job of kind {kind} has {field}",
                f"leave `{field}` out, or write kind: {kind}",
            )
    if job.deadline_seconds is not None and job.kind == Kind.SERVE:
        yield Finding(
            "kind", "deadline_seconds", "a service has no deadline", "leave `deadline_seconds` out"
        )


def _size(job: TrnxJob) -> Iterator[Finding]:
    for field, value, known in (
        ("cpu", job.cpu, job.facts.cpu),
        ("memory", job.memory, job.facts.memory_gi),
    ):
        if value is None and known is None:
            yield Finding(
                "size",
                field,
                f"what a pod can use of {job.instance} is not published",
                f"write `{field}:` yourself",
            )


def _command(job: TrnxJob) -> Iterator[Finding]:
    program = job.command[0].rpartition("/")[2]
    if job.kind == Kind.TRAIN and (program == "torchrun" or program.startswith("python")):
        yield Finding(
            "command",
            "command.0",
            f"{program} is written by trnx, with the rendezvous and the number of processes",
            "start with the training script: command: [train.py, --steps=100]",
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


def _volumes(job: TrnxJob) -> Iterator[Finding]:
    for field, owned in (("name", OWNED_VOLUMES), ("mount", OWNED_MOUNTS)):
        seen = set(owned)
        for index, volume in enumerate(job.volumes):
            value = getattr(volume, field)
            if value in seen:
                yield Finding(
                    "volumes",
                    f"volumes.{index}.{field}",
                    f"{value!r} is taken",
                    f"give the volume another {field}; trnx itself takes {', '.join(owned)}",
                )
            seen.add(value)
    many = max(job.nodes, job.shards, job.replicas) > 1
    for index, volume in enumerate(job.volumes):
        if many and volume.access_mode in ("ReadWriteOnce", "ReadWriteOncePod"):
            yield Finding(
                "access-mode",
                f"volumes.{index}.access_mode",
                f"a {volume.access_mode} claim cannot be mounted by pods on several nodes",
                "take a claim that is ReadWriteMany (FSx for Lustre, EFS), or one pod",
            )
        if not volume.read_only and volume.access_mode == "ReadOnlyMany":
            yield Finding(
                "access-mode",
                f"volumes.{index}.read_only",
                "a ReadOnlyMany claim cannot be written",
                "write read_only: true",
            )


def _holder(job: TrnxJob) -> tuple[int, Volume] | None:
    """The volume below whose mount the cache lies: the deepest one."""
    found = [
        (index, volume)
        for index, volume in enumerate(job.volumes)
        if f"{job.cache}/".startswith(f"{volume.mount}/")
    ]
    return max(found, key=lambda item: len(item[1].mount), default=None)


def _cache(job: TrnxJob) -> Iterator[Finding]:
    if job.cache is None:
        if job.kind == Kind.WARM_CACHE:
            yield Finding(
                "cache",
                "cache",
                "a warm-cache job without a cache keeps nothing",
                "write `cache:`, a path below a volume's mount",
            )
        return
    holder = _holder(job)
    if holder is None:
        yield Finding(
            "cache",
            "cache",
            f"{job.cache} is below no volume, so it is lost with the pod",
            "put it below the `mount` of one of `volumes`",
        )
        return
    index, volume = holder
    if volume.read_only:
        yield Finding(
            "cache",
            f"volumes.{index}.read_only",
            f"the cache {job.cache} must be written",
            "write read_only: false, or take another volume",
        )
    if volume.driver == S3_DRIVER:
        yield Finding(
            "s3-cache",
            f"volumes.{index}.driver",
            "the S3 CSI driver has no rename, which the NEFF cache writes with",
            "take FSx for Lustre or EFS for the cache; S3 is good for read-only weights",
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
    _volumes,
    _cache,
)


def check_job(job: TrnxJob) -> list[Finding]:
    """Every rule that the job file breaks."""
    findings = [finding for rule in _FIRST for finding in rule(job)]
    if job.instance in INSTANCES:
        findings += [finding for rule in _SECOND for finding in rule(job)]
    return findings
