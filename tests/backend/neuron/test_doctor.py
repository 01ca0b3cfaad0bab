"""`trnx doctor` on this machine and on faked ones: the diagnosis, and the command that mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trnx.backend.neuron.doctor import Check, Diagnosis, Machine, examine
from trnx.backend.neuron.stack import Stack
from trnx.cli import app

GOOD = Stack(
    kind="native",
    version="2.13.3",
    torch_version="2.13.0",
    python=(3, 12),
    nki="native",
    nki_version="0.7.0",
    nodes=("/dev/neuron0",),
    opened=("/dev/neuron0",),
    lnc="1",
)
NONE = Stack(kind="none", torch_version="2.13.0")
_VERSIONS = {"torch": "2.13.0", "jax": "0.10", "jaxlib": "0.10", "neuronx-cc": "2.28"}


def machine(
    root: Path,
    stack: Stack,
    *,
    instance: str = "",
    driver: bool = False,
    lnc: str = "",
    asked: str = "",
    python: tuple[int, int] = (3, 12),
    versions: dict[str, str] | None = None,
    compiler: str | None = None,
    runtime: bool = False,
) -> Machine:
    """A machine with these parts; files lie under `root`."""
    files = {}
    if instance:
        files["sys/devices/virtual/dmi/id/sys_vendor"] = "Amazon EC2"
        files["sys/devices/virtual/dmi/id/product_name"] = instance
    if driver:
        files["sys/module/neuron/version"] = "2.24.7"
    if runtime:
        files["opt/aws/neuron/lib/libnrt.so.1"] = ""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    have = _VERSIONS if versions is None else versions
    return Machine(
        root,
        {"NEURON_LOGICAL_NC_CONFIG": lnc, "TRNX_LNC": asked},
        python,
        stack,
        lambda name: have.get(name, ""),
        lambda: compiler,
    )


def trn2(root: Path, stack: Stack = GOOD, **changed: Any) -> Machine:
    """A Trn2 instance where everything is right, but for what `changed` says."""
    parts = {
        "instance": "trn2.48xlarge", "driver": True, "lnc": "1", "compiler": "/venv/bin/neuronx-cc",
        "runtime": True,
    }  # fmt: skip
    return machine(root, stack, **{**parts, **changed})


def problems(found: Diagnosis) -> dict[str, Check]:
    return {check.name: check for check in found.checks if check.status == "problem"}


Case = tuple[Callable[[Path], Machine], dict[str, str], str]
# Environment -> problems with a part of their fix, and the runner that auto chooses.
CASES: dict[str, Case] = {
    "laptop": (lambda r: machine(r, NONE), {}, "simulator"),
    "any EC2 instance": (lambda r: machine(r, NONE, instance="m7i.large"), {}, "simulator"),
    "Trn2 as it should be": (lambda r: trn2(r), {}, "neuron"),
    "Trn3 as it should be": (lambda r: trn2(r, instance="trn3.48xlarge"), {}, "neuron"),
    "bare Trn2": (
        lambda r: machine(r, NONE, instance="trn2.3xlarge"),
        {
            "neuron stack": "install torch-neuronx",
            "driver": "modprobe neuron",
            "devices": "modprobe neuron",
        },
        "simulator",
    ),
    "placeholders": (
        lambda r: machine(r, replace(NONE, kind="placeholder", version="0.1")),
        {"neuron stack": "pip uninstall -y torch-neuronx"},
        "simulator",
    ),
    "XLA era on Trn2": (
        lambda r: trn2(r, replace(GOOD, kind="xla", version="2.9.0")),
        {"neuron stack": "python -m venv neuron"},
        "simulator",
    ),
    "XLA era on Trn1": (
        lambda r: trn2(r, replace(GOOD, kind="xla", version="2.9.0"), instance="trn1.2xlarge"),
        {},
        "simulator",
    ),
    "torch does not fit": (
        lambda r: trn2(r, replace(GOOD, torch_version="2.14.0")),
        {"neuron stack": 'pip install "torch==2.13.*"'},
        "simulator",
    ),
    "Python too old for TorchNeuron": (
        lambda r: trn2(r, replace(GOOD, python=(3, 11), has_python=False)),
        {"neuron stack": "python3.12 -m venv"},
        "simulator",
    ),
    "Python too old for trnx": (
        lambda r: machine(r, NONE, python=(3, 9)), {"python": "python3.14 -m venv"}, "simulator",
    ),
    "torch too old for trnx": (
        lambda r: machine(r, NONE, versions={"torch": "2.7.1"}),
        {"torch": 'pip install "torch>=2.13'},
        "simulator",
    ),
    "no torch": (
        lambda r: machine(r, NONE, versions={}), {"torch": "pip install"}, "simulator",
    ),
    "no nki": (
        lambda r: trn2(r, replace(GOOD, nki="placeholder")),
        {"neuron stack": "pip uninstall -y nki"},
        "simulator",
    ),
    "driver is not loaded": (
        lambda r: trn2(r, replace(GOOD, nodes=(), opened=()), driver=False),
        {"driver": "aws-neuronx-dkms", "devices": "sudo modprobe neuron"},
        "simulator",
    ),
    "no right to the devices": (
        lambda r: trn2(r, replace(GOOD, opened=())),
        {"devices": "ls -l /dev/neuron0"},
        "simulator",
    ),
    "logical cores of two": (lambda r: trn2(r, lnc="2"), {}, "neuron"),
    "kernels for one core of two": (
        lambda r: trn2(r, lnc="2", asked="1"),
        {"logical cores": "unset TRNX_LNC, or export NEURON_LOGICAL_NC_CONFIG=1"},
        "neuron",
    ),
    "the same, by the runtime's default": (
        lambda r: trn2(r, lnc="", asked="1"),
        {"logical cores": "unset TRNX_LNC"},
        "neuron",
    ),
    "no compiler, no runtime": (
        lambda r: trn2(r, compiler=None, runtime=False),
        {"graph compiler": "neuronx-cc", "runtime": "aws-neuronx-runtime-lib"},
        "neuron",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_environment(tmp_path: Path, name: str) -> None:
    make, expected, runner = CASES[name]
    found = examine(make(tmp_path))
    wrong = problems(found)
    assert set(wrong) == set(expected)
    assert all(fix in wrong[check].fix for check, fix in expected.items())
    assert found.is_well is not bool(expected)
    assert found.runner == runner
    # What is no problem asks for nothing, but for a note.
    assert not any(check.fix for check in found.checks if check.status == "ok")
    json.dumps(found.to_dict())


def test_there_are_at_least_twelve() -> None:
    assert len(CASES) >= 12


def test_trn1_is_told_apart(tmp_path: Path) -> None:
    found = examine(CASES["XLA era on Trn1"][0](tmp_path))
    notes = {check.name: check.found for check in found.checks if check.status == "note"}
    assert "TorchNeuron does not run on it" in notes["instance"]
    assert "predecessor" in notes["neuron stack"]


def test_xla_is_a_note(tmp_path: Path) -> None:
    found = examine(machine(tmp_path, NONE, versions={"torch": "2.13.0"}))
    assert [c.fix for c in found.checks if c.name == "xla"] == ["pip install 'trnx[xla]'"]
    assert found.is_well


def test_a_cache_that_others_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    wrong = problems(examine(machine(tmp_path, NONE)))
    assert list(wrong) == ["cache"]
    assert "can be changed by other users" in wrong["cache"].found
    assert "XDG_CACHE_HOME" in wrong["cache"].fix


def test_a_simulator_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise RuntimeError("broken")

    monkeypatch.setattr("trnx.backend.neuron.probe.traced_instructions", fails)
    wrong = problems(examine(machine(tmp_path, NONE)))
    assert wrong["simulator"].found == "RuntimeError: broken"


def test_the_variable_of_torch_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    examine()
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in os.environ


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    well, ill = examine(machine(tmp_path, NONE)), examine(machine(tmp_path, NONE, python=(3, 9)))
    for found, status in ((well, 0), (ill, 1)):
        monkeypatch.setattr("trnx.backend.neuron.doctor.examine", lambda found=found: found)
        shown = CliRunner().invoke(app, ["doctor"])
        assert shown.exit_code == status
        assert "runner='auto' is simulator" in shown.stdout
        as_json = CliRunner().invoke(app, ["doctor", "--json"])
        assert as_json.exit_code == status
        assert json.loads(as_json.stdout.splitlines()[-1])["ok"] is (status == 0)


def test_it_loads_none_of_the_packages_that_are_installed(
    fakes_environment: dict[str, str],
) -> None:
    code = (
        "import sys; from trnx.backend.neuron.doctor import examine; found = examine(); "
        "print(found); print([m for m in sys.modules if m.startswith(('torch_neuronx', 'nki'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=fakes_environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TorchNeuron 2.13.3, nki 0.7.0" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
