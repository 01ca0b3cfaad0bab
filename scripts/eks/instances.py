"""Facts of Trainium and Inferentia2 instance types, as data, each with its source and date.

Counts and EFA interfaces: EC2's DescribeInstanceTypes (NeuronInfo, NetworkInfo.EfaInfo). CPU and
memory that can be allocated: Karpenter's table of instance types. A type whose name or numbers are
not published is not here: nothing is guessed. Facts of such a type come with the job file
(`instance_facts`), and travel with its pods as an annotation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MI_PER_GI = 1024


@dataclass(frozen=True)
class Origin:
    """Where facts were read, and when (year-month-day)."""

    source: str
    read: str


_JOB_FILE = Origin("the job file", "")


@dataclass(frozen=True)
class Instance:
    """One EC2 type. `cpu` (vCPUs) and `memory_gi` (GiB) are what pods can use, None if unknown."""

    name: str
    generation: str
    devices: int
    physical_cores_per_device: int
    default_lnc: int
    efa: int
    cpu: float | None
    memory_gi: float | None
    origin: Origin = _JOB_FILE

    def __post_init__(self) -> None:
        assert self.physical_cores_per_device % self.default_lnc == 0
        assert self.name.startswith(self.generation)

    def like(self, other: Instance) -> bool:
        """Whether manifests for one type are right for the other."""
        return facts_text(self) == facts_text(other) and self.generation == other.generation

    @property
    def lncs(self) -> tuple[int, ...]:
        """Logical NeuronCore configurations that the type takes."""
        return (1,) if self.generation in ("trn1", "inf2") else (1, 2)

    def cores_per_device(self, lnc: int) -> int:
        """Logical NeuronCores of one device."""
        return self.physical_cores_per_device // lnc

    @property
    def device_counts(self) -> tuple[int, ...]:
        """Device counts that the scheduler can place (trn1: its topology extension's)."""
        if self.generation == "trn1":
            return tuple(n for n in TOPOLOGY_COUNTS if n <= self.devices)
        return tuple(range(1, self.devices + 1))


# Groups of neighbouring devices: the trn1 scheduler extension's and DRA's devicegroup attributes.
TOPOLOGY_COUNTS = (1, 4, 8, 16)

# EC2's answers of DescribeInstanceTypes, as moto 5.2.5 keeps them; CPU and memory by Karpenter.
_EC2 = Origin("EC2 DescribeInstanceTypes (moto 5.2.5)", "2026-11-20")
_KARPENTER = Origin("EC2 DescribeInstanceTypes (moto 5.2.5); Karpenter 1.14.1", "2026-11-20")
_SAMPLES = Origin("aws-neuron-eks-samples (trn2u node group); Karpenter 1.14.1", "2026-11-20")
_TABLE = (
    Instance("trn1.2xlarge", "trn1", 1, 2, 1, 0, 8.0, 32.0, _KARPENTER),
    Instance("trn1.32xlarge", "trn1", 16, 2, 1, 8, 127.6, 481894 / MI_PER_GI, _KARPENTER),
    Instance("trn1n.32xlarge", "trn1", 16, 2, 1, 16, 128.0, 512.0, _KARPENTER),
    Instance("trn2.3xlarge", "trn2", 1, 8, 2, 1, None, None, _EC2),
    Instance("trn2.48xlarge", "trn2", 16, 8, 2, 16, 191.45, 1938410 / MI_PER_GI, _KARPENTER),
    Instance("trn2u.48xlarge", "trn2", 16, 8, 2, 16, 191.45, 1938410 / MI_PER_GI, _SAMPLES),
)
# Neuron devices that nothing of trnx runs on: known, so that nodes and manifests can be read.
_INFERENTIA = (
    Instance("inf2.xlarge", "inf2", 1, 2, 1, 0, 3.92, 14162 / MI_PER_GI, _KARPENTER),
    Instance("inf2.8xlarge", "inf2", 1, 2, 1, 0, 31.85, 118312 / MI_PER_GI, _KARPENTER),
    Instance("inf2.24xlarge", "inf2", 6, 2, 1, 0, 95.69, 355262 / MI_PER_GI, _KARPENTER),
    Instance("inf2.48xlarge", "inf2", 12, 2, 1, 0, 191.45, 718987 / MI_PER_GI, _KARPENTER),
)

# What job files may name.
INSTANCES = {instance.name: instance for instance in _TABLE}
ALL_INSTANCES = (*_TABLE, *_INFERENTIA)
_KNOWN = {instance.name: instance for instance in ALL_INSTANCES}
# Generations whose types have no published name.
UNNAMED = {"trn3": Origin("EC2's API model (botocore 1.44.5) has no trn3 type", "2026-11-23")}

# TorchNeuron is the only PyTorch stack from this SDK on, and it has no trn1.
FIRST_SDK_WITHOUT_TRN1 = (2, 32)

_TYPE = re.compile(r"(trn\d+)[a-z0-9-]*\.[a-z0-9-]+")
_FACTS = re.compile(r"devices=(\d+) cores=(\d+) lnc=(\d+) efa=(\d+)")


def generation_of(name: str) -> str | None:
    """The generation that a type's name says; None where it is no Trainium type's."""
    found = _TYPE.fullmatch(name)
    return found[1] if found else None


def instance_from_facts(name: str, devices: int, cores: int, lnc: int, efa: int) -> Instance | None:
    """A type that the table lacks; None where the facts do not fit together."""
    generation = generation_of(name)
    if generation is None or min(devices, cores, lnc) < 1 or cores % lnc:
        return None
    return Instance(name, generation, devices, cores, lnc, efa, None, None)


def facts_text(instance: Instance) -> str:
    """Facts as an annotation says them."""
    cores, lnc = instance.physical_cores_per_device, instance.default_lnc
    return f"devices={instance.devices} cores={cores} lnc={lnc} efa={instance.efa}"


def instance_of(name: str, noted: str = "") -> Instance | None:
    """Facts of a type: the table's, else those that an annotation says."""
    found = _FACTS.fullmatch(noted)
    if name in _KNOWN or found is None:
        return _KNOWN.get(name)
    return instance_from_facts(name, *map(int, found.groups()))
