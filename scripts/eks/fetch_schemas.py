"""Make a folder of custom-resource schemas for TRNX_CRD_SCHEMAS, from pinned upstream tags.

    python -m trnx.eks.fetch_schemas FOLDER

Each file is the openAPIV3Schema of one group, version and kind, reduced to what validation needs,
as gzipped JSON. What trnx ships in `crds` is made by the same functions.
The projects are under the Apache-2.0 licence. Needs access to raw.githubusercontent.com.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from trnx.eks.errors import SchemaFolderError

HOST = "https://raw.githubusercontent.com"
TIMEOUT_SECONDS = 60
_BASES = "config/components/crd/bases"
# (repository, tag, files)
SOURCES = (
    (
        "kubeflow/trainer",
        "v2.3.0",
        (
            "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
        ),
    ),
    (
        "kubernetes-sigs/jobset",
        "v0.12.0",
        (f"{_BASES}/jobset.x-k8s.io_jobsets.yaml",),
    ),
    (
        "kubernetes-sigs/kueue",
        "v0.19.2",
        (
            f"{_BASES}/kueue.x-k8s.io_clusterqueues.yaml",
            f"{_BASES}/kueue.x-k8s.io_localqueues.yaml",
            f"{_BASES}/kueue.x-k8s.io_resourceflavors.yaml",
        ),
    ),
    (
        "kubernetes-sigs/lws",
        "v0.10.0",
        (f"{_BASES}/leaderworkerset.x-k8s.io_leaderworkersets.yaml",),
    ),
    ("kubeflow/mpi-operator", "v0.8.0", ("manifests/base/kubeflow.org_mpijobs.yaml",)),
    (
        "kubeflow/training-operator",
        "v1.9.3",
        (
            "manifests/base/crds/kubeflow.org_mpijobs.yaml",
            "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
        ),
    ),
    (
        "aws/karpenter-provider-aws",
        "v1.14.1",
        (
            "pkg/apis/crds/karpenter.k8s.aws_ec2nodeclasses.yaml",
            "pkg/apis/crds/karpenter.sh_nodepools.yaml",
        ),
    ),
)


# What says nothing of whether an object is valid.
_UNUSED = ("default", "description", "example", "format", "title", "x-kubernetes-map-type")
_OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _reduced(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_reduced(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            # Names of fields, which may be those of keywords.
            kept[key] = {name: _reduced(part) for name, part in value.items()}
        elif key not in _UNUSED and not key.startswith("x-kubernetes-list-"):
            kept[key] = _reduced(value)
    if "required" in kept:
        # The API server fills in a default before it asks what is missing.
        parts = schema.get("properties", {})
        kept["required"] = [
            name for name in kept["required"] if "default" not in parts.get(name, {})
        ]
    return kept


def reduced(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a kind without prose, defaults and formats; `status` is the controllers'."""
    kept: dict[str, Any] = _reduced(schema)
    if "status" in kept.get("properties", {}):
        kept["properties"]["status"] = _OPEN
    return kept


def schemas_of(text: str) -> Iterator[tuple[str, Any]]:
    """(file name, schema) of every version in CustomResourceDefinitions."""
    for document in yaml.safe_load_all(text):
        if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
            continue
        spec = document["spec"]
        for version in spec["versions"]:
            name = f"{spec['group']}_{version['name']}_{spec['names']['kind']}.openapi.json.gz"
            yield name, reduced(version["schema"]["openAPIV3Schema"])


def write_schemas(text: str, folder: Path) -> list[str]:
    """Write the schemas of a CRD file; names of what was written. Equal input, equal bytes."""
    names = []
    for name, schema in schemas_of(text):
        write_schema(schema, folder / name)
        names.append(name)
    return names


def write_schema(schema: Any, path: Path) -> None:
    """Write one schema. Equal input, equal bytes."""
    data = json.dumps(schema, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0))


def download(address: str) -> str:
    """The text at an address.

    Raises:
        SchemaFolderError: it cannot be had.
    """
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
            body: bytes = answer.read()
    except OSError as error:
        raise SchemaFolderError(
            f"{address} cannot be read: {error}; check the network, or download the file elsewhere"
        ) from error
    return body.decode()


def fetch(folder: Path, get: Callable[[str], str] = download) -> list[str]:
    """Fill the folder; names of what was written.

    Raises:
        SchemaFolderError: a file cannot be had, or holds no schema.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for repository, tag, paths in SOURCES:
        for path in paths:
            address = f"{HOST}/{repository}/{tag}/{path}"
            written = write_schemas(get(address), folder)
            if not written:
                raise SchemaFolderError(f"{address} holds no CustomResourceDefinition")
            names += written
    return names


def main() -> int:
    """Command line: 0 where every schema was written."""
    parser = argparse.ArgumentParser(description="Make a folder of custom-resource schemas.")
    parser.add_argument("folder", type=Path, help="where to; TRNX_CRD_SCHEMAS then names it")
    folder: Path = parser.parse_args().folder
    try:
        names = fetch(folder)
    except SchemaFolderError as error:
        print(f"fetch_schemas: {error}", file=sys.stderr)
        return 1
    print(f"{len(names)} schemas in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
