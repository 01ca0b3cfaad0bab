"""The Dockerfiles, without docker: what they copy suffices, nobody is root, no secrets."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts/eks/containers"
FILES = sorted(FOLDER.glob("Dockerfile.*[a-z]"))
FILES = [path for path in FILES if path.suffix != ".dockerignore"]
KNOWN = {"ARG", "FROM", "USER", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

Instructions = list[tuple[str, str]]

_spec = importlib.util.spec_from_file_location("recipe", ROOT / "scripts" / "install" / "recipe.py")
assert _spec is not None
assert _spec.loader is not None
recipe = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recipe)
instructions: Callable[[str], Instructions] = recipe.instructions


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Instructions:
    path: Path = request.param
    return instructions(path.read_text())


def test_there_is_one_for_neuron_and_one_for_cpu() -> None:
    assert [path.name for path in FILES] == ["Dockerfile.cpu", "Dockerfile.neuron"]
    assert all(path.with_name(f"{path.name}.dockerignore").is_file() for path in FILES)


def test_instructions_are_known_and_the_base_is_an_argument(dockerfile: Instructions) -> None:
    assert {name for name, _ in dockerfile} <= KNOWN
    assert dockerfile[0][0] == "ARG"
    assert dockerfile[0][1].startswith("BASE_IMAGE")
    assert dockerfile[1] == ("FROM", "${BASE_IMAGE}")


def test_the_neuron_base_has_no_default() -> None:
    text = (FOLDER / "Dockerfile.neuron").read_text()
    assert instructions(text)[0] == ("ARG", "BASE_IMAGE")


def test_nobody_is_root_at_the_end(dockerfile: Instructions) -> None:
    users = [rest for name, rest in dockerfile if name == "USER"]
    assert users[-1] == "1000:1000"
    last = max(index for index, (name, _) in enumerate(dockerfile) if name == "USER")
    assert all(name not in ("RUN", "COPY") for name, _ in dockerfile[last:])


def test_no_secrets_no_latest_no_downloads_by_hand(dockerfile: Instructions) -> None:
    for name, rest in dockerfile:
        assert ":latest" not in rest
        assert not re.search(r"\b(curl|wget|sudo|chmod 777)\b", rest)
        assert "--no-cache-dir" in rest or "pip install" not in rest
        if name in ("ARG", "ENV"):
            assert not re.search(r"TOKEN|PASSWORD|SECRET|_KEY", rest.upper())


def test_commands_and_extras_exist(dockerfile: Instructions) -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    for name, rest in dockerfile:
        for found in re.findall(r"'\.\[([a-z,]+)\]'", rest):
            assert set(found.split(",")) <= extras
        if name == "CMD":
            words = json.loads(rest)
            if words[:2] == ["python", "-m"]:
                package, _, module = words[2].rpartition(".")
                folder = ROOT / PROJECT["tool"]["setuptools"]["package-dir"][package]
                assert (folder / f"{module}.py").is_file()
            else:
                assert words[0] in PROJECT["project"]["scripts"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_copied_suffices_for_the_package(path: Path, tmp_path: Path) -> None:
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    source.mkdir()
    wheels.mkdir()
    recipe.copy(path, instructions(path.read_text()), source)
    build = f"from setuptools import build_meta as b; b.build_wheel({str(wheels)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.iterdir()
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"trnx/eks/cache_run.py", "trnx/jobs/train.py", "trnx/eks/cluster/api.py"} <= names
    assert {"trnx/backend/entry.py", "trnx/simulator/isa/tensor.py"} <= names


def test_the_group_of_volumes_is_the_user_s() -> None:
    from trnx.eks.pods import GROUP

    assert GROUP == 1000
