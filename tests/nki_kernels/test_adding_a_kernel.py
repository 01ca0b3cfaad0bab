"""The example of docs/adding_a_kernel.md works as written, from outside the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "adding_a_kernel.md"

# What the generic tests ask of a kernel, asked of the guide's.
CHECK = """
import torch, trnx
from trnx import simulator
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

def specs(values):
    return {n: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}

spec = kernels()["cumulative_sum"]
count = 0
for sample in spec.samples(torch.Generator().manual_seed(0)):
    for target in ("trn1", "trn2", "trn3"):
        b = Bindings(specs(sample.values))
        assert spec.supports(b, hardware(target)) is None
        launch = spec.launch(b, hardware(target))
        result = simulator.simulate(launch.kernel, target=target)(*sample.values.values())
        torch.testing.assert_close(
            result, spec.reference(**sample.values), rtol=1.3e-6, atol=1e-5 + sample.error
        )
        count += 1
wide = Bindings(specs({"x": torch.zeros(2, 9000), "dim": 1}))
assert "9000 columns" in spec.supports(wide, hardware("trn2")).reason
print("checked", count)
"""


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_guide_has_the_kernel_and_its_use(blocks: list[str]) -> None:
    assert len(blocks) == 2
    assert blocks[0].startswith("# cumulative_sum.py\n")


def test_example_runs_from_outside_the_package(blocks: list[str], tmp_path: Path) -> None:
    kernel, use = blocks
    (tmp_path / "cumulative_sum.py").write_text(kernel)
    (tmp_path / "use.py").write_text(use + CHECK)
    # A process of its own: the kernel must not stay registered for the other tests.
    done = subprocess.run(
        [sys.executable, "-W", "error", "use.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "checked 15" in done.stdout
