"""`trnx check-kernels`: good kernels pass, wrong ones are named, AWS's simulator is compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.backend.kernel_checks import samples
from trnx.backend.kernel_checks.samples import check_kernels
from trnx.backend.kernel_samples import difference
from trnx.errors import KernelCheckError
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Sample

HEAD = """
import nki, nki.isa as nisa, nki.language as nl
import torch, trnx
from trnx.nki_kernels.spec import Cost, KernelSpec, Pattern, Sample
from trnx.simulator.errors import Reject

def samples(generator):
    yield Sample({"x": torch.randn(4, 8, generator=generator)}, "small")
    yield Sample({"x": torch.randn(129, 8, generator=generator)}, "129 rows")

def supports(b, hw):
    return None if b.x.shape[0] <= 128 else Reject(f"{b.x.shape[0]} rows")

def add(name, kernel, reference):
    pattern = lambda x: torch.ops.aten.erfinv.default(x)
    trnx.register_kernel(KernelSpec(
        name, (Pattern(pattern),), supports, reference, lambda b: Cost(), samples, kernel))
"""

KERNEL = """
@nki.jit
def {name}(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    {load}
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0={factor})
    nisa.dma_copy(dst=out, src=tile)
    return out

add("{name}", {name}, lambda x: x * 2)
"""
LOAD = "nisa.dma_copy(dst=tile, src=x)"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """Where a test writes its kernels, which leave the registry with it."""
    file = (tmp_path / "own.py").resolve()
    yield file
    registry.kernels().replace(file, ())


def _write(file: Path, *kernels: dict[str, Any]) -> None:
    file.write_text(HEAD + "".join(KERNEL.format(**{"load": LOAD, **k}) for k in kernels))


def test_good_and_wrong_kernels(own: Path) -> None:
    _write(
        own,
        {"name": "check_good", "factor": 2.0},
        {"name": "check_wrong", "factor": 2.5},
        {"name": "check_unread", "factor": 2.0, "load": ""},
    )
    found = check_kernels("trn2", [own])
    assert not found.ok
    told = {(s.kernel, s.note): (s.status, s.message) for s in found.samples}
    assert told["check_good", "small"] == ("ok", "")
    assert told["check_good", "129 rows"] == ("refused", "129 rows")
    assert "values differ by up to" in told["check_wrong", "small"][1]
    assert "UninitialisedReadError" in told["check_unread", "small"][1]
    assert {sample.kernel for sample in found.failed} == {"check_wrong", "check_unread"}
    assert "nki.simulate" not in found.simulators


def test_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file it is the registry's kernels; the whole of it takes half a minute."""
    names = {"softmax", "embedding"}
    chosen = [spec for spec in registry.kernels() if spec.name in names]
    monkeypatch.setattr(samples, "kernels", lambda: chosen)
    for target in ("trn1", "trn3"):
        found = check_kernels(target)
        assert found.ok
        assert {sample.kernel for sample in found.samples} == names
        assert found.target == target


def test_files_without_kernels(tmp_path: Path) -> None:
    with pytest.raises(KernelCheckError, match="is no file"):
        check_kernels("trn2", [tmp_path / "nothing.py"])
    (tmp_path / "empty.py").write_text("import torch\n")
    with pytest.raises(KernelCheckError, match="registers no kernel"):
        check_kernels("trn2", [tmp_path / "empty.py"])


def test_command(own: Path) -> None:
    _write(own, {"name": "check_wrong", "factor": 2.5})
    command = [sys.executable, "-m", "trnx.cli", "check-kernels", str(own)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ok"] is False


@pytest.mark.parametrize(
    ("found", "wanted", "is_close"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), True),
        (torch.tensor([1.0, 2.1]), torch.tensor([1.0, 2.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([float("inf")]), torch.tensor([-float("inf")]), False),
        (torch.tensor([float("nan")]), torch.tensor([1.0]), False),
        (torch.tensor([1], dtype=torch.uint8), torch.tensor([True]), True),
        (torch.tensor([5, 0], dtype=torch.int32), torch.tensor([5]), False),
        (torch.tensor([[5, 0]], dtype=torch.int32), torch.tensor([5]), True),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), False),
        (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0]), False),
        (torch.empty(0), torch.empty(0), True),
        ((torch.ones(1), torch.ones(1)), torch.ones(1), False),
    ],
)
def test_difference(found: Any, wanted: Any, is_close: bool) -> None:
    assert (difference(found, wanted, Sample({"x": torch.ones(2)})).problem == "") == is_close
