"""One small model, exported once; each test that changes the folder gets a copy of its own."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trnx


class Small(nn.Module):
    """A product, a generated kernel, a buffer that counts calls, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 128)
        self.register_buffer("calls", torch.zeros(()))
        self.scale = torch.linspace(0.5, 1.5, 128)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.calls.add_(1)
        y = self.linear(x)
        return {"y": (torch.tanh(y) * self.scale + 1.0, y.view(-1)), "calls": self.calls * 2}


@pytest.fixture
def small() -> nn.Module:
    """The model of the folder `exported`."""
    return Small().eval()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `Small` for [16, 64]."""
    folder = tmp_path_factory.mktemp("exported") / "small"
    trnx.export(Small().eval(), (torch.randn(16, 64),), folder, options={"runner": "simulator"})
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(exported, tmp_path / "small"))


@pytest.fixture
def seal() -> Callable[[Path], None]:
    """`seal(folder)`: checksums that fit, as anybody who may write to the folder can make them."""
    return _seal


def _seal(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def edit(copy: Path) -> Callable[..., Path]:
    """`edit(change)`: the folder with a changed manifest, which `change` gets as a dictionary."""

    def run(change: Callable[[dict[str, Any]], None]) -> Path:
        manifest = json.loads((copy / "manifest.json").read_text())
        change(manifest)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        return copy

    return run
