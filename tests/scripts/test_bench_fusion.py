"""scripts/bench/fusion.py: fusions are switched off one by one, and one that loses is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from trnx.backend.options import make_options
from trnx.fx_passes.match import Matcher
from trnx.nki_kernels.registry import kernels

FOLDER = Path(__file__).resolve().parents[2] / "scripts/bench"


class Layer(nn.Module):
    """A GELU written out, and a norm in front of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(256)
        self.up, self.down = nn.Linear(256, 320), nn.Linear(320, 256)
        self.out = nn.Linear(256, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        y = 0.5 * y * (1.0 + torch.tanh(0.7978845608 * (y + 0.044715 * torch.pow(y, 3.0))))
        return self.out(self.norm(x + self.down(y)))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path, before = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    import fusion
    from suites.case import Built

    def build(train: bool) -> Built:
        torch.manual_seed(0)
        return Built(Layer().train(train), (torch.randn(4, 256),))

    monkeypatch.setitem(fusion.BUILDERS, "layer", build)
    yield fusion
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name == "fusion" or name.partition(".")[0] == "suites":
            del sys.modules[name]


def test_each_fusion_is_switched_off(script: ModuleType) -> None:
    row = script.measured("layer", make_options({"target": "trn2"}), train=False)

    assert {"norm_linear", "linear", "generated kernels", *script.NAMED} <= set(row.without)
    assert row.losses == {}
    assert row.without["norm_linear"] > row.us  # a region more
    assert row.without["linear"] > row.us


def test_backward_graphs_count(script: ModuleType) -> None:
    assert len(script.captured("layer", train=False)) == 1
    assert len(script.captured("layer", train=True)) == 2


def test_a_fusion_that_loses_is_named(script: ModuleType) -> None:
    row = script.Row("model", 100.0, {"good": 120.0, "equal": 100.0, "bad": 80.0}, 1.0)

    assert row.losses == {"bad": 1.25}
    assert "1.250x with bad" in row.text()
    assert "good" not in row.text()


def test_a_kernel_keeps_its_patterns_of_one_op(script: ModuleType) -> None:
    every = tuple(kernels())
    left = {kernel.name: kernel for kernel in script._without_fusion_of("rms_norm", every)}
    (only,) = left["rms_norm"].patterns

    assert Matcher(left["rms_norm"], only).size == 1
    assert len(left) == len(every)
    assert "norm_linear" not in {k.name for k in script._without_fusion_of("norm_linear", every)}


def test_the_exit_status_is_the_bar(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = script.Row("layer", 100.0, {"good": 120.0}, 1.0)
    rows = iter([good, replace(good, without={"bad": 99.0})])
    monkeypatch.setattr(script, "measured", lambda *_: next(rows))
    monkeypatch.setattr(sys, "argv", ["fusion.py", "--models", "layer", "--json"])

    assert script.main() == 0
    assert '"bars_hold": true' in capsys.readouterr().out.splitlines()[-1]
    assert script.main() == 1
    assert '"bars_hold": false' in capsys.readouterr().out.splitlines()[-1]
