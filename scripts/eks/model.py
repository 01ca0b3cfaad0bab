"""The job file: what a user writes. One YAML document, checked before anything is built from it.

Only what a manifest cannot be derived from is asked for; the rest follows from the instance type.
Unknown keys are errors. Rules that need more than one field stand in `rules_job.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from trnx.eks.instances import INSTANCES, Instance

Quantity = Annotated[str, Field(pattern=r"^[1-9]\d*(\.\d+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?$")]
Positive = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
# 40 leaves room for what controllers append: `-node-0-12-abcde`.
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
AbsolutePath = Annotated[str, Field(pattern=r"^(/[^/:]+)+$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Argument = Annotated[str, Field(min_length=1)]


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
    """How devices are handed out: the Neuron device plugin, or dynamic resource allocation."""

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


class TrnxJob(_Strict):
    """One job on Trainium nodes of an EKS cluster."""

    kind: Kind
    name: Name
    image: Argument
    instance: str
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
    health_path: Annotated[str, Field(pattern=r"^/\S*$")] = "/health"
    startup_seconds: Positive = 7200
    cpu: Quantity | None = None
    memory: Quantity | None = None
    shm: Quantity | None = None
    env: dict[EnvName, str] = {}
    volumes: list[Volume] = []
    cache: AbsolutePath | None = None
    queue: DnsName | None = None
    restarts: Count = 3
    resume: list[Argument] = ["--resume=auto"]
    deadline_seconds: Positive | None = None
    keep_seconds: Positive = 604800
    grace_seconds: Positive = 120
    service_account: DnsName | None = None

    @property
    def the_operator(self) -> Operator:
        """The operator asked for, or the kind's default."""
        return self.operator or OPERATORS[self.kind][0]

    @property
    def facts(self) -> Instance:
        """The instance type's facts; only after `rules_job` found the type known."""
        return INSTANCES[self.instance]

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
