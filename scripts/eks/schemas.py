"""Strict schema validation of manifests: unknown fields are errors, as they are silent otherwise.

Core kinds: the PyPI package `kubernetes-validate`. Custom resources: `*.openapi.json.gz`, one for
each group, version and kind, in the folder named by TRNX_CRD_SCHEMAS, which
`python -m trnx.eks.fetch_schemas FOLDER` makes, else in `crds`, which trnx brings, else in
`written_schemas.py`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from kubernetes_validate.utils import all_versions

from trnx.eks.cel import broken_rules
from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import EksError, Finding, SchemaFolderError
from trnx.eks.levels import Level
from trnx.eks.secret_forms import HIDDEN, is_secret_name
from trnx.eks.written_schemas import written_schema

FOLDER_VARIABLE = "TRNX_CRD_SCHEMAS"
# Made by scripts/reduce_schemas.py; sources and licences stand in its README.md.
SHIPPED = Path(__file__).parent / "crds"
_CEL_FIX = "correct the field: the API server refuses the object by this rule of its kind"
# Fields whose text is the user's own.
_FREE_TEXT = frozenset({"annotations", "args", "command", "data", "env", "labels", "stringData"})
_FIX = "correct the field; `kubectl explain` shows what the kind takes"


def schema_folder() -> Path | None:
    """The user's folder of custom-resource schemas, None where the variable is not set.

    Raises:
        SchemaFolderError: it is set, and no such folder exists.
    """
    name = os.environ.get(FOLDER_VARIABLE)
    if not name:
        return None
    folder = Path(name)
    if not folder.is_dir():
        raise SchemaFolderError(
            f"{FOLDER_VARIABLE} names {name}, which is no folder; make it with "
            f"`python -m trnx.eks.fetch_schemas {name}`"
        )
    return folder


def strict_schema(schema: Any) -> Any:
    """OpenAPI v3 of a CRD as a JSON schema that refuses fields it does not name."""
    if not isinstance(schema, dict):
        return schema
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties"):
            strict[key] = {name: strict_schema(part) for name, part in value.items()}
        elif key in ("items", "additionalProperties", "not"):
            strict[key] = strict_schema(value)
        elif key in ("allOf", "anyOf", "oneOf"):
            # These only narrow what stands beside them, so they close nothing.
            strict[key] = value
        elif not key.startswith("x-") and key not in ("nullable", "format", "default"):
            strict[key] = value
    if schema.get("x-kubernetes-int-or-string"):
        strict.setdefault("type", ["integer", "string"])
    open_object = schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and "additionalProperties" not in schema and not open_object:
        strict["additionalProperties"] = False
    if schema.get("nullable") and isinstance(strict.get("type"), str):
        strict["type"] = [strict["type"], "null"]
    return strict


_Checked = tuple[Any, jsonschema.Draft202012Validator]


@cache
def _custom_schema(path: Path) -> _Checked:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        schema = json.load(file)
    return schema, jsonschema.Draft202012Validator(strict_schema(schema))


def _schema_of(group: str, version: str, kind: str) -> _Checked | None:
    """Of the user's folder, else what trnx brings; None where neither has the kind."""
    name = f"{group}_{version}_{kind}.openapi.json.gz"
    folders = [folder for folder in (schema_folder(), SHIPPED) if folder is not None]
    for folder in folders:
        if (folder / name).is_file():
            return _custom_schema(folder / name)
    written = written_schema(group, version, kind)
    if written is None:
        return None
    return written, jsonschema.Draft202012Validator(strict_schema(written))


# A wrong value that can be shown where a schema wants something else: one short word, no secret.
_SHORT_WORD = re.compile(r"[A-Za-z][a-z]{0,7}")


def _shown(error: jsonschema.ValidationError) -> str:
    """The wrong value, where it is a number or one short word, and stands where no secret does."""
    value = error.instance
    open_text = any(part in _FREE_TEXT for part in error.absolute_path)
    if open_text or any(is_secret_name(str(part)) for part in error.absolute_path):
        return ""
    if isinstance(value, str):
        return f"{value!r} " if _SHORT_WORD.fullmatch(value) else ""
    return f"{value} " if isinstance(value, int | float) else ""


_FIELD_NAME = re.compile(
    r"[A-Za-z]+(?:[A-Za-z0-9]|_(?=[a-z])){0,2}[A-Za-z_]*|[a-z0-9.-]+\.[a-z]+/[A-Za-z0-9._-]+"
)


def _extra_keys(error: jsonschema.ValidationError) -> str:
    schema: Any = error.schema
    known = schema.get("properties", {})
    instance: Any = error.instance
    # A field's name is letters; what is not could be a value that stands where a key should.
    found = [
        shown_key(key) if _FIELD_NAME.fullmatch(str(key)) else HIDDEN
        for key in instance
        if key not in known
    ]
    return f"the kind has no field {', '.join(map(repr, found))} here"


def _message(error: jsonschema.ValidationError) -> str:
    """What the schema wants: never the value, which may be a secret."""
    rule = error.validator
    wanted: Any = error.validator_value
    instance: Any = error.instance
    if rule == "additionalProperties":
        return _extra_keys(error)
    if rule == "required":
        missing = [key for key in wanted if key not in instance]
        return f"{', '.join(map(repr, missing))} is missing"
    said = {
        "type": f"is not of type {' or '.join([wanted] if isinstance(wanted, str) else wanted)}"
        if rule == "type"
        else "",
        "enum": f"is none of {wanted}",
        "const": f"is not {wanted}",
        "pattern": f"does not match {wanted}",
        "minLength": f"is shorter than {wanted}",
        "maxLength": f"is longer than {wanted}",
        "minItems": f"has fewer items than {wanted}",
        "maxItems": f"has more items than {wanted}",
        "minimum": f"is less than {wanted}",
        "maximum": f"is more than {wanted}",
    }
    return _shown(error) + said.get(str(rule), f"breaks `{rule}` of the schema")


def _finding(where: str, error: jsonschema.ValidationError) -> Finding:
    # The innermost error is the one that says what to change.
    while error.context:
        error = min(error.context, key=lambda item: -len(item.absolute_path))
    field = ".".join(shown_key(part) for part in error.absolute_path) or "(the manifest)"
    if error.instance is None and error.validator == "type":
        fix = "write a value, or remove the key"
        message = "is null: the API server leaves it out"
        return Finding("schema", f"{where} {field}", message, fix, Level.WARNING)
    return Finding("schema", f"{where} {field}", _message(error)[:300], _FIX)


def _check_core(manifest: Manifest, where: str, version: str) -> list[Finding] | None:
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [_finding(where, error)]
    except kubernetes_validate.SchemaNotFoundError:
        return None
    return []


# What a kind's webhook fills in before the schema is asked: (kind, part of the path) -> fields.
_FILLED_IN = {("JobSet", "failurePolicy.rules"): ["name"]}


def _is_filled_in(manifest: Manifest, error: jsonschema.ValidationError) -> bool:
    if error.validator != "required":
        return False
    wanted: Any = error.validator_value
    instance: Any = error.instance
    place = ".".join(str(part) for part in error.absolute_path if not isinstance(part, int))
    missing = [key for key in wanted if key not in instance]
    return any(
        manifest["kind"] == kind and place.endswith(part) and set(missing) <= set(fields)
        for (kind, part), fields in _FILLED_IN.items()
    )


def _check_custom(manifest: Manifest, where: str) -> list[Finding] | None:
    group, _, version = manifest["apiVersion"].partition("/")
    found = _schema_of(group, version, manifest["kind"])
    if found is None:
        return None
    schema, validator = found
    errors = [e for e in validator.iter_errors(manifest) if not _is_filled_in(manifest, e)]
    findings = [_finding(where, error) for error in errors]
    if findings:
        return findings
    for place, message in broken_rules(schema, manifest):
        field = f"{where} {'.'.join(place)}" if place else where
        findings.append(Finding("cel", field, message, _CEL_FIX))
    return findings


def check_version(version: str) -> None:
    """Refuse a version of Kubernetes whose schemas are not here.

    Raises:
        EksError: it is none of the package's.
    """
    known = [".".join(item.split(".")[:2]) for item in all_versions()]
    if version not in known:
        raise EksError(
            f"there are no schemas of Kubernetes {version!r}; take one of {', '.join(known)}"
        )


def check_schema(manifest: Manifest, where: str, version: str) -> list[Finding] | None:
    """Findings of the kind's schema; None where there is no schema of the kind.

    `manifest` has an apiVersion and a kind, both text. `version` is Kubernetes' own, such as 1.34.
    """
    core = _check_core(manifest, where, version)
    return _check_custom(manifest, where) if core is None else core
