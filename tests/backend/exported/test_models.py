"""Models, exported, and loaded in a fresh process: equal eager, and nothing is made twice."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import trnx
from trnx.backend.demo import load as load_demo

transformers = pytest.importorskip("transformers", reason="needs the extra demo")
FRESH = Path(__file__).parent / "fresh.py"


def _fresh(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """What `fresh.py` saw of the model, exported to `folder`."""
    with torch.no_grad():
        expected = dict(model(*args, **kwargs))
        exact = dict(copy.deepcopy(model).double()(*args, **kwargs))
    trnx.export(model, args, folder, kwargs=kwargs)
    saved = {"args": args, "kwargs": dict(kwargs), "expected": expected, "exact": exact}
    torch.save(saved, folder.with_suffix(".saved"))
    done = subprocess.run(
        [sys.executable, str(FRESH), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _demo() -> tuple[torch.nn.Module, tuple[Any, ...], Mapping[str, Any]]:
    model, tokens = load_demo(torch.float32)
    return model, (), tokens


def _gpt2() -> tuple[torch.nn.Module, tuple[Any, ...], Mapping[str, Any]]:
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=64, vocab_size=256, n_positions=64, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    return model, (torch.randint(0, 256, (2, 33)),), {}


@pytest.mark.parametrize("make", [_demo, _gpt2])
def test_fresh_process(make: Any, tmp_path: Path) -> None:
    """The bar: as near to float64 as eager, whose own error differs by processor; no Dynamo, no
    pass, nothing unpickled or executed from the folder, no kernel traced twice."""
    found = _fresh(*make(), tmp_path / "model")
    assert all(gap <= 2 * eager for gap, eager in found["errors"])
    assert all(found["same"])
    assert found["seen"] == []
    assert set(found["traced"]) == {1}
    assert found["dynamo"] == 0
    assert found["libraries"] == []
    assert found["engines"].count("nki") > 10


def test_same_kernels_as_compiled(tmp_path: Path) -> None:
    """torch.export and Dynamo lead to the same kernels."""
    model, args, _ = _gpt2()
    written = trnx.export(model, args, tmp_path / "model", options={"runner": "reference"})
    regions = [step for step in written.manifest.steps if isinstance(step, dict)]
    with torch.no_grad(), trnx.collect_reports() as reports:
        torch.compile(model, backend="trnx", options={"runner": "reference"})(*args)
    compiled = sorted(r.kernel for report in reports for r in report.regions if r.kernel)
    assert sorted(region["kernel"] for region in regions if "kernel" in region) == compiled
    assert all(region["lines"] for region in regions)
    assert any("modeling_gpt2.py" in line for line in regions[-1]["lines"])


def test_the_archive_is_torch_exports(tmp_path: Path) -> None:
    """Other tools read `graph.pt2`, and it has no data of the user's."""
    model, args, _ = _gpt2()
    trnx.export(model, args, tmp_path / "model")
    program = torch.export.load(tmp_path / "model" / "graph.pt2")
    with torch.no_grad():
        expected = model(*args).logits
        torch.testing.assert_close(program.module()(*args).logits, expected)
    assert program.example_inputs is None
