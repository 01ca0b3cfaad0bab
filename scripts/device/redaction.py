"""What leaves the machine in an archive: no paths of a home, no names of user and host, no
addresses, no identifiers of AWS, and no value of a variable that is named like a secret."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_SHAPES = (
    (re.compile(r"\b(?:i|vpc|subnet|sg|eni|ami|vol)-[0-9a-f]{8,17}\b"), "<aws id>"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), "<aws key>"),
    (re.compile(r"\barn:aws[^\s\"']*"), "<arn>"),
    (re.compile(r"\bip-(?:\d{1,3}-){3}\d{1,3}\b"), "<host>"),
    # Not of those that begin with 0, 1 or 2, which are versions.
    (re.compile(r"(?<![\w.])(?![012]\.)(?:\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    (re.compile(r"(/home|/Users)/[^/\s\"']+"), r"\1/<user>"),
)
# A user of one of these names is nobody, and the words are everywhere.
_COMMON = frozenset({"root", "user", "ubuntu", "ec2-user", "trnx"})


def _known() -> Iterator[tuple[str, str]]:
    """What this machine calls its user, itself and its secrets, longest first."""
    found = {
        value: f"<{name}>"
        for name, value in os.environ.items()
        if _SECRET.search(name) and len(value) >= 6
    }
    home, host = str(Path.home()), socket.gethostname()
    if home != "/":
        found[home] = "~"
    if len(host) > 3:
        found[host] = "<host>"
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a process without an entry among the users
        user = ""
    if len(user) > 2 and user not in _COMMON:
        found[user] = "<user>"
    yield from sorted(found.items(), key=lambda item: -len(item[0]))


def redacted(value: Any) -> Any:
    """JSON with every string cleaned."""
    known = list(_known())

    def clean(item: Any) -> Any:
        if isinstance(item, str):
            for text, instead in known:
                item = item.replace(text, instead)
            for shape, instead in _SHAPES:
                item = shape.sub(instead, item)
            return item
        if isinstance(item, dict):
            return {clean(key): clean(member) for key, member in item.items()}
        if isinstance(item, (list, tuple)):
            return [clean(member) for member in item]
        return item

    return clean(value)
