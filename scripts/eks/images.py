"""What an image reference says: tag, digest, and the Neuron SDK in the tag of AWS's images."""

from __future__ import annotations

import re
from dataclasses import dataclass

_REFERENCE = re.compile(
    r"(?P<repository>[a-z0-9][a-zA-Z0-9._:/-]*?)"
    r"(:(?P<tag>\w[\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_SDK_IN_TAG = re.compile(r"sdk(\d+)\.(\d+)")


@dataclass(frozen=True)
class Image:
    """A parsed reference."""

    repository: str
    tag: str | None
    digest: str | None

    @property
    def pinned(self) -> bool:
        """Whether two pulls give the same thing, as far as the reference can say."""
        return self.digest is not None or self.tag not in (None, "latest")

    @property
    def sdk(self) -> tuple[int, int] | None:
        """The SDK's (major, minor) that the tag names, or None."""
        found = _SDK_IN_TAG.search(self.tag or "")
        return (int(found[1]), int(found[2])) if found else None


def parse_image(text: str) -> Image | None:
    """The parts of a reference; None where it is no reference."""
    match = _REFERENCE.fullmatch(text)
    if match is None or match["repository"].endswith((":", "/", "-", ".")):
        return None
    # A colon left in the repository is a registry's port, which a path must follow.
    port = match["repository"].partition(":")[2]
    if port and not re.fullmatch(r"\d+/.+", port):
        return None
    return Image(match["repository"], match["tag"], match["digest"])


def parse_sdk(text: str) -> tuple[int, int] | None:
    """(major, minor) of "2.33" or "2.33.0"; None where it is no version."""
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)*", text)
    return (int(found[1]), int(found[2])) if found else None
