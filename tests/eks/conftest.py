"""Jobs that are right, to be broken one field at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

IMAGE = "111122223333.dkr.ecr.us-west-2.amazonaws.com/trnx:2026.11-sdk2.33.0"
OLD_IMAGE = "111122223333.dkr.ecr.us-west-2.amazonaws.com/trnx:2026.11-sdk2.31.0"


def _make_job(kind: str = "train", **changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": kind,
        "name": "job",
        "image": OLD_IMAGE if str(changes.get("instance")).startswith("trn1") else IMAGE,
        "instance": "trn2.48xlarge",
        "command": ["train.py"],
        "volumes": [{"name": "data", "claim": "trnx-fsx", "mount": "/data"}],
        "cache": "/data/neff-cache",
    }
    data.update(changes)
    return {key: value for key, value in data.items() if value is not None}


@pytest.fixture
def make_job() -> Callable[..., dict[str, Any]]:
    """A valid job file of a kind, as data, with changes; None removes a key."""
    return _make_job


@pytest.fixture
def custom_schemas() -> Path:
    """The folder of custom-resource schemas."""
    folder = os.environ.get("TRNX_CRD_SCHEMAS")
    if not folder:
        pytest.skip("TRNX_CRD_SCHEMAS names no folder of custom-resource schemas")
    return Path(folder)
