"""YAML in and out. Reading refuses duplicate keys; writing is deterministic.

YAML lets the second of two equal keys win silently; that is how a node selector gets lost.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from trnx.eks.errors import YamlError

Manifest = dict[str, Any]

# Values in one file. Aliases of aliases can stand for more than any memory holds.
LARGEST = 200_000


# What a key may look like to be shown: what is longer, or no word, may be a value out of place.
_WORD = re.compile(r"[\w./-]{1,63}|\[key\]")
_QUOTED = re.compile(r"['\"].*['\"]", re.DOTALL)
# Problems that quote the grammar's own marks, or one character.
_GRAMMAR = ("expected ", "found character ")


def shown_key(key: Any) -> str:
    """A key, or a part of a path, as messages may show it."""
    return str(key) if _WORD.fullmatch(str(key)) else "(no word)"


def where_of(error: yaml.YAMLError) -> str:
    """What is wrong with a YAML text and where: never a part of the text, which may be a secret."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "it holds characters that YAML does not take"
    mark = error.problem_mark or error.context_mark
    place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem = error.problem or "it cannot be read"
    if not isinstance(error, _DuplicateKeyError) and not problem.startswith(_GRAMMAR):
        problem = _QUOTED.sub("(not shown)", problem)
    return f"{problem}{place}"


class _DuplicateKeyError(yaml.constructor.ConstructorError):
    """Two equal keys in one mapping; its problem shows nothing but a key."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that raises on a mapping with equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise _DuplicateKeyError(
                    None,
                    None,
                    f"the key {shown_key(key)!r} stands twice in one mapping; remove one of them",
                    key_node.start_mark,
                )
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """SafeDumper without anchors: equal objects are written out where they stand."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def parse(text: str, name: str) -> list[Any]:
    """The documents of a YAML text, empty ones left out; `name` is for messages.

    Raises:
        YamlError: no YAML, or a duplicate key.
    """
    try:
        found = [item for item in yaml.load_all(text, Loader=_UniqueKeyLoader) if item is not None]
    except yaml.YAMLError as error:
        raise YamlError(f"{name} is no valid YAML: {where_of(error)}") from None
    except ValueError:
        # Such as a date of a month 13.
        raise YamlError(f"{name} is no valid YAML: a number or date in it is none") from None
    except RecursionError:
        raise YamlError(f"{name} is nested too deep to be read") from None
    if not _is_small(found):
        raise YamlError(
            f"{name} holds itself, or more than {LARGEST} values, through its aliases (*name); "
            "write out what they stand for"
        )
    return _listed(found)


def _is_small(value: Any) -> bool:
    """Whether the values, with aliases written out, are few enough to be looked at one by one."""
    left, waiting = LARGEST, [value]
    while waiting and left >= 0:
        item = waiting.pop()
        parts = item.values() if isinstance(item, dict) else item
        if isinstance(item, dict | list):
            left -= len(item)
            waiting.extend(part for part in parts if isinstance(part, dict | list))
    return left >= 0


def _listed(found: list[Any]) -> list[Any]:
    """The documents, with the items of a `List` (as kubectl prints several) in its place."""
    flat: list[Any] = []
    for item in found:
        inside = item.get("items") if isinstance(item, dict) else None
        is_list = isinstance(inside, list) and item.get("kind") == "List"
        flat.extend(inside if is_list and inside is not None else [item])
    return flat


def read(path: Path) -> list[Any]:
    """The documents of a file.

    Raises:
        YamlError: not readable, no YAML, or a duplicate key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise YamlError(f"{path} cannot be read: {reason}") from None
    return parse(text, str(path))


def dump(manifests: Iterable[Manifest]) -> str:
    """Multi-document YAML; keys keep the order in which they were built."""
    return yaml.dump_all(
        manifests,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        explicit_start=True,
        width=100,
    )
