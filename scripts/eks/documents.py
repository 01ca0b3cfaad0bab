"""YAML in and out. Reading refuses duplicate keys; writing is deterministic.

YAML lets the second of two equal keys win silently; that is how a node selector gets lost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from trnx.eks.errors import YamlError

Manifest = dict[str, Any]


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that raises on a mapping with equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key!r} stands twice in one mapping; remove one of them",
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
        return [item for item in yaml.load_all(text, Loader=_UniqueKeyLoader) if item is not None]
    except yaml.YAMLError as error:
        raise YamlError(f"{name} is no valid YAML: {error}") from error


def read(path: Path) -> list[Any]:
    """The documents of a file.

    Raises:
        YamlError: not readable, no YAML, or a duplicate key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise YamlError(f"{path} cannot be read: {error}") from error
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
