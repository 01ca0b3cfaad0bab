"""quickstart.sh, test.sh and test_install.sh fail with a message that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# What the scripts call before there is a Python.
TOOLS = ("bash", "dirname", "df", "awk", "cat", "sha256sum", "grep", "sed", "rm")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the scripts and what they read, but no .venv."""
    (tmp_path / "scripts").mkdir()
    for name in ("_env.sh", "quickstart.sh", "test.sh", "test_install.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(SCRIPTS.parent / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the basic tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def run(script: str, checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(checkout / "scripts" / script)],
        env={"HOME": str(checkout), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def fake(folder: Path, name: str, body: str) -> None:
    """An executable shell script in `folder`, in place of what is there."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("script", ["quickstart.sh", "test.sh", "test_install.sh"])
def test_no_python_is_said(script: str, checkout: Path, tools: Path) -> None:
    done = run(script, checkout, PATH=str(tools))
    assert done.returncode == 1
    assert "no Python 3.11, 3.12, 3.13 or 3.14 found" in done.stderr
    assert "apt install python3 python3-venv" in done.stderr


def test_an_old_python_is_not_taken(checkout: Path, tools: Path) -> None:
    fake(tools, "python3", "exit 1")
    done = run("quickstart.sh", checkout, PATH=str(tools))
    assert done.returncode == 1
    assert "PYTHON=/path/to/python3.12" in done.stderr


def test_a_full_disk_is_said(checkout: Path, tools: Path) -> None:
    fake(tools, "python3", "exit 0")
    fake(tools, "df", "printf 'Filesystem blocks used free\\n/ 1000 900 100000 90%% /\\n'")
    done = run("quickstart.sh", checkout, PATH=str(tools))
    assert done.returncode == 1
    assert "97 MB free" in done.stderr
    assert not (checkout / ".venv").exists()


def test_no_network_is_said(checkout: Path) -> None:
    empty = checkout / "wheels"
    empty.mkdir()
    done = run(
        "quickstart.sh",
        checkout,
        PATH=os.environ["PATH"],
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(empty),
        PIP_CONFIG_FILE=os.devnull,
    )
    assert done.returncode == 1
    assert "pip could not install" in done.stderr
    assert "PIP_FIND_LINKS=folder PIP_NO_INDEX=1" in done.stderr
    assert not list((checkout / ".venv").glob(".trnx-*")), "no stamp after a failed installation"
