"""The rule about secrets: none stands in a manifest, for all to read who may read the object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.pod_views import Stream
from trnx.eks.reading import items, mapping, text, title
from trnx.eks.redaction import secret_words
from trnx.eks.secret_forms import has_secret_form, is_secret, is_secret_name, redact

_FIX = "put it into a Secret, and name that in `secrets` (envFrom); AWS: a service account"
_STANDS = "a secret stands in the manifest, for all to read who may read the object"
_LINES = ("command", "args")
Place = tuple[str, ...]


def _variables(container: Manifest, path: Place) -> Iterator[Place]:
    for index, variable in enumerate(items(container, "env")):
        name = text(variable, "name")
        if is_secret(name, text(variable, "value")):
            yield (*path, "env", str(index), f"name ({name})")


def _words(container: Manifest, path: Place) -> Iterator[Place]:
    for key in _LINES:
        line = container.get(key)
        if isinstance(line, list):
            for index in secret_words([str(word) for word in line]):
                yield (*path, key, str(index))


def _secret_places(value: Any, path: Place) -> Iterator[Place]:
    """Fields that hold a secret: by name in variables, commands and annotations, else by form."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _secret_places(item, (*path, str(index)))
    elif isinstance(value, dict):
        yield from _variables(value, path)
        yield from _words(value, path)
        for key, item in value.items():
            if key == "env" and isinstance(item, list):
                continue
            by_name = path[-1:] == ("annotations",) and is_secret_name(str(key))
            noted = path[-1:] == ("annotations",) and isinstance(item, str)
            if isinstance(item, str) and (by_name or (noted and redact(item) != item)):
                yield (*path, shown_key(key))
            elif key not in _LINES:
                yield from _secret_places(item, (*path, shown_key(key)))
    elif isinstance(value, str) and has_secret_form(value):
        yield path


def _kept_in_file(manifest: Manifest) -> Iterator[Finding]:
    """A Secret's values, or a ConfigMap's that are secrets."""
    kind = text(manifest, "kind")
    for part in ("data", "stringData"):
        for key, value in mapping(manifest, part).items():
            is_hidden = kind == "Secret" or is_secret(str(key), str(value))
            if value and is_hidden:
                yield Finding(
                    "secret-in-file" if kind == "Secret" else "plain-secret",
                    f"{title(manifest)} {part}.{shown_key(key)}",
                    "the value stands in this file (base64 hides nothing)",
                    "keep it out of files: External Secrets, Secrets Store CSI or `kubectl create "
                    "secret` from a secret manager",
                )


def no_secrets(stream: Stream) -> Iterator[Finding]:
    """One finding for each field that holds a secret."""
    for manifest in stream.manifests:
        if text(manifest, "kind") in ("Secret", "ConfigMap"):
            yield from _kept_in_file(manifest)
            continue
        for place in dict.fromkeys(_secret_places(manifest, ())):
            yield Finding("plain-secret", f"{title(manifest)} {'.'.join(place)}", _STANDS, _FIX)
