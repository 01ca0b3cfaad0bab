"""The scratch copy of nki-library: `patches/*.patch` are applied there, never in the checkout.

A patch repairs one defect of the snapshot of 2026-04-13. The text before its first `diff` line says
what the defect is (first line) and the evidence. Patches are applied in the order of their names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PATCHES = Path(__file__).resolve().parent / "patches"


@dataclass(frozen=True)
class Applied:
    """What became of a patch: "applied", "already there" (repaired in the checkout), "not needed"
    (the checkout lacks a file that it changes, or has one that it makes) or "does not apply".
    """

    name: str
    defect: str
    state: str


def make_copy(checkout: Path, folder: Path) -> tuple[Path, list[Applied]]:
    """Copy `checkout` into `folder` and patch it: the copy, and what became of each patch."""
    copy = folder / "nki-library"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    patches = sorted(PATCHES.glob("*.patch"))
    return copy, [Applied(patch.name, defect(patch), _apply(patch, copy)) for patch in patches]


def defect(patch: Path) -> str:
    """The first line of a patch."""
    return patch.read_text().partition("\n")[0]


def _apply(patch: Path, copy: Path) -> str:
    text = patch.read_text()
    changed = re.findall(r"^--- a/(.+)$", text, re.MULTILINE)
    made = re.findall(r"^--- /dev/null\n\+\+\+ b/(.+)$", text, re.MULTILINE)
    has = {file: (copy / file).is_file() for file in (*changed, *made)}
    if any(has[file] for file in made) or not all(has[file] for file in changed):
        return "not needed"
    if _git_apply(patch, copy):
        return "applied"
    return "already there" if _git_apply(patch, copy, "--reverse", "--check") else "does not apply"


def _git_apply(patch: Path, copy: Path, *options: str) -> bool:
    # A repository around the scratch folder would make git take the paths for its own.
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(copy.parent)
    command = ["git", "apply", "--whitespace=nowarn", *options, str(patch)]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True).returncode == 0
