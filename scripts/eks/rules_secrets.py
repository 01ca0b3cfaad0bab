"""The rule about secrets: none stands in a manifest, for all to read who may read the object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trnx.eks.documents import Manifest, shown_key
from trnx.eks.errors import Finding
from trnx.eks.levels import Level, level_of
from trnx.eks.pod_views import Stream
from trnx.eks.reading import items, mapping, text, title
from trnx.eks.redaction import secret_words
from trnx.eks.secret_forms import has_secret_form, is_secret, redact

_FIX = "put it into a Secret, and name that in `secrets` (envFrom); AWS: a service account"
_STANDS = "a secret stands in the manifest, for all to read who may read the object"
_LINES = ("command", "args")
# Lists of {name, value}.
_PAIRS = ("env", "httpHeaders")
# Fields whose text is a script, an address, or options of a mount.
_TEXTS = ("endpoint", "mountOptions", "path", "storageUri", "uri", "url", "userData", "workingDir")
# Mappings of names that are the user's own.
_FREE = ("annotations", "options", "parameters", "tags", "volumeAttributes")
Place = tuple[str, ...]


def _variables(container: Manifest, path: Place) -> Iterator[Place]:
    for key in _PAIRS:
        for index, variable in enumerate(items(container, key)):
            name, value = text(variable, "name"), text(variable, "value")
            if is_secret(name, value) or redact(value) != value:
                yield (*path, key, str(index), f"name ({shown_key(name)})")


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
            if key in _PAIRS and isinstance(item, list):
                continue
            if isinstance(item, str) and _is_noted(str(key), item, path[-1] if path else ""):
                yield (*path, shown_key(key))
            elif key not in _LINES:
                yield from _secret_places(item, (*path, shown_key(key)))
    elif isinstance(value, str) and (
        has_secret_form(value) or (path[-2:-1] == ("mountOptions",) and redact(value) != value)
    ):
        yield path


def _is_noted(key: str, item: str, above: str) -> bool:
    """Whether a field's text holds a secret by its name, or somewhere inside."""
    if above in _FREE and is_secret(key, item):
        return True
    if above == "annotations" or key in _TEXTS:
        return redact(item) != item or (above == "annotations" and _is_object_with_secret(item))
    return False


def _is_object_with_secret(noted: str) -> bool:
    """`kubectl apply` keeps the whole object in an annotation, as JSON."""
    if not noted.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(noted)
    except ValueError:
        return False
    return any(True for _ in _secret_places(found, ()))


def _kept_in_file(manifest: Manifest) -> Iterator[Finding]:
    """A Secret's values, or a ConfigMap's that are secrets."""
    kind = text(manifest, "kind")
    for part in ("data", "stringData"):
        for key, value in mapping(manifest, part).items():
            is_hidden = kind == "Secret" or is_secret(str(key), str(value))
            told = kind != "Secret" and isinstance(value, str) and redact(value) != value
            if value and (is_hidden or told):
                rule = "secret-in-file" if kind == "Secret" else "plain-secret"
                yield Finding(
                    rule,
                    f"{title(manifest)} {part}.{shown_key(key)}",
                    "the value stands in this file (base64 hides nothing)",
                    "keep it out of files: External Secrets, Secrets Store CSI or `kubectl create "
                    "secret` from a secret manager",
                    # Inside of a script or a file of settings it may be an example.
                    level_of(rule) if is_hidden else Level.WARNING,
                )


def no_secrets(stream: Stream) -> Iterator[Finding]:
    """One finding for each field that holds a secret."""
    for manifest in stream.manifests:
        if text(manifest, "kind") in ("Secret", "ConfigMap"):
            yield from _kept_in_file(manifest)
            continue
        for place in dict.fromkeys(_secret_places(manifest, ())):
            yield Finding("plain-secret", f"{title(manifest)} {'.'.join(place)}", _STANDS, _FIX)
