"""scripts/bench/predicted_models.py: limits, bars, and a model whose FLOPs are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import trnx
from trnx.backend.options import on_cores
from trnx.backend.plan.block import without_data

FOLDER = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.fixture
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        import predicted_models

        yield predicted_models
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("predicted_models", None)


def test_a_row_is_held_against_its_busiest_resource(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(lnc: int) -> object:
        with without_data(), torch.no_grad():
            model = nn.Linear(512, 512, bias=False, dtype=torch.bfloat16)
            x = torch.empty(2048, 512, dtype=torch.bfloat16)
            found = trnx.explain(model, x, options={"target": "trn2", "lnc": lnc})
            return script.Work(found, 2 * 2048 * 512 * 512, script._sizes(model, x))

    monkeypatch.setitem(script.MODELS, "product", (make, 0.01))
    row = script.predicted("product")
    chip = on_cores("trn2", 2)

    assert (row.regions, row.off_nki_us) == (1, 0.0)
    assert row.bound == "TensorE"
    assert row.limit_us == pytest.approx(2 * 2048 * 512 * 512 / chip.peak_bf16_flops / 2 * 1e6)
    assert 0.0 < row.share < 1.0
    assert row.holds
    assert not replace(row, bar=1.0).holds
    slow = replace(row, name="BERT-base 8x128", planning_seconds=3.1)
    assert not slow.holds


def test_matrices_are_those_of_every_token(script: ModuleType) -> None:
    model = nn.ModuleDict({"up": nn.Linear(8, 16), "pooler": nn.Linear(16, 16)})
    model["table"] = nn.Embedding(100, 8)
    assert script._matrices(model) == 8 * 16


def test_weights_are_read_once_by_both_cores(script: ModuleType) -> None:
    work = script.Work(None, flops=1.0, nbytes=1e9)
    one, two = (script._limits(work, on_cores("trn2", lnc))["HBM"] for lnc in (1, 2))
    assert 1.0 < one / two < 2.0  # they share an HBM stack
