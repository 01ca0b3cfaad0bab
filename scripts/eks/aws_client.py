"""Clients of AWS services, with timeouts, and their failures as named errors.

boto3 is imported here alone, when wanted. Credentials come from its usual chain: in a pod from
IAM roles for service accounts or EKS Pod Identity. Nothing of them is ever shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trnx.eks.errors import AwsError

_CREDENTIALS = (
    "renew them with `aws sso login` (AWS_PROFILE names the profile); in a pod, give "
    "`service_account` an IAM role"
)
# Codes of answers whose cause is who asks.
_DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "403",
    "AuthFailure",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId"}


def client(service: str, region: str | None = None) -> Any:
    """A boto3 client that gives up in time.

    Raises:
        AwsError: boto3 is not installed, or no region is known.
    """
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise AwsError(f"{service} needs boto3; run: pip install 'trnx[aws]'") from error
    config = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard"})
    with guard(service):
        return boto3.client(service, region_name=region, config=config)


@contextmanager
def guard(what: str) -> Iterator[None]:
    """Raise what AWS refuses, or what keeps it from being asked, as a named error.

    Raises:
        AwsError: with the service's code and message, and what to do.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        CredentialRetrievalError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        TokenRetrievalError,
    )

    try:
        yield
    except (
        NoCredentialsError,
        PartialCredentialsError,
        CredentialRetrievalError,
        TokenRetrievalError,
    ) as error:
        raise AwsError(f"{what}: no AWS credentials ({error}); {_CREDENTIALS}") from None
    except NoRegionError:
        raise AwsError(f"{what}: no AWS region; set AWS_REGION or give --region") from None
    except ClientError as error:
        raise AwsError(f"{what}: {_said(error.response.get('Error', {}))}") from None
    except BotoCoreError as error:
        raise AwsError(f"{what}: AWS cannot be reached ({error}); see network and region") from None


def _said(answer: dict[str, Any]) -> str:
    code, message = str(answer.get("Code", "?")), str(answer.get("Message", ""))[:400]
    if code in _EXPIRED:
        return f"the AWS credentials have expired ({code}); {_CREDENTIALS}"
    if code in _DENIED:
        return f"{code}: {message}; allow it in the role's IAM policy"
    return f"{code}: {message}"
