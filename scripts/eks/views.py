"""A report as text, as SARIF 2.1.0 (code scanning), and as annotations of GitHub Actions.

Lines are found again in the file's YAML by the path that a finding names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from trnx.eks.errors import Finding
from trnx.eks.levels import Level, level_of
from trnx.eks.rule_names import RULES, page_of

_SARIF = {Level.ERROR: "error", Level.WARNING: "warning", Level.ADVICE: "note"}
_GITHUB = {Level.ERROR: "error", Level.WARNING: "warning", Level.ADVICE: "notice"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def _child(node: yaml.Node, part: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == part:
                return value if isinstance(value, yaml.Node) else None
    if isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
        found: yaml.Node = node.value[int(part)]
        return found
    return None


def _documents(text: str) -> list[yaml.Node]:
    try:
        found = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node]
    except yaml.YAMLError:
        return []
    flat: list[yaml.Node] = []
    for node in found:
        inside = _child(node, "items")
        flat += inside.value if isinstance(inside, yaml.SequenceNode) else [node]
    return flat


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _title(node: yaml.Node) -> str:
    meta = _child(node, "metadata")
    names = [_scalar(_child(meta, key)) for key in ("name", "generateName")] if meta else [""]
    return f"{_scalar(_child(node, 'kind')) or '?'}/{next(filter(None, names), '?')}"


def line_of(text: str, field: str) -> int:
    """The line, from 1, of the field that a finding names; as near as it can be found."""
    title, _, path = field.partition(" ")
    nodes = _documents(text)
    node = next((item for item in nodes if _title(item) == title), None)
    if node is None:
        node, path = (nodes[0], field) if len(nodes) == 1 else (None, "")
    if node is None:
        return 1
    # Keys may hold dots, as those of annotations do.
    parts = path.partition(" ")[0].split(".")
    while parts:
        for length in range(len(parts), 0, -1):
            inner = _child(node, ".".join(parts[:length]))
            if inner is not None:
                node, parts = inner, parts[length:]
                break
        else:
            break
    return int(node.start_mark.line) + 1


def as_text(findings: Sequence[Finding]) -> Iterator[str]:
    """One finding after the other, the gravest first."""
    for level in Level:
        for finding in findings:
            if finding.level == level:
                yield f"{level}: {finding}"


def as_sarif(findings: Sequence[Finding], file: str, text: str) -> dict[str, Any]:
    """A log of one run, with the rules that were broken."""
    rules = [
        {
            "id": rule,
            "shortDescription": {"text": RULES[rule]},
            "help": {"text": page_of(rule)},
            "defaultConfiguration": {"level": _SARIF[level_of(rule)]},
        }
        for rule in sorted({finding.rule for finding in findings})
    ]
    results = [
        {
            "ruleId": finding.rule,
            "level": _SARIF[finding.level],
            "message": {"text": f"{finding.field}: {finding.message}. Fix: {finding.fix}"},
            "locations": [_location(file, line_of(text, finding.field))],
        }
        for finding in findings
    ]
    driver = {"name": "trnx eks validate", "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _location(file: str, line: int) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": file}, "region": {"startLine": line}}
    return {"physicalLocation": place}


def _escaped(text: str, *, property_value: bool = False) -> str:
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(character, code)
    return text.replace(":", "%3A").replace(",", "%2C") if property_value else text


def as_github(findings: Sequence[Finding], file: str, text: str) -> Iterator[str]:
    """Workflow commands, which GitHub shows beside the lines of a pull request."""
    for finding in findings:
        place = f"file={_escaped(file, property_value=True)},line={line_of(text, finding.field)}"
        title = _escaped(f"{finding.rule} {finding.field}", property_value=True)
        said = _escaped(f"{finding.message}\nfix: {finding.fix}")
        yield f"::{_GITHUB[finding.level]} {place},title={title}::{said}"
