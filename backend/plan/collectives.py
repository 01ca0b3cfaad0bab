"""Seconds of collectives over a cluster's links, level by level.

Inside a chip, over NeuronLink, between the instances of an UltraServer and over EFA, each level
works on what the levels within have left of the bytes, by the faster of two algorithms of the
public aws-neuron-sdk, neuron-runtime/explore/intranode-collective-comm.rst. A ring takes a hop for
each member and fills the links; a mesh takes one hop, and each byte crosses every link on its way.
Between nodes it is always a ring. All ranks work at the same time and share the links evenly. A hop
has the fixed latency of the simulator's collectives.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class _Level:
    """`members` of `inner` ranks each: seconds of a hop, bytes/s of a rank, and the links that a
    byte crosses between two members (None where there is no mesh)."""

    members: int
    inner: int
    hop: float
    rate: float
    path: float | None

    def gather(self, nbytes: float) -> float:
        """Seconds until every member has the `nbytes` of its column."""
        sent = (self.members - 1) / self.members * nbytes / self.inner / self.rate
        ring = (self.members - 1) * self.hop + sent
        return ring if self.path is None else min(ring, self.hop + self.path * sent)


def all_gather(cluster: Interconnect, group: Group, nbytes: float) -> float:
    """Every rank gets `nbytes`, of which each had its share; a reduce-scatter takes the same."""
    return sum(level.gather(nbytes) for level in _levels(cluster, group))


def all_reduce(cluster: Interconnect, group: Group, nbytes: float) -> float:
    """Every rank gets the sum of `nbytes`: reduce-scatter and all-gather."""
    return 2 * all_gather(cluster, group, nbytes)


def all_to_all(cluster: Interconnect, group: Group, nbytes: float) -> float:
    """Every rank sends an equal part of `nbytes` to each: what leaves a level goes over its link,
    one level at a time."""
    seconds = 0.0
    for level in _levels(cluster, group):
        leaving = nbytes * (level.members - 1) * level.inner / group.size
        seconds += level.hop + leaving / level.rate
    return seconds


def send(cluster: Interconnect, stride: int, nbytes: float) -> float:
    """`nbytes` to the rank that is `stride` away."""
    return max(level.hop + nbytes / level.rate for level in _levels(cluster, Group(2, stride)))


def _levels(cluster: Interconnect, group: Group) -> Iterator[_Level]:
    """The levels over which a group lies, inside out."""
    constants, inner = timing(cluster.chip), 1
    for name, cores, rate in cluster.levels():
        within = min(group.size, max(1, cores // group.stride))
        members = -(-within // inner)
        if members > 1:
            hop = constants.far_hop_ns if name == "EFA" else constants.hop_ns
            yield _Level(members, inner, hop * 1e-9, rate, _path(name, members))
            inner = within


def _path(name: str, members: int) -> float | None:
    """Links between two members on average. The cores of a chip reach each other directly, as chips
    on a switch do. NeuronLink of trn1 and trn2 is a 2D torus (trn1-arch.rst, trn2-arch.rst)."""
    if name == "EFA":
        return None
    if name in ("chip", "switch"):
        return 1.0
    side = max(n for n in range(1, math.isqrt(members) + 1) if members % n == 0)
    steps = sum(min(n, size - n) / size for size in (side, members // side) for n in range(size))
    return steps * members / (members - 1)
