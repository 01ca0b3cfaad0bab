"""What a dropped model leaves: nothing but the bounded caches of kernels and predictions."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

from trnx.backend import entry, report
from trnx.backend.executable import Executable
from trnx.backend.programs import PROGRAMS, ProgramCache
from trnx.backend.report import GraphReport
from trnx.backend.torch_internals import bound_fake_results, fake_results

pytest.importorskip("jax")

from trnx.fallback.exchange import InputSlot
from trnx.fallback.program import Program
from trnx.nki_kernels.generator import kernel as generator

# Under "auto" eager would execute the small region of XLA.
OPTIONS = {"select": "legal", "fallback": "xla"}


class _Model(torch.nn.Module):
    """An NKI region (gelu of a product) whose result an XLA region takes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = torch.tanh(F.gelu(self.inner(x)).cumsum(0)) * 0.5
        return torch.tan(inside) @ self.inner.weight


def _collect() -> None:
    # What one collection frees lets go of more; JAX does so in a callback of the collector.
    for _ in range(4):
        gc.collect()


def _alive() -> list[object]:
    _collect()
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


def _reports() -> list[object]:
    _collect()
    return [o for o in gc.get_objects() if type(o) is GraphReport]


def test_reports_of_dropped_models_go_but_for_the_newest() -> None:
    torch.compiler.reset()
    for _ in range(2):
        _use_and_drop()
        torch.compiler.reset()
    assert len(_reports()) == 1


def test_a_dropped_model_leaves_no_generated_kernel() -> None:
    torch.compiler.reset()
    PROGRAMS.clear()
    _collect()
    before = set(generator._KERNELS)
    x = torch.randn(7, 43)
    compiled = torch.compile(lambda x: F.gelu(x) * 3 + 1, backend="trnx", options=OPTIONS)
    compiled(x)
    made = [weakref.ref(kernel) for path, kernel in generator._KERNELS.items()
            if path not in before]  # fmt: skip
    assert made
    torch.compiler.reset()
    del compiled
    report._journal._last = None  # the newest report has its kernels
    PROGRAMS.clear()
    _collect()
    assert [kernel() for kernel in made] == [None] * len(made)
    assert set(generator._KERNELS) <= before


def test_programs_of_dropped_models_are_bounded_and_those_in_use_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.compiler.reset()
    PROGRAMS.clear()
    _collect()
    monkeypatch.setattr(ProgramCache.trim, "__defaults__", (3,))
    living = [torch.compile(torch.nn.Linear(11, 16 + k), backend="trnx") for k in range(5)]
    x = torch.randn(4, 11)
    with torch.no_grad():
        for model in living:
            torch.testing.assert_close(model(x), model._orig_mod(x))
        _collect()
        assert len(PROGRAMS) == 3
        assert len(PROGRAMS._in_use) == 5
        before = PROGRAMS.traced
        again = torch.compile(torch.nn.Linear(11, 16), backend="trnx")
        torch.testing.assert_close(again(x), again._orig_mod(x))
        assert PROGRAMS.traced == before
    del living, model, again
    torch.compiler.reset()
    report._journal._last = None
    _collect()
    assert len(PROGRAMS._in_use) == len(PROGRAMS) == 3


def _f(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ x.t()) * 2 - x.sum()


def test_results_of_fake_tensors_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    bound_fake_results(0)
    assert fake_results() == 0
    monkeypatch.setattr(entry, "FAKE_RESULTS", 40)
    found = []
    for width in range(2, 12):
        compiled = torch.compile(_f, backend="trnx", options=OPTIONS, dynamic=False)
        x = torch.randn(width, 3)
        torch.testing.assert_close(compiled(x), _f(x))
        found.append(fake_results())
        torch.compiler.reset()
    assert found[0] > 10
    assert max(found) <= 40 + 2 * found[0]
