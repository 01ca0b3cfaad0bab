"""The Pythons and torches that trnx supports; anything else is refused with the fix."""

from __future__ import annotations

import re
import sys

import torch

from trnx.backend.errors import UnsupportedVersionError
from trnx.backend.supported import PYTHON, TORCH, Version


def _shown(version: Version) -> str:
    return ".".join(map(str, version))


def _check(name: str, found: Version, supported: tuple[Version, Version], fix: str) -> None:
    first, last = supported
    if not first <= found <= last:
        raise UnsupportedVersionError(
            f"{name} {_shown(found)} is not supported by trnx, which needs {_shown(first)} to "
            f"{_shown(last)}: {fix}"
        )


def check_versions(
    python: Version = sys.version_info[:2], torch_version: str = torch.__version__
) -> None:
    """Raises UnsupportedVersionError for a Python or torch outside the supported ranges."""
    _check("Python", python, PYTHON, "create the environment with one of these")
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    first, (major, minor) = TORCH
    newer = _shown((major, minor + 1))
    _check("torch", numbers, TORCH, f'pip install "torch>={_shown(first)},<{newer}"')
