"""Seconds of collectives over a cluster's links: rings, level by level.

Inside a chip, over NeuronLink, between the instances of an UltraServer and over EFA, each level
runs a ring of its members on what the levels within have left of the bytes. All ranks work at the
same time and share the links evenly. A hop has the fixed latency of the simulator's collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware


class Interconnect(Protocol):
    """What collectives need to know of a cluster."""

    @property
    def chip(self) -> Hardware:
        """The record of the generation."""

    def levels(self) -> tuple[tuple[str, int, float], ...]:
        """(name, cores that lie within one, bytes/s of a core over its links), inside out."""


@dataclass(frozen=True)
class Group:
    """`size` ranks, `stride` apart."""

    size: int
    stride: int


def all_gather(cluster: Interconnect, group: Group, nbytes: float) -> float:
    """Every rank gets `nbytes`, of which each had its share; a reduce-scatter takes the same."""
    return sum(
        (members - 1) * hop + (members - 1) / members * nbytes / inner / rate
        for members, inner, hop, rate in _rings(cluster, group)
    )


def all_reduce(cluster: Interconnect, group: Group, nbytes: float) -> float:
    """Every rank gets the sum of `nbytes`: reduce-scatter and all-gather."""
    return 2 * all_gather(cluster, group, nbytes)


def all_to_all(cluster: Interconnect, group: Group, nbytes: float) -> float:
    """Every rank sends an equal part of `nbytes` to each: what leaves a level goes over its link,
    one level at a time."""
    seconds = 0.0
    for members, inner, hop, rate in _rings(cluster, group):
        leaving = nbytes * (members - 1) * inner / group.size
        seconds += (hop if members > 1 else 0.0) + leaving / rate
    return seconds


def send(cluster: Interconnect, stride: int, nbytes: float) -> float:
    """`nbytes` to the rank that is `stride` away."""
    return max(hop + nbytes / rate for _, _, hop, rate in _rings(cluster, Group(2, stride)))


def _rings(cluster: Interconnect, group: Group) -> Iterator[tuple[int, int, float, float]]:
    """(members of a ring, ranks within each, seconds of a hop, bytes/s) of each level in use."""
    constants, inner = timing(cluster.chip), 1
    for name, cores, rate in cluster.levels():
        within = min(group.size, max(1, cores // group.stride))
        members = -(-within // inner)
        if members > 1:
            hop = constants.far_hop_ns if name == "EFA" else constants.hop_ns
            yield members, inner, hop * 1e-9, rate
            inner = within
