"""Nothing of trnx imports AWS's packages by accident: an import may claim the cores of a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAKES = Path(__file__).parents[2] / "fakes"

# Runs before the code of a use: the name of every module of AWS's that is executed. To look for a
# package (`find_spec`) executes nothing.
_WATCH = """
import sys

def watched(event, args):
    if event == "import" and args[0].partition(".")[0] in ("torch_neuronx", "nki", "neuronxcc"):
        print("IMPORTED", args[0])

sys.addaudithook(watched)
"""

_USES = """
import torch, trnx, trnx.errors, trnx.backend.entry, trnx.cli
from trnx.backend.neuron.stack import find_stack
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator import TensorSpec, trace
from trnx.simulator.hardware import hardware

find_stack().problem()
layer = torch.nn.Linear(8, 8)
assert "runner: simulator" in str(trnx.explain(layer, torch.ones(2, 8)))
with torch.no_grad():
    torch.compile(layer, backend="trnx")(torch.ones(2, 8))
assert trnx.report.last().runner == "simulator"
spec = next(k for k in kernels() if k.name == "softmax")
sample = next(iter(spec.samples(torch.Generator().manual_seed(0))))
made = {n: TensorSpec.of(v) if hasattr(v, "dtype") else v for n, v in sample.values.items()}
launch = spec.launch(Bindings(made), hardware("trn2"))
assert trace(launch.kernel, launch.arguments).instruction_count
"""


def _output(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{_WATCH}{code}\nprint('DONE')"],
        env={"PATH": "", "HOME": str(Path.home()), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "DONE" in done.stdout
    return done.stdout


# torch's own loading of installed devices is the user's choice; here it would hide what trnx does.
_INSTALLED = {"PYTHONPATH": str(FAKES), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.mark.parametrize("variables", [{}, _INSTALLED], ids=["absent", "installed"])
def test_nothing_imports_them(variables: dict[str, str]) -> None:
    assert "IMPORTED" not in _output(_USES, **variables)


def test_an_import_would_be_seen() -> None:
    assert "IMPORTED nki" in _output("import nki", **_INSTALLED)
