"""Equal kernels are generated, traced and predicted once in a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import trnx
from trnx.backend import programs
from trnx.backend.programs import PROGRAMS, ProgramCache
from trnx.nki_kernels.spec import Launch

LEGAL = {"select": "legal"}


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.rand(width))
        self.shift = torch.nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x * self.gain) * 0.7 + self.shift
        return y.double().cumsum(0).float()  # no kernel takes float64


def stack(depth: int, width: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(Block(width) for _ in range(depth)))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    PROGRAMS.clear()
    yield
    torch.compiler.reset()


def traces_of(model: torch.nn.Module, x: torch.Tensor, options: dict[str, Any] = LEGAL) -> int:
    """How many kernels the first call of the compiled model traces."""
    before = PROGRAMS.traced
    result = torch.compile(model, backend="trnx", options=options)(x)
    torch.testing.assert_close(result, model(x))
    if result.requires_grad:
        result.sum().backward()
    return PROGRAMS.traced - before


@pytest.mark.parametrize(("options", "width"), [(LEGAL, 71), ({}, 72)])
def test_copies_of_a_block_share_their_kernels(options: dict[str, Any], width: int) -> None:
    with torch.no_grad():
        # Two tilings of the one kernel are compared.
        assert 0 < traces_of(stack(6, width), torch.randn(33, width), options) <= 2


def test_copies_share_their_backward_kernels_too() -> None:
    x = torch.randn(33, 73, requires_grad=True)
    assert traces_of(stack(3, 73), x) > 0
    torch.compiler.reset()
    assert traces_of(stack(6, 73), x) == 0


def test_another_compilation_finds_the_kernels() -> None:
    x = torch.randn(33, 74)
    model = stack(2, 74)
    with torch.no_grad():
        assert traces_of(model, x) > 0
        torch.compiler.reset()
        assert traces_of(stack(3, 74), x) == 0


@pytest.mark.parametrize(
    ("x", "width"),
    [
        (torch.ones(34, 75), 75),
        (torch.ones(33, 76), 76),
        (torch.ones(33, 75, dtype=torch.bfloat16), 75),
        (torch.ones(75, 33).t(), 75),
    ],
)
def test_other_sizes_strides_and_types_are_other_kernels(x: torch.Tensor, width: int) -> None:
    with torch.no_grad():
        traces_of(stack(2, 75), torch.ones(33, 75))
        torch.compiler.reset()
        assert traces_of(stack(1, width).to(x.dtype), x) >= 1


def test_constants_that_compare_equal_are_other_kernels() -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    for constant in (0.0, -0.0, 1, 1.0, True):
        torch.compiler.reset()

        def function(x: torch.Tensor, constant: float = constant) -> torch.Tensor:
            return torch.where(x > 1.5, x * 1.25, constant).reciprocal()

        result = torch.compile(function, backend="trnx", options=LEGAL)(x)
        assert torch.equal(result, function(x)), constant


def test_zeros_of_both_signs_in_one_graph_are_other_kernels() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / 0.0, x / -0.0, x * -0.0, x * 0.0

    x = torch.tensor([1.0, 2.0, -3.0])
    results = torch.compile(function, backend="trnx", options=LEGAL)(x)
    for result, expected in zip(results, function(x), strict=True):
        assert torch.equal(result, expected)
        assert torch.equal(torch.signbit(result), torch.signbit(expected))


def test_the_ledger_names_the_node_of_each_region() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tan(x), torch.tan(y)

    with trnx.collect_reports() as reports:
        torch.compile(function, backend="trnx", options=LEGAL)(torch.ones(5), torch.ones(5))
    (report,) = reports
    assert len({entry.node for entry in report.fallbacks}) == 2


def test_threads_that_ask_together_trace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProgramCache()
    calls: list[int] = []
    started = threading.Event()

    class Recorded:
        host_bytes = 1

    def trace(*_: Any, **__: Any) -> Any:
        calls.append(1)
        started.wait(5)
        return Recorded()

    monkeypatch.setattr(programs, "trace", trace)
    launch = Launch("kernel", (1, 2.0), ())
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get(launch, "trn2"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    started.set()
    for thread in threads:
        thread.join()
    assert len(calls) == cache.traced == 1
    assert len({id(program) for program in found}) == 1


def test_a_trace_that_fails_is_tried_by_the_next_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProgramCache()

    def trace(*_: Any, **__: Any) -> Any:
        raise ValueError("no kernel")

    monkeypatch.setattr(programs, "trace", trace)
    for _ in range(2):
        with pytest.raises(ValueError, match="no kernel"):
            cache.get(Launch("kernel", (), ()), "trn2")
    assert cache.traced == 0


def parameters(count: int) -> list[torch.nn.Parameter]:
    shapes = [(17, 5), (9,), (3, 4, 2), (1,)]
    generator = torch.Generator().manual_seed(count)
    return [
        torch.nn.Parameter(torch.randn(shapes[i % len(shapes)], generator=generator))
        for i in range(count)
    ]


# Dynamo imports torch.jit when it first meets an optimizer.
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize("settings", [{}, {"amsgrad": True}])
def test_an_optimizer_traces_as_many_kernels_as_there_are_shapes(settings: dict[str, Any]) -> None:
    traced = []
    for count in (4, 7):  # of eight alike ones several are one kernel
        torch.compiler.reset()
        ours, theirs = parameters(count), parameters(count)
        optimizers = [torch.optim.AdamW(p, lr=1e-2, **settings) for p in (ours, theirs)]
        step = torch.compile(optimizers[0].step, backend="trnx", options=LEGAL)
        before = PROGRAMS.traced
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            for a, b in zip(ours, theirs, strict=True):
                a.grad = torch.randn(a.shape, generator=generator)
                b.grad = a.grad.clone()
            step()
            optimizers[1].step()
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b)
        traced.append(PROGRAMS.traced - before)
    assert traced[0] > 0
    assert traced[1] == 0
