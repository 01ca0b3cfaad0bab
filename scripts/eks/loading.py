"""From a job file and `--set a.b=c` to a checked `TrnxJob`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trnx.eks import documents
from trnx.eks.errors import Finding, JobRefusedError, YamlError
from trnx.eks.model import InstanceFacts, TrnxJob, Volume
from trnx.eks.rules_job import check_job

_PATTERN_FIXES = {
    "name": "lower-case letters, digits and '-', a letter first, at most 40 characters",
    "namespace": "lower-case letters, digits and '-', a letter first, at most 63 characters",
    "env": "a variable's name is letters, digits and '_', and starts with no digit",
    "cache": "an absolute path of a mounted folder, such as /data/neff-cache",
    "mount": "an absolute path, such as /data",
    "cpu": 'a Kubernetes quantity in quotes, such as "8" or 500m',
    "memory": "a Kubernetes quantity, such as 64Gi",
    "shm": "a Kubernetes quantity, such as 16Gi",
    "health_path": "a path, such as /health",
    "ready_path": "a path, such as /ready",
    "cache_s3": "a bucket and a prefix, such as s3://my-bucket/neff",
    "zone": "an availability zone, such as us-west-2d",
    "secrets": "names of Secrets, such as hf-token",
}
_PARTS: dict[str, tuple[str, type[BaseModel]]] = {
    "volumes": ("a volume", Volume),
    "instance_facts": ("instance_facts", InstanceFacts),
}


def _fix(error: ErrorDetails) -> str:
    kind, place = error["type"], [str(part) for part in error["loc"]]
    context = error.get("ctx", {})
    if kind == "missing":
        return f"add `{place[-1]}:` to the file"
    if kind == "extra_forbidden":
        what, model = _PARTS.get(place[0], ("a job", TrnxJob))
        known = ", ".join(model.model_fields)
        return f"remove it or correct its spelling; the keys of {what} are {known}"
    if kind in ("enum", "literal_error"):
        return f"write one of {context['expected']}"
    for part in reversed(place):
        if part in _PATTERN_FIXES and kind.startswith("string"):
            return _PATTERN_FIXES[part]
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        word = "at least" if "ge" in context else "at most"
        return f"write a whole number of {word} {bound}"
    return f"{error['msg'][0].lower()}{error['msg'][1:]}"


def _finding(error: ErrorDetails) -> Finding:
    field = ".".join(documents.shown_key(part) for part in error["loc"]) or "(the file)"
    # The value is not shown: it may be a secret, also where no secret belongs.
    return Finding("job-file", field, error["msg"], _fix(error))


def _assign(data: dict[str, Any], assignment: str, number: int) -> None:
    key, separator, text = assignment.partition("=")
    if not separator or not all(key.split(".")):
        raise YamlError(f"--set number {number} is no a.b=value (its text is not shown)")
    *parents, last = key.split(".")
    place: Any = data
    for index, parent in enumerate([*parents, last]):
        at_end = index == len(parents)
        if isinstance(place, list):
            if not parent.isdigit() or int(parent) >= len(place):
                raise YamlError(f"--set {key}: {parent!r} is no index of a list of {len(place)}")
            if at_end:
                place[int(parent)] = _value(text, key)
            else:
                place = place[int(parent)]
        elif isinstance(place, dict):
            if at_end:
                place[parent] = _value(text, key)
            else:
                place = place.setdefault(parent, {})
        else:
            raise YamlError(f"--set {key}: {parent!r} is below a plain value")


def _value(text: str, key: str) -> Any:
    # Values of env are strings whatever they look like: `--set env.A=1` is not a number.
    if key.startswith("env."):
        return text
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        why = documents.where_of(error) if isinstance(error, yaml.YAMLError) else "a date is none"
        raise YamlError(f"--set {key}: the value is no YAML: {why}") from None


def job_from_data(data: Any, assignments: Sequence[str] = ()) -> TrnxJob:
    """A job from parsed YAML, all rules of jobs checked.

    Raises:
        JobRefusedError: the data break the model or a rule.
        YamlError: an assignment that cannot be read.
    """
    if not isinstance(data, dict):
        raise JobRefusedError(
            [Finding("job-file", "(the file)", "is no mapping of keys", "start with `kind: train`")]
        )
    for number, assignment in enumerate(assignments, 1):
        _assign(data, assignment, number)
    try:
        job = TrnxJob.model_validate(data)
    except ValidationError as error:
        raise JobRefusedError([_finding(item) for item in error.errors()]) from None
    if findings := check_job(job):
        raise JobRefusedError(findings)
    return job


def load_job(path: Path, assignments: Sequence[str] = ()) -> TrnxJob:
    """A job from a file.

    Raises:
        JobRefusedError: the file breaks the model or a rule.
        YamlError: the file is no YAML, or an assignment cannot be read.
    """
    found = documents.read(path)
    if len(found) != 1:
        raise YamlError(f"{path} holds {len(found)} YAML documents; a job file has exactly one")
    return job_from_data(found[0], assignments)
