"""Schemas: how they are made strict, fetched, found, and what YAML is taken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import jsonschema
import pytest

from trnx.eks import documents
from trnx.eks.errors import EksError, SchemaFolderError, YamlError
from trnx.eks.fetch_schemas import HOST, SOURCES, download, fetch, write_schemas
from trnx.eks.schemas import SHIPPED, strict_schema
from trnx.eks.validate import validate

CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing}
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          description: prose
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              description: prose
              type: object
              properties:
                description: {type: string, description: prose}
                size: {x-kubernetes-int-or-string: true}
                free:
                  type: object
                  x-kubernetes-preserve-unknown-fields: true
                  properties: {a: {type: string}}
                none: {type: string, nullable: true}
"""
BOMB = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
THING = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}


def test_fetched_schemas_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_schemas(CRD, tmp_path) == ["example.com_v1_Thing.openapi.json.gz"]
    assert b"prose" not in gzip.decompress(next(tmp_path.iterdir()).read_bytes())
    spec = {"description": "d", "size": "1Gi", "free": {"b": 1}, "none": None}
    monkeypatch.delenv("TRNX_CRD_SCHEMAS", raising=False)
    assert validate([{**THING, "spec": spec}], "1.34").unchecked == ("Thing/a",)
    monkeypatch.setenv("TRNX_CRD_SCHEMAS", str(tmp_path))
    report = validate([{**THING, "spec": spec}], "1.34")
    assert (report.findings, report.unchecked) == ((), ())
    for wrong in ({"sizes": 1}, {"size": 1.5}, {"description": None}):
        (finding,) = validate([{**THING, "spec": wrong}], "1.34").findings
        assert finding.rule == "schema"
        assert finding.field.startswith("Thing/a spec")


def test_strict_schema_keeps_unions_open() -> None:
    union = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, **union}
    check = jsonschema.Draft202012Validator(strict_schema(schema))
    assert check.is_valid({"a": 1, "b": 2})
    assert not check.is_valid({})
    assert not check.is_valid({"a": 1, "c": 2})


def test_fetch_writes_every_source_the_same_way_twice(tmp_path: Path) -> None:
    asked: list[str] = []

    def get(address: str) -> str:
        asked.append(address)
        return CRD.replace("Thing", f"Thing{len(asked) % sum(len(s[2]) for s in SOURCES)}")

    first = fetch(tmp_path / "a", get)
    second = fetch(tmp_path / "b", get)
    assert first == second
    assert len(first) == len(set(first)) == sum(len(paths) for _, _, paths in SOURCES)
    for name in first:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        json.loads(gzip.decompress((tmp_path / "a" / name).read_bytes()))
    assert all(address.startswith(f"{HOST}/") for address in asked)


def test_fetch_failures_are_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaFolderError, match="holds no CustomResourceDefinition"):
        fetch(tmp_path, lambda _: "kind: List")
    with pytest.raises(SchemaFolderError, match="cannot be read"):
        download((tmp_path / "missing.yaml").as_uri())


def test_a_folder_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNX_CRD_SCHEMAS", str(tmp_path / "missing"))
    with pytest.raises(SchemaFolderError, match="fetch_schemas"):
        validate([{**THING}], "1.34")


@pytest.mark.parametrize("version", ["1.3", "2.0", "latest"])
def test_unknown_version_of_kubernetes(version: str) -> None:
    with pytest.raises(EksError, match=r"take one of .*1\.34"):
        validate([{**THING}], version)


def test_shipped_schemas_are_reduced_and_have_a_source(tmp_path: Path) -> None:
    """Reducing them again changes nothing; each kind's project and licence stand beside them."""
    from trnx.eks.fetch_schemas import reduced, write_schema

    shipped = sorted(SHIPPED.glob("*.gz"))
    notes = (SHIPPED / "README.md").read_text()
    assert len(shipped) == 16
    for path in shipped:
        schema = json.loads(gzip.decompress(path.read_bytes()))
        write_schema(reduced(schema), tmp_path / path.name)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
        group, _, kind = path.name.removesuffix(".openapi.json.gz").split("_")
        assert f"| `{group}` " in notes
        assert f"{kind}" in notes
    for repository, tag, _ in SOURCES:
        assert f"| {repository} | {tag} |" in notes
    assert "Apache-2.0" in notes
    assert sum(path.stat().st_size for path in shipped) < 100_000


def test_defaults_are_filled_in_before_anything_is_missing() -> None:
    from trnx.eks.fetch_schemas import reduced

    parts = {"a": {"type": "string", "default": "x"}, "b": {"type": "string", "format": "f"}}
    found = reduced(
        {"properties": {**parts, "status": {"required": ["c"]}}, "required": ["a", "b"]}
    )
    assert found["required"] == ["b"]
    assert found["properties"]["b"] == {"type": "string"}
    assert found["properties"]["status"] == {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }


def test_custom_schemas_have_what_render_writes(custom_schemas: Path) -> None:
    for name in (
        "jobset.x-k8s.io_v1alpha2_JobSet",
        "trainer.kubeflow.org_v1alpha1_TrainJob",
        "trainer.kubeflow.org_v1alpha1_TrainingRuntime",
    ):
        assert (custom_schemas / f"{name}.openapi.json.gz").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "stands twice"),
        ("a: [", "no valid YAML"),
        ("a: {b: 1, b: 2}", "'b'"),
        ("a: &a [*a]", "holds itself"),
        ("\n".join(["a0: &a0 [1, 1]", *BOMB]), "holds itself"),
        ("[" * 5000 + "]" * 5000, "too deep"),
    ],
)
def test_yaml_that_says_too_much_or_nothing(text: str, message: str) -> None:
    with pytest.raises(YamlError, match=message):
        documents.parse(text, "text")


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(YamlError, match="cannot be read"):
        documents.read(tmp_path / "missing.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(YamlError, match="cannot be read"):
        documents.read(tmp_path / "binary")


def test_lists_as_kubectl_prints_them() -> None:
    (thing,) = documents.parse("kind: List\napiVersion: v1\nitems: [{kind: A}]", "text")
    assert thing == {"kind": "A"}


@pytest.mark.parametrize("version", ["s3://a/b", "../../v1", "v1\x00", "V1", 1, "apps/", "/v1"])
def test_versions_that_are_none(version: object) -> None:
    (finding,) = validate([{**THING, "apiVersion": version}], "1.34").findings
    assert (finding.rule, finding.field) == ("manifest", "document 0.apiVersion")
