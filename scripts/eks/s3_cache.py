"""A compile cache on S3: fetched before a command, stored after it.

Files of a cache are named by what they hold, so a name that is there already is not copied again.
A fetched file appears whole or not at all. Transfers are boto3's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from trnx.eks.aws_client import client, guard
from trnx.eks.errors import AwsError

# Files that a compiler is at work with.
_UNFINISHED = (".tmp", ".lock", ".part")
# Generated kernels of trnx are executed, and so neither stored nor taken from a bucket.
_CODE = "trnx/source/"


def split_url(url: str) -> tuple[str, str]:
    """(bucket, prefix with a / at its end, or an empty one).

    Raises:
        AwsError: the address is not one of S3's.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise AwsError(f"{url!r} is no address on S3; write s3://bucket/prefix")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def local_files(folder: Path) -> dict[str, Path]:
    """Relative name -> file, of all finished files below a folder."""
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix not in _UNFINISHED
    }
    return {name: path for name, path in files.items() if not name.startswith(_CODE)}


def _remote(s3: Any, bucket: str, prefix: str) -> Iterator[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        for item in page.get("Contents", ()):
            name = item["Key"].removeprefix(prefix)
            parts = PurePosixPath(name).parts
            # A key may say anything; only names below the folder are taken.
            is_code = PurePosixPath(name).as_posix().startswith(_CODE)
            is_below = name and not name.endswith("/") and ".." not in parts and parts[0] != "/"
            if is_below and not is_code:
                yield name


def fetch(url: str, folder: Path) -> int:
    """Copy what the folder lacks; the number of files copied.

    Raises:
        AwsError: S3 refuses, or cannot be asked.
    """
    bucket, prefix = split_url(url)
    s3 = client("s3")
    folder.mkdir(parents=True, exist_ok=True)
    have, count = local_files(folder), 0
    with guard(f"fetching {url}"):
        for name in _remote(s3, bucket, prefix):
            if name in have:
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.{os.getpid()}.part")
            try:
                s3.download_file(bucket, f"{prefix}{name}", str(part))
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
            count += 1
    return count


def store(folder: Path, url: str) -> int:
    """Copy what S3 lacks; the number of files copied.

    Raises:
        AwsError: S3 refuses, or cannot be asked.
    """
    bucket, prefix = split_url(url)
    s3 = client("s3")
    with guard(f"storing {url}"):
        there = set(_remote(s3, bucket, prefix))
        new = {name: path for name, path in local_files(folder).items() if name not in there}
        for name, path in new.items():
            s3.upload_file(str(path), bucket, f"{prefix}{name}")
    return len(new)
