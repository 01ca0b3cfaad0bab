"""scripts/bench/generated.py: its graphs give eager's values on NKI, and its bars are applied."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.backend.prediction import Predictions
from trnx.simulator.hardware import hardware

FOLDER = Path(__file__).resolve().parents[2] / "scripts/bench"
NAMES = ("generated", "random_graphs")
# A failure says which graph it was.
SEED = random.SystemRandom().randrange(2**31)


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        import generated

        yield generated
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            sys.modules.pop(name, None)


def test_a_seed_gives_the_same_graphs(script: ModuleType) -> None:
    graphs = list(script.graphs(3, 40))
    assert graphs[:20] == list(script.graphs(3, 20))
    assert graphs != list(script.graphs(4, 40))
    for graph in graphs:
        elements = torch.Size(graph.operands[0].shape).numel()
        assert 2**19 * 0.9 <= elements * graph.dtype.itemsize <= 2**25
        assert 1 <= len(graph.operands[0].shape) <= 4


@pytest.mark.parametrize("index", range(8))
def test_small_instances_equal_eager(script: ModuleType, index: int) -> None:
    (*_, graph) = script.graphs(SEED, index + 1)
    graph = graph.small(random.Random(SEED + index).choice((5, 17)))
    inputs = graph.inputs(torch.Generator().manual_seed(SEED))
    torch._dynamo.reset()
    options = {"select": "legal"}
    result = torch.compile(graph.__call__, backend="trnx", options=options)(*inputs)
    expected = graph(*inputs)
    tolerance = 1e-5 if graph.dtype is torch.float32 else 2e-2

    def why(message: str) -> str:
        return f"seed {SEED}, {graph}: {message}"

    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance, msg=why)
    assert result.stride() == expected.stride(), str(graph)


def test_a_graph_is_predicted_without_values(script: ModuleType) -> None:
    result = script.measure(next(script.graphs(0, 1)), "trn2")
    assert result.us > 0
    assert result.limit_us > 2.6
    assert result.ratio == result.us / result.limit_us
    assert result.graph in result.text()
    assert result.on_nki
    assert result.scheduled


@pytest.mark.parametrize(
    ("names", "loads"),
    [
        (("tanh", "tanh"), 0),
        (("sigmoid", "silu"), 0),  # of one table
        (("tanh", "sigmoid"), 1),
        (("tanh", "logsumexp"), 2),
        (("rms", "relu"), 0),
    ],
)
def test_tables_after_the_first_are_work(
    script: ModuleType, names: tuple[str, ...], loads: int
) -> None:
    from random_graphs import Graph, Operand

    chip = hardware("trn2")
    steps = tuple((name, 0) for name in names)
    graph = Graph((Operand((128, 512), (0, 1)),), torch.bfloat16, steps, (1,))
    _, passes = graph.passes()
    rest = script.limits(graph, 0, chip)["ScalarE"] - passes * 512 / chip.scalar_clock
    assert rest == pytest.approx(loads * 1.28e-6, abs=1e-12)


def test_a_kernel_without_a_schedule_fails(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> float:
        raise RuntimeError("no schedule")

    # Of a graph that no other test measures: predictions are remembered.
    (*_, graph) = script.graphs(0, 6)
    monkeypatch.setattr(Predictions, "_scheduled", broken)
    result = script.measure(graph, "trn2")
    assert result.on_nki
    assert not result.scheduled
    assert "not scheduled" in result.text()
    assert not script.holds([result])


@pytest.mark.parametrize(
    ("steps", "other", "vector"),
    [
        ((("amax", 0), ("mul", 1)), (1, 8), 1 + 1 / 16),
        ((("amax", 0), ("mul", 1)), (16, 8), 2),
        ((("mul", 1), ("amax", 0)), (1, 1), 2),
        ((("mul", 1), ("softmax", 0)), (16, 8), 3),
    ],
)
def test_passes_count_the_elements_that_a_step_has(
    script: ModuleType, steps: tuple[tuple[str, int], ...], other: tuple[int, int], vector: float
) -> None:
    (graph,) = script.graphs(0, 1)
    operands = tuple(type(graph.operands[0])(shape, (0, 1)) for shape in ((16, 8), other))
    graph = type(graph)(operands, torch.float32, steps, (0, 1))
    assert graph.passes()[0] == pytest.approx(vector)


@pytest.mark.parametrize(
    ("ratios", "on_nki", "scheduled", "holds"),
    [
        ([1.4] * 9 + [2.0], True, True, True),
        ([1.4] * 8 + [1.5, 2.0], True, True, False),
        ([1.0] * 9 + [2.1], True, True, False),
        ([1.0] * 10, False, True, False),
        ([1.0] * 10, True, False, False),
    ],
)
def test_bars(
    script: ModuleType, ratios: list[float], on_nki: bool, scheduled: bool, holds: bool
) -> None:
    rows = [
        script.Result("graph", "chain", 1, ratio, 1.0, "DMA", ("fused",), on_nki, scheduled)
        for ratio in ratios
    ]
    assert script.holds(rows) is holds
