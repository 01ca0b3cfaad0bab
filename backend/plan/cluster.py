"""What a plan runs on: instances of one type, their cores and the links between them.

A rank is one physical NeuronCore (LNC 1). `SDK/` is the repository aws-neuron/aws-neuron-sdk,
folder about-neuron/arch/neuron-hardware.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache

from trnx.backend.plan.errors import PlanError
from trnx.eks.instances import INSTANCES
from trnx.simulator.hardware import Hardware, hardware


@dataclass(frozen=True)
class Links:
    """Rates in bytes/s: NeuronLink of one chip inside an instance and to the other instances of
    an UltraServer, EFA of one instance; and how many instances an UltraServer has."""

    chip: float
    chip_to_instance: float
    efa: float
    server_instances: int = 1


# What a compiled graph's collectives are predicted for: a graph has a generation, not an instance.
# A generation that is not here has no published instance types.
_USUAL = {"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge"}

# SDK/trn1-arch.rst and trn2-arch.rst: "NeuronLink-v2 384 GB/s", "EFA bandwidth (Gbps) 800" (trn1n
# 1600), "Intra-instance NeuronLink-v3 1,024 GB/sec/chip", "Inter-instance 256", "EFAv3 3,200".
_LINKS = {
    "trn1.2xlarge": Links(384e9, 0.0, 0.0),
    "trn1.32xlarge": Links(384e9, 0.0, 800e9 / 8),
    "trn1n.32xlarge": Links(384e9, 0.0, 1600e9 / 8),
    "trn2.3xlarge": Links(1024e9, 0.0, 0.0),
    "trn2.48xlarge": Links(1024e9, 0.0, 3200e9 / 8),
    "trn2u.48xlarge": Links(1024e9, 256e9, 3200e9 / 8, server_instances=4),
}


@dataclass(frozen=True)
class ScaleUp:
    """Chips that NeuronLink connects all to all, without end (trn3-arch.rst: 64 or 144 chips)."""

    chip: Hardware

    def levels(self) -> tuple[tuple[str, int, float], ...]:
        """As those of a cluster."""
        chip = self.chip
        own = min(chip.dma_bytes_per_second, chip.hbm_bytes_per_second)
        link = min(own, chip.neuronlink_bytes_per_second / chip.cores_per_chip)
        return (("chip", chip.cores_per_chip, own), ("switch", sys.maxsize, link))


@dataclass(frozen=True)
class Cluster:
    """`nodes` instances of one type."""

    instance: str
    nodes: int

    def __post_init__(self) -> None:
        if self.instance not in _LINKS:
            raise PlanError(
                f"instance type {self.instance!r} is not known to `trnx plan`; known are "
                + ", ".join(_LINKS)
            )
        if self.nodes < 1:
            raise PlanError(f"nodes={self.nodes}: at least one is needed")
        if self.nodes > 1 and not self.links.efa:
            raise PlanError(f"{self.instance} has no EFA: it cannot be one of {self.nodes} nodes")

    @property
    def links(self) -> Links:
        """Rates between cores."""
        return _LINKS[self.instance]

    @property
    def chip(self) -> Hardware:
        """The record of the generation."""
        return hardware(INSTANCES[self.instance].generation)

    @property
    def node_cores(self) -> int:
        """Physical NeuronCores of one instance."""
        facts = INSTANCES[self.instance]
        return facts.devices * facts.physical_cores_per_device

    @property
    def cores(self) -> int:
        """Physical NeuronCores of all."""
        return self.nodes * self.node_cores

    @property
    def core_bytes(self) -> int:
        """HBM of one core: an even share of the chip's."""
        return self.chip.chip_hbm_bytes // self.chip.cores_per_chip

    def levels(self) -> tuple[tuple[str, int, float], ...]:
        """(name, cores that lie within one, bytes/s of a core over its links), inside out."""
        chip, links = self.chip, self.links
        own = min(chip.dma_bytes_per_second, chip.hbm_bytes_per_second)
        found = [
            ("chip", chip.cores_per_chip, own),
            ("NeuronLink", self.node_cores, min(own, links.chip / chip.cores_per_chip)),
        ]
        if links.server_instances > 1:
            cores = links.server_instances * self.node_cores
            rate = min(own, links.chip_to_instance / chip.cores_per_chip)
            found.append(("UltraServer", cores, rate))
        if links.efa:
            found.append(("EFA", self.cores, min(own, links.efa / self.node_cores)))
        return tuple(found)


@lru_cache(maxsize=64)
def interconnect(chip: Hardware, ranks: int) -> Cluster | ScaleUp:
    """What connects the cores of a job of so many ranks: the generation's usual instances."""
    name = _USUAL.get(chip.target)
    if name is None:
        return ScaleUp(chip)
    return Cluster(name, -(-ranks // Cluster(name, 1).node_cores))
