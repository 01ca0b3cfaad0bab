"""Look at a cluster before a node is paid for: what is there, what is missing, what a job lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trnx.eks.cluster import capacity, checks, ec2, job_checks
from trnx.eks.cluster.api import Api
from trnx.eks.cluster.checks import (
    FAIL,
    OK,
    SKIP,
    UNKNOWN,
    WARN,
    Check,
    Facts,
    NodeRow,
    neuron_nodes,
)
from trnx.eks.cluster.dra_devices import DraDevices, count_devices
from trnx.eks.cluster.flavour import neuron_slices, nodes_of
from trnx.eks.cluster.resources import DEVICE_CLAIM, DEVICE_CLASS, NODE, POD, Resource
from trnx.eks.documents import Manifest
from trnx.eks.errors import AbsentError, AwsError, ForbiddenError, NotInstalledError
from trnx.eks.instances import INSTANCES
from trnx.eks.model import TrnxJob
from trnx.eks.pods import DEVICE_CLASS as NEURON_CLASS
from trnx.eks.reading import items, mapping, text


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and the nodes that they are about."""

    checks: tuple[Check, ...]
    nodes: tuple[NodeRow, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(check.result != FAIL for check in self.checks)

    @property
    def verdict(self) -> str:
        """yes; later (there is no room now); unknown (something may not be read); no."""
        if not self.ok:
            return "no"
        if any(check.result == UNKNOWN for check in self.checks):
            return "unknown"
        late = any(c.name == "capacity" and c.result == WARN for c in self.checks)
        return "later" if late else "yes"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "checks": [check.to_dict() for check in self.checks],
            "nodes": [node.to_dict() for node in self.nodes],
        }


def _answer(api: Api, path: str) -> Manifest:
    try:
        return api.request("GET", path)
    except (AbsentError, ForbiddenError, NotInstalledError):
        return {}


def _groups(api: Api) -> dict[str, list[str]] | None:
    try:
        answer = api.request("GET", "/apis")
    except ForbiddenError:
        return None
    except (AbsentError, NotInstalledError):
        return {}
    return {
        text(group, "name"): [text(version, "version") for version in items(group, "versions")]
        for group in items(answer, "groups")
    }


def _all(api: Api, resource: Resource) -> list[Manifest] | None:
    try:
        return api.items(resource, "")
    except ForbiddenError:
        return None


def _device_class(api: Api) -> bool | None:
    try:
        return api.get(DEVICE_CLASS, "", NEURON_CLASS) is not None
    except ForbiddenError:
        return None


def gather(api: Api) -> Facts:
    """Everything that the checks are about.

    Raises:
        ClusterError: the server cannot be asked.
    """
    version = text(_answer(api, "/version"), "gitVersion")
    slices = neuron_slices(api)
    return Facts(
        version,
        _all(api, NODE),
        None if slices is None else nodes_of(slices),
        _groups(api),
        _device_class(api),
        _all(api, POD),
        _dra_devices(api, slices),
    )


def _dra_devices(api: Api, slices: list[Manifest] | None) -> DraDevices | None:
    """None where slices or claims may not be read."""
    claims = _all(api, DEVICE_CLAIM) if slices else []
    return None if slices is None or claims is None else count_devices(slices, claims)


def _check_ec2(facts: Facts, job: TrnxJob | None, region: str | None) -> tuple[list[Check], Facts]:
    """trnx's table against EC2, and names of AMIs; skipped where AWS cannot be asked."""
    types = {row.instance for row in neuron_nodes(facts)} | ({job.instance} if job else set())
    names = sorted(name for name in types if name.startswith("trn"))
    if not names:
        return [], facts
    zones = sorted(row.zone for row in neuron_nodes(facts) if row.zone)
    # us-west-2d is a zone of us-west-2.
    region = region or (zones[0].rstrip("abcdefghijklmnopqrstuvwxyz") if zones else None)
    try:
        found = ec2.describe(names, region)
        amis = ec2.images(_ami_ids(facts), region) if _ami_ids(facts) else {}
    except AwsError as error:
        fix = "not needed for jobs; with credentials the table of instance types is checked too"
        return [Check("ec2", SKIP, str(error), fix)], facts
    results = []
    for name, theirs in found.items():
        ours = INSTANCES.get(name) or (job.facts if job and job.instance == name else None)
        wrong = ec2.differences(ours, theirs) if ours else []
        if wrong:
            fix = "write `instance_facts` as EC2 says, or report the table's mistake"
            results.append(Check("ec2", WARN, f"{name}: {'; '.join(wrong)}", fix))
        else:
            results.append(Check("ec2", OK, f"{name} is as EC2 describes it"))
    return results, replace(facts, amis=amis)


def _ami_ids(facts: Facts) -> list[str]:
    label = "eks.amazonaws.com/nodegroup-image"
    ids = {mapping(node, "metadata", "labels").get(label) for node in facts.nodes or []}
    return sorted(str(ami) for ami in ids if ami)


def _check_dra(facts: Facts) -> list[Check]:
    if facts.published and facts.device_class is False:
        fix = "install the Neuron DRA driver's chart again: it brings the class"
        return [Check("dra", WARN, f"no DeviceClass {NEURON_CLASS}, but devices published", fix)]
    if facts.published:
        return [Check("dra", OK, f"devices of {len(facts.published)} nodes are published")]
    return []


def diagnose(api: Api, job: TrnxJob | None = None, region: str | None = None) -> Diagnosis:
    """Look at the cluster, and at what a job needs of it.

    Raises:
        ClusterError: the server cannot be asked.
    """
    facts = gather(api)
    from_ec2, facts = _check_ec2(facts, job, region)
    found = [
        *checks.check_version(facts),
        *checks.check_nodes(facts),
        *_check_dra(facts),
        *checks.check_counts(facts),
        *checks.check_images(facts),
        *checks.check_controllers(facts, job_checks.needed_groups(job)),
        *from_ec2,
    ]
    if job is not None:
        job = capacity.with_found_flavour(job, facts)
        found += [
            *capacity.check_capacity(facts, job),
            *job_checks.check_devices(facts, job),
            *job_checks.check_claims(api, job),
            *job_checks.check_secrets(api, job),
            *job_checks.check_queue(api, job),
            *job_checks.check_account(api, job),
            *job_checks.check_driver(job),
        ]
    return Diagnosis(tuple(found), tuple(neuron_nodes(facts)))
