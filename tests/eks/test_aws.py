"""What asks AWS, against moto: digests, the cache on S3, facts of instance types."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from trnx.eks.cli import app
from trnx.eks.cluster.ecr import with_digest
from trnx.eks.errors import AwsError

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts/eks/examples"
REGISTRY = "111122223333.dkr.ecr.us-west-2.amazonaws.com"
REGION = "us-west-2"

runner = CliRunner()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Services in memory, and credentials that are none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield


def _push(tag: str, name: str = "trnx") -> str:
    ecr = boto3.client("ecr", region_name=REGION)
    ecr.create_repository(repositoryName=name, registryId="111122223333")
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {"digest": f"sha256:{hashlib.sha256(tag.encode()).hexdigest()}"},
            "layers": [],
        }
    )
    ecr.put_image(
        repositoryName=name, imageManifest=manifest, imageTag=tag, registryId="111122223333"
    )
    (image,) = ecr.describe_images(repositoryName=name, registryId="111122223333")["imageDetails"]
    return str(image["imageDigest"])


@pytest.mark.usefixtures("aws")
def test_digest_of_a_tag() -> None:
    digest = _push("2026.11-sdk2.33.0")
    image = f"{REGISTRY}/trnx:2026.11-sdk2.33.0"
    assert with_digest(image) == f"{image}@{digest}"
    assert with_digest(f"{image}@{digest}") == f"{image}@{digest}"
    result = runner.invoke(
        app, ["render", str(EXAMPLES / "kernel.yaml"), "--resolve-digest", "--json"]
    )
    assert result.exit_code == 0
    assert f"{image}@{digest}" in result.stdout


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("image", "message"),
    [
        (f"{REGISTRY}/trnx:missing", "has no tag missing"),
        (f"{REGISTRY}/other:1", "has no ECR repository other"),
        (f"{REGISTRY}/trnx", "no tag"),
        ("public.ecr.aws/neuron/x:1", "private ECR"),
        ("docker.io/library/busybox:1", "private ECR"),
    ],
)
def test_digests_that_there_are_not(image: str, message: str) -> None:
    _push("1")
    with pytest.raises(AwsError, match=message):
        with_digest(image)


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AwsError, match=r"no AWS credentials.*aws sso login"):
        with_digest(f"{REGISTRY}/trnx:1")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ExpiredTokenException", "have expired"),
        ("AccessDeniedException", "IAM policy"),
        ("ThrottlingException", "ThrottlingException: no"),
    ],
)
def test_what_aws_refuses(code: str, message: str) -> None:
    from botocore.exceptions import ClientError

    from trnx.eks.aws_client import guard

    error: Any = {"Error": {"Code": code, "Message": "no"}}
    with pytest.raises(AwsError, match=message), guard("ECR"):
        raise ClientError(error, "DescribeImages")
