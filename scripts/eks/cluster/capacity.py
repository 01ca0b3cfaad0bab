"""Whether nodes have room for a job now: free devices, schedulable nodes, zones, selectors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from trnx.eks.cluster.checks import FAIL, OK, UNKNOWN, WARN, Check, Facts
from trnx.eks.cluster.dra_devices import DraDevices, count_devices
from trnx.eks.cluster.fit import Room, closed, is_selected, labels_of, room
from trnx.eks.cluster.flavour import decide
from trnx.eks.cluster.resources import RUNTIME
from trnx.eks.documents import Manifest
from trnx.eks.model import Flavour, TrnxJob
from trnx.eks.pod_views import PodView, Stream
from trnx.eks.pods import ZONE_LABEL
from trnx.eks.reading import name_of
from trnx.eks.render import render

# Makes nodes when pods wait for them.
KARPENTER = "karpenter.sh"
_SHOWN = 4


@dataclass
class _Count:
    """Pods that find room, by zone; why other nodes have none, and whether they could later."""

    free: Counter[str] = field(default_factory=Counter)
    later: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)


def with_found_flavour(job: TrnxJob, facts: Facts) -> TrnxJob:
    """The job with `auto` replaced by what the nodes have."""
    if job.flavour != Flavour.AUTO or facts.nodes is None:
        return job
    found = decide(facts.nodes, facts.published or set(), job.instance)
    return job.model_copy(update={"flavour": found})


def pods_of_job(job: TrnxJob) -> list[PodView]:
    """The pod templates that the job is rendered to."""
    return [pod for pod in Stream(render(job)).pods() if pod.complete and pod.kind != RUNTIME.kind]


def _with_claims(fits: Room, devices: int, free: int) -> Room:
    """Room for pods that ask for devices by a claim, where a node has `free` of them."""
    pods = free // devices
    if pods >= fits.pods:
        return fits
    return Room(pods, f"{free} devices free of claims (DRA), a pod asks for {devices}")


def _count(
    pod: PodView, nodes: list[Manifest], running: list[Manifest], devices: int, dra: DraDevices
) -> _Count:
    """`devices`: what each pod asks for by claims."""
    count = _Count()
    for node in nodes:
        zone, name = str(labels_of(node).get(ZONE_LABEL, "")), name_of(node)
        why = closed(pod, node)
        fits, whole = room(pod, node, running), room(pod, node, [])
        if devices:
            fits = _with_claims(fits, devices, dra.free[name])
            whole = _with_claims(whole, devices, dra.published[name])
        if not why and fits.pods:
            count.free[zone] += fits.pods
        else:
            count.reasons.append(f"{name} {why}" if why else f"{name}: {fits.short}")
        if not why:
            count.later[zone] += whole.pods
    return count


def _most(counter: Counter[str], *, one_zone: bool) -> int:
    return max(counter.values(), default=0) if one_zone else sum(counter.values())


def _no_node(facts: Facts, job: TrnxJob, where: str) -> Check:
    nodes = facts.nodes or []
    label = "node.kubernetes.io/instance-type"
    zones = Counter(
        str(labels_of(node).get(ZONE_LABEL, "?"))
        for node in nodes
        if labels_of(node).get(label) == job.instance
    )
    there = ", ".join(f"{count} in {zone}" for zone, count in sorted(zones.items()))
    message = f"no node{where} has the labels that the pods select; {job.instance}: {there or 0}"
    if KARPENTER in (facts.groups or {}):
        fix = "see that a NodePool allows type and zone; Karpenter then adds nodes with the job"
        return Check("capacity", WARN, message, fix)
    fix = "add nodes of the type to the zone (node group, Capacity Block), or correct `zone`"
    return Check("capacity", FAIL, message, fix)


def _short(facts: Facts, count: _Count, wanted: str, ready: int, *, waits: bool) -> Check:
    reasons = count.reasons[:_SHOWN]
    if len(count.reasons) > _SHOWN:
        reasons.append(f"{len(count.reasons) - _SHOWN} more nodes")
    message = f"the job wants {wanted}, and there is room for {ready} now: {'; '.join(reasons)}"
    if KARPENTER in (facts.groups or {}):
        fix = "wait: Karpenter adds nodes where a NodePool allows them; or end other jobs"
        return Check("capacity", WARN, message, fix)
    if waits:
        fix = "wait until other jobs have ended (trnx eks delete), or add nodes"
        return Check("capacity", WARN, message, fix)
    fix = "add nodes to one zone; uncordon nodes, or tolerate their taints in `overrides`"
    return Check("capacity", FAIL, message, fix)


def check_capacity(facts: Facts, job: TrnxJob) -> list[Check]:
    """As many pods as the job has fit now on nodes that take them, a gang's in one zone.

    What is taken comes free: a warning. What is closed, too small or not there is a failure, unless
    Karpenter can make nodes.
    """
    if facts.nodes is None:
        return [Check("capacity", UNKNOWN, "nodes may not be read: their room is not known")]
    pods = pods_of_job(job)
    if not pods:
        return []
    pod, gang = pods[0], job.nodes > 1
    where = f" in {job.zone}" if job.zone else " in one zone" if gang else ""
    nodes = [node for node in facts.nodes if is_selected(pod, node)]
    if not nodes:
        return [_no_node(facts, job, where)]
    many = max(job.nodes, job.shards, job.replicas)
    by_claims = job.the_devices if pod.claims else 0
    if by_claims and facts.dra is None:
        message = "ResourceSlices and ResourceClaims may not be read: what claims hold is not known"
        fix = "have an administrator allow to list both (resource.k8s.io) in all namespaces"
        return [Check("capacity", UNKNOWN, message, fix)]
    dra = facts.dra or count_devices([], [])
    count = _count(pod, nodes, facts.pods or [], by_claims, dra)
    ready = _most(count.free, one_zone=gang)
    wanted = f"{many} pod{'s' if many > 1 else ''} on {job.instance if pod.on_neuron else 'CPUs'}"
    wanted += where
    if ready < many:
        waits = _most(count.later, one_zone=gang) >= many
        return [_short(facts, count, wanted, ready, waits=waits)]
    if facts.pods is None:
        message = f"nodes for {wanted} are there; pods of other namespaces may not be counted"
        return [Check("capacity", UNKNOWN, message, "allow to list pods in all namespaces")]
    return [Check("capacity", OK, f"{wanted}: room for {ready} now")]
