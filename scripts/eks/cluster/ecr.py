"""The digest of an image's tag, from Amazon ECR: what runs then is what was looked at."""

from __future__ import annotations

import re
from typing import Any

from trnx.eks.aws_client import client, guard
from trnx.eks.errors import AwsError
from trnx.eks.images import parse_image

_PRIVATE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z]+(?:-[a-z]+)+-\d)"
    r"\.amazonaws\.com(?:\.cn)?/(?P<name>[^:@]+)"
)


def with_digest(image: str) -> str:
    """`repository:tag@sha256:...`; an image that has a digest already stays as it is.

    The tag is kept: it says the SDK. Kubernetes pulls by the digest.

    Raises:
        AwsError: no private ECR repository, no such tag, or AWS cannot be asked.
    """
    parsed = parse_image(image)
    if parsed is not None and parsed.digest:
        return image
    found = _PRIVATE.fullmatch(parsed.repository) if parsed else None
    if parsed is None or found is None:
        raise AwsError(
            f"{image}: digests are looked up in private ECR repositories alone "
            "(ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG); write the digest by hand"
        )
    if parsed.tag is None:
        raise AwsError(f"{image}: no tag to look up; write repository:tag")
    digest = _digest(found["account"], found["region"], found["name"], parsed.tag)
    return f"{parsed.repository}:{parsed.tag}@{digest}"


def _digest(account: str, region: str, name: str, tag: str) -> str:
    ecr = client("ecr", region)
    with guard(f"ECR {name}:{tag} in {region}"):
        try:
            answer: dict[str, Any] = ecr.describe_images(
                registryId=account, repositoryName=name, imageIds=[{"imageTag": tag}]
            )
        except ecr.exceptions.RepositoryNotFoundException:
            raise AwsError(
                f"account {account} has no ECR repository {name} in {region}; create it with "
                f"`aws ecr create-repository --repository-name {name} --region {region}`"
            ) from None
        except ecr.exceptions.ImageNotFoundException:
            raise AwsError(
                f"the ECR repository {name} in {region} has no tag {tag}; push the image first, or "
                "correct `image`"
            ) from None
    return str(answer["imageDetails"][0]["imageDigest"])
