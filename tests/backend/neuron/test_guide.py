"""The first model of `docs/trainium.md` runs as it stands there, on the fakes and without them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "trainium.md"


def _first_model() -> str:
    found = re.search(r"python - <<'END'\n(.*?)^END$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


def _output(code: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_on_the_device(fakes_environment: dict[str, str]) -> None:
    shown = _output(_first_model(), fakes_environment)
    assert "runner neuron (runner='auto': TorchNeuron 2.13.3 and a device)" in shown
    assert "100.0 % of FLOPs" in shown


def test_in_host_memory(fakes_environment: dict[str, str]) -> None:
    code = _first_model().replace('.to("neuron")', "")
    shown = _output(code, {**fakes_environment, "PYTHONPATH": ""})
    assert "runner simulator (runner='auto': TorchNeuron (torch-neuronx) is not installed" in shown
