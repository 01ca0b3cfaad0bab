"""What a dropped model leaves: nothing but the bounded caches of kernels and predictions."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

from trnx.backend.executable import Executable

pytest.importorskip("jax")

from trnx.fallback.exchange import InputSlot
from trnx.fallback.program import Program

# Under "auto" eager would execute the small region of XLA.
OPTIONS = {"select": "legal", "fallback": "xla"}


class _Model(torch.nn.Module):
    """An NKI region (gelu of a product) whose result an XLA region takes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = torch.tanh(F.gelu(self.inner(x)).cumsum(0)) * 0.5
        return torch.erfinv(inside) @ self.inner.weight


def _alive() -> list[object]:
    for _ in range(4):  # JAX lets go of Python's objects in a callback of the collector
        gc.collect()
    return [o for o in gc.get_objects() if type(o) in (Executable, InputSlot, Program)]


def _use_and_drop() -> list[weakref.ref[torch.Tensor]]:
    model = _Model()
    parameters = [weakref.ref(p) for p in model.parameters()]
    compiled = torch.compile(model, backend="trnx", options=OPTIONS)
    for _ in range(3):
        compiled(torch.randn(8, 16)).sum().backward()
    assert {type(o) for o in _alive()} == {Executable, InputSlot, Program}
    return parameters


def test_a_dropped_model_leaves_no_executable() -> None:
    torch.compiler.reset()
    assert _alive() == []
    for _ in range(3):
        parameters = _use_and_drop()
        torch.compiler.reset()
        assert _alive() == []
        assert [p() for p in parameters] == [None] * len(parameters)
