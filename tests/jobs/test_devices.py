"""Where a job runs, and with which backend; on Neuron devices on stand-ins for AWS's packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from trnx.errors import FlagError, NeuronStackError
from trnx.jobs.devices import Platform, detect, has_neuron, resolve_backend, trnx_options

FAKES = Path(__file__).parents[1] / "fakes"


def test_neuron_stack_is_found_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_neuron()
    package = tmp_path / "torch_neuronx"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not has_neuron()  # a placeholder, or the PyTorch/XLA build
    (package / "neuron_dynamo_backend").mkdir()
    assert has_neuron()


def test_platform_chooses_the_backend() -> None:
    cpu = Platform(torch.device("cpu"), "gloo")
    neuron = Platform(cast(Any, SimpleNamespace(type="neuron")), "cpu:gloo,neuron:neuron")
    assert detect() == cpu
    assert [resolve_backend("auto", one) for one in (cpu, neuron)] == ["trnx", "neuron"]
    assert [resolve_backend("eager", one) for one in (cpu, neuron)] == ["eager", "eager"]
    with pytest.raises(FlagError, match="native stack"):
        resolve_backend("neuron", cpu)
    assert resolve_backend("trnx", neuron) == "trnx"
    assert trnx_options(cpu, "trn1", "reference") == {"target": "trn1", "runner": "reference"}
    with pytest.raises(FlagError, match="--runner neuron needs torch-neuronx"):
        trnx_options(cpu, None, "neuron")
    with pytest.raises(NeuronStackError, match="is not installed"):  # here
        trnx_options(neuron, None, None)


def test_training_with_trnx_on_a_neuron_device(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stand-ins for AWS's packages: the runner is `neuron`, unless another is asked for."""
    flags = ("--data", str(text), "--sequence-length", "16", "--batch", "2", "--backend", "trnx")

    def started(lnc: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trnx.jobs.train", *flags, "--json", *more],
            env={**os.environ, "PYTHONPATH": str(FAKES), "NEURON_LOGICAL_NC_CONFIG": lnc},
            cwd=tmp_path, capture_output=True, text=True, timeout=600,
        )  # fmt: skip

    done = started("1", "--steps", "1")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert (lines[0]["backend"], lines[0]["device"]) == ("trnx", "neuron")
    assert lines[-1]["nki_share_min"] == 1.0

    monkeypatch.setenv("TRNX_LNC", "1")
    done = started("2")
    assert done.returncode == 1
    assert "NeuronLncError: trnx's kernels are launched on 1" in done.stderr
    assert "export NEURON_LOGICAL_NC_CONFIG=1" in done.stderr
    assert "Traceback" not in done.stderr

    done = started("2", "--steps", "1", "--runner", "reference")  # needs no device
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["device"] == "cpu"


_ENDS = """
import atexit, sys
from trnx.jobs.devices import end_rank

class Kept:
    def __del__(self):
        print("teardown")

kept = Kept()
atexit.register(print, "at exit")
print("work")
end_rank(75)
"""


@pytest.mark.parametrize(
    ("world", "expected"), [("2", "work\nat exit\n"), (None, "work\nat exit\nteardown\n")]
)
def test_rank_of_several_ends_without_teardown(world: str | None, expected: str) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "WORLD_SIZE"}
    environ |= {"WORLD_SIZE": world} if world else {}
    run = subprocess.run(
        [sys.executable, "-c", _ENDS], env=environ, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (75, expected), run.stderr
