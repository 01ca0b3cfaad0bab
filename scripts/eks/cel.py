"""Rules that custom resources bring themselves (`x-kubernetes-validations`), as far as is possible.

Rules about changes (`oldSelf`) need an object that exists; what cel-python cannot compile or
evaluate is left to the API server. Nothing is reported that did not evaluate to false.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.celtypes import BoolType
from celpy.evaluation import CELEvalError, CELUnsupportedError

Path = tuple[str, ...]


@cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    try:
        return environment.program(environment.compile(rule))
    except (CELParseError, CELUnsupportedError, CELEvalError, ValueError):
        return None


def _fails(rule: str, value: Any) -> bool:
    program = None if "oldSelf" in rule else _program(rule)
    if program is None:
        return False
    try:
        result = program.evaluate({"self": json_to_cel(value)})
    except (CELEvalError, CELUnsupportedError, ValueError, TypeError):
        return False
    return isinstance(result, BoolType) and not result


def broken_rules(schema: Any, value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """(path, what the rule says) of every rule of the schema that the value breaks."""
    if not isinstance(schema, dict):
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        if _fails(rule.get("rule", "true"), value):
            yield path, str(rule.get("message") or rule["rule"])
    if isinstance(value, dict):
        named = schema.get("properties", {})
        for key, part in value.items():
            inner = named.get(key, schema.get("additionalProperties"))
            yield from broken_rules(inner, part, (*path, str(key)))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from broken_rules(schema.get("items"), part, (*path, str(index)))
