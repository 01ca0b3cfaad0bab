"""Facts of instance types as EC2 says them: what trnx's own table is held against."""

from __future__ import annotations

from typing import Any

from trnx.eks.aws_client import client, guard
from trnx.eks.errors import AwsError
from trnx.eks.instances import Instance, generation_of, instance_from_facts


def _facts(name: str, answer: dict[str, Any]) -> Instance:
    devices = answer.get("NeuronInfo", {}).get("NeuronDevices") or []
    if not devices:
        raise AwsError(f"{name} has no Neuron devices; take a Trainium type")
    count = sum(int(device["Count"]) for device in devices)
    cores = int(devices[0]["CoreInfo"]["Count"])
    efa = answer.get("NetworkInfo", {}).get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    # EC2 does not say how cores are joined by default: two and two since trn2.
    lnc = 1 if generation_of(name) in (None, "trn1") else 2
    found = instance_from_facts(name, count, cores, lnc if cores % lnc == 0 else 1, int(efa))
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
