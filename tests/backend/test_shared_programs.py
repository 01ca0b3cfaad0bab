"""Layers that share a Program: each keeps its own weights bound after a few calls."""

from __future__ import annotations

import copy

import pytest
import torch

from trnx.simulator.memory.storage import Slot


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def test_layers_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = _Layers().eval()
    compiled = torch.compile(model, backend="trnx", options={"select": "legal"})
    x = torch.randn(32, 256)
    bound = []
    bind = Slot.bind

    def counted(slot: Slot, tensor: torch.Tensor) -> None:
        before = slot.address
        bind(slot, tensor)
        bound.append(slot.address != before)

    monkeypatch.setattr(Slot, "bind", counted)
    counts = []
    with torch.no_grad():
        for _ in range(6):
            bound.clear()
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
            counts.append(sum(bound))
        assert counts[1] >= 6
        # The result alone is new memory.
        assert counts[-1] <= 1
        with torch.no_grad():
            for layer in model.layers:
                layer.weight.mul_(0.5)
        torch.testing.assert_close(compiled(x), copy.deepcopy(model)(x), rtol=1e-5, atol=1e-5)
