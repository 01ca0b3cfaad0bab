"""Facts of instance types as EC2 says them: what trnx's own table is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trnx.eks.aws_client import client, guard
from trnx.eks.errors import AwsError
from trnx.eks.instances import ALL_INSTANCES, Instance, generation_of, instance_from_facts

# Types with Neuron devices of a generation that the table has, or may have.
_NEURON_TYPES = ["trn*", "inf2.*"]


def _numbers(answer: dict[str, Any]) -> tuple[int, int, int] | None:
    """(devices, cores of a device, EFA interfaces); None where EC2 says nothing of devices."""
    devices = (answer.get("NeuronInfo") or {}).get("NeuronDevices") or []
    if not devices:
        return None
    count = sum(int(device["Count"]) for device in devices)
    network = answer.get("NetworkInfo") or {}
    efa = (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)
    return count, int(devices[0]["CoreInfo"]["Count"]), int(efa)


def _facts(name: str, answer: dict[str, Any]) -> Instance:
    numbers = _numbers(answer)
    if numbers is None:
        raise AwsError(f"{name} has no Neuron devices; take a Trainium type")
    count, cores, efa = numbers
    # EC2 does not say how cores are joined by default: two and two since trn2.
    lnc = 1 if generation_of(name) in (None, "trn1") else 2
    found = instance_from_facts(name, count, cores, lnc if cores % lnc == 0 else 1, efa)
    if found is None:
        raise AwsError(f"{name} is no Trainium type")
    return found


def describe(names: list[str], region: str | None = None) -> dict[str, Instance]:
    """Facts of instance types.

    Raises:
        AwsError: EC2 knows no such type in the region, or cannot be asked.
    """
    ec2 = client("ec2", region)
    with guard(f"EC2 DescribeInstanceTypes of {', '.join(names)}"):
        answer = ec2.describe_instance_types(InstanceTypes=names)
    found = {item["InstanceType"]: item for item in answer["InstanceTypes"]}
    return {name: _facts(name, item) for name, item in sorted(found.items())}


@dataclass(frozen=True)
class TypeCheck:
    """A type of the table, or of EC2 alone: `same`, `differs`, `new`, or `unknown` with why."""

    name: str
    result: str
    message: str = ""


def _checked(ours: Instance, answer: dict[str, Any] | None) -> TypeCheck:
    if answer is None:
        return TypeCheck(ours.name, "unknown", "the region does not offer it")
    numbers = _numbers(answer)
    if numbers is None:
        return TypeCheck(ours.name, "unknown", "EC2 says nothing of its Neuron devices")
    count, cores, efa = numbers
    theirs = replace(ours, devices=count, physical_cores_per_device=cores, efa=efa)
    wrong = differences(ours, theirs)
    return TypeCheck(ours.name, "differs" if wrong else "same", "; ".join(wrong))


def check_table(region: str | None = None) -> list[TypeCheck]:
    """trnx's table against EC2: every type of the table, then types that it lacks.

    Raises:
        AwsError: EC2 cannot be asked.
    """
    ec2 = client("ec2", region)
    with guard("EC2 DescribeInstanceTypes"):
        pages = ec2.get_paginator("describe_instance_types").paginate(
            Filters=[{"Name": "instance-type", "Values": _NEURON_TYPES}]
        )
        found = {item["InstanceType"]: item for page in pages for item in page["InstanceTypes"]}
    known = {ours.name for ours in ALL_INSTANCES}
    checks = [_checked(ours, found.get(ours.name)) for ours in ALL_INSTANCES]
    return [
        *checks,
        *(
            TypeCheck(name, "new", f"give its facts in the job file: trnx eks instance {name}")
            for name in sorted(set(found) - known)
        ),
    ]


def differences(ours: Instance, theirs: Instance) -> list[str]:
    """Where trnx's table and EC2 disagree."""
    pairs = {
        "devices": (ours.devices, theirs.devices),
        "physical cores of a device": (
            ours.physical_cores_per_device,
            theirs.physical_cores_per_device,
        ),
        "EFA interfaces": (ours.efa, theirs.efa),
    }
    return [
        f"{what}: {mine} here, {other} by EC2"
        for what, (mine, other) in pairs.items()
        if mine != other
    ]


def images(names: list[str], region: str | None = None) -> dict[str, str]:
    """AMI id -> its name, of those that can be seen.

    Raises:
        AwsError: EC2 cannot be asked.
    """
    ec2 = client("ec2", region)
    with guard("EC2 DescribeImages"):
        filters = [{"Name": "image-id", "Values": names}]
        answer = ec2.describe_images(Filters=filters)
    return {item["ImageId"]: item.get("Name", "") for item in answer["Images"]}
