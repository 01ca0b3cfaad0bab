"""Jobs that are right, to be broken one field at a time."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

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
    from trnx.eks.schemas import SHIPPED

    return Path(os.environ.get("TRNX_CRD_SCHEMAS") or SHIPPED)


def _load(name: str) -> ModuleType:
    """A module beside the tests, which pytest's import mode keeps off sys.path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


stub_server = _load("stub_server")
_load("manifests_of_others")
_load("broken_manifests")


def _kubeconfig(folder: Path, host: str) -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stub",
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
        "clusters": [{"name": "stub", "cluster": {"server": host}}],
        "users": [{"name": "stub", "user": {"token": "very-secret-token"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stub API server's content; KUBECONFIG names the server."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    content = stub_server.Cluster()
    server = stub_server.serve(content)
    host = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig(tmp_path, host)))
    yield content
    server.stopped.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that poll and retry without pauses."""
    from trnx.eks.cluster import api

    whole = api.Patience

    def patience(connect: float = 1.0, read: float = 1.0) -> Any:
        return whole(connect, min(read, 1.0), poll=0.02, retries=2, backoff=0.0, outages=4)

    monkeypatch.setattr(api, "Patience", patience)
