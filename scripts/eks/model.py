"""The job file: what a user writes. One YAML document, checked before anything is built from it.

Only what a manifest cannot be derived from is asked for; the rest follows from the instance type.
Unknown keys are errors. Rules that need more than one field stand in `rules_job.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trnx.eks.instances import INSTANCES, Instance, instance_from_facts

Quantity = Annotated[str, Field(pattern=r"^[1-9]\d*(\.\d+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?$")]
Positive = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
# 40 leaves room for what controllers append: `-node-0-12-abcde`.
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
AbsolutePath = Annotated[str, Field(pattern=r"^(/[^/:]+)+$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
UrlPath = Annotated[str, Field(pattern=r"^/\S*$")]
Argument = Annotated[str, Field(min_length=1)]
BucketUrl = Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]+[a-z0-9](/[^/\s]+)*$")]

# Where a cache lies that is copied from and to S3: on the node's own disk.
S3_CACHE_FOLDER = "/var/cache/neff"


class Kind(StrEnum):
    """What the job is."""

    KERNEL = "kernel"
    TRAIN = "train"
    WARM_CACHE = "warm-cache"
    SERVE = "serve"


class Operator(StrEnum):
    """The controller that runs it."""

    JOB = "job"
    JOBSET = "jobset"
    TRAINJOB = "trainjob"
    DEPLOYMENT = "deployment"


class Flavour(StrEnum):
    """How devices are handed out: the Neuron device plugin, or dynamic resource allocation.

    `auto` is what the cluster's nodes have, where a command asks the cluster, else the plugin.
    """

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"
    AUTO = "auto"


# The first one is the default.
OPERATORS: dict[Kind, tuple[Operator, ...]] = {
    Kind.KERNEL: (Operator.JOB, Operator.JOBSET),
    Kind.TRAIN: (Operator.JOBSET, Operator.JOB, Operator.TRAINJOB),
    Kind.WARM_CACHE: (Operator.JOB, Operator.JOBSET),
    Kind.SERVE: (Operator.DEPLOYMENT,),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Volume(_Strict):
    """A PersistentVolumeClaim that exists, and its mount. trnx never creates or removes one.

    `access_mode` and `driver` say what the claim is, so that misuse is found without a cluster.
    """

    name: Name
    claim: DnsName
    mount: AbsolutePath
    read_only: bool = False
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"] = (
        "ReadWriteMany"
    )
    driver: str | None = None


class InstanceFacts(_Strict):
    """What trnx has to know of an instance type; `trnx eks instance` asks EC2 for it."""

    devices: Positive
    physical_cores_per_device: Positive
    default_lnc: Literal[1, 2]
    efa: Count


class TrnxJob(_Strict):
    """One job on Trainium nodes of an EKS cluster."""

    kind: Kind
    name: Name
    image: Argument
    instance: str
    instance_facts: InstanceFacts | None = None
    command: Annotated[list[Argument], Field(min_length=1)]
    namespace: Namespace = "default"
    operator: Operator | None = None
    flavour: Flavour = Flavour.DEVICE_PLUGIN
    sdk: str | None = None
    nodes: Positive = 1
    devices: Count | None = None
    lnc: Literal[1, 2] | None = None
    nproc: Positive | None = None
    shards: Positive = 1
    replicas: Positive = 1
    port: Annotated[int, Field(ge=1, le=65535, strict=True)] = 8000
    health_path: UrlPath = "/health"
    ready_path: UrlPath | None = None
    startup_seconds: Positive = 7200
    cpu: Quantity | None = None
    memory: Quantity | None = None
    shm: Quantity | None = None
    env: dict[EnvName, str] = {}
    secrets: list[DnsName] = []
    volumes: list[Volume] = []
    cache: AbsolutePath | None = None
    cache_s3: BucketUrl | None = None
    zone: DnsName | None = None
    queue: DnsName | None = None
    restarts: Count = 3
    resume: list[Argument] = ["--resume=auto"]
    deadline_seconds: Positive | None = None
    keep_seconds: Positive = 604800
    grace_seconds: Positive = 120
    service_account: DnsName | None = None
    overrides: dict[str, dict[str, Any]] = {}

    @property
    def the_operator(self) -> Operator:
        """The operator asked for, or the kind's default."""
        return self.operator or OPERATORS[self.kind][0]

    @property
    def known_facts(self) -> Instance | None:
        """The instance type's facts: the table's, else those of the file."""
        given = self.instance_facts
        if given is None:
            return INSTANCES.get(self.instance)
        return instance_from_facts(
            self.instance,
            given.devices,
            given.physical_cores_per_device,
            given.default_lnc,
            given.efa,
        )

    @property
    def facts(self) -> Instance:
        """The instance type's facts; only after `rules_job` found the type known."""
        facts = self.known_facts
        assert facts is not None
        return facts

    @property
    def the_cache(self) -> str | None:
        """The folder of the compile cache."""
        return self.cache or (S3_CACHE_FOLDER if self.cache_s3 else None)

    @property
    def cache_is_local(self) -> bool:
        """Whether the cache is on the node's own disk, copied from and to S3."""
        mounts = [volume.mount for volume in self.volumes]
        inside = any(f"{self.the_cache}/".startswith(f"{mount}/") for mount in mounts)
        return self.cache_s3 is not None and not inside

    @property
    def the_devices(self) -> int:
        """Devices of one pod: training takes the whole node, compiling none, others one."""
        if self.devices is not None:
            return self.devices
        return {Kind.TRAIN: self.facts.devices, Kind.WARM_CACHE: 0}.get(self.kind, 1)

    @property
    def the_lnc(self) -> int:
        """Physical cores in a logical one."""
        return self.lnc or self.facts.default_lnc

    @property
    def the_nproc(self) -> int:
        """Processes of one training pod: one for each logical core."""
        return self.nproc or self.the_devices * self.facts.cores_per_device(self.the_lnc)

    @property
    def the_efa(self) -> int:
        """EFA interfaces of one pod: all of the node in multi-node training, else none."""
        return self.facts.efa if self.nodes > 1 else 0
