"""Canonical graphs in the cache: no pass runs again, and the graph is the one that passes make."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trnx
from trnx.backend import pipeline, prediction
from trnx.backend.cache.cache import KINDS
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Entry, read_entry
from trnx.backend.programs import PROGRAMS


@pytest.fixture(autouse=True)
def _own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRNX_CACHE_DIR", str(folder))
    fresh()
    yield
    fresh()


def fresh() -> None:
    torch.compiler.reset()
    prediction.PREDICTIONS.clear()
    PROGRAMS.clear()


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts canonicalised graphs."""
    found: Counter[str] = Counter()
    real = pipeline.canonicalise

    def canonicalise(gm: Any) -> Any:
        found["graphs"] += 1
        return real(gm)

    monkeypatch.setattr(pipeline, "canonicalise", canonicalise)
    return found


def call(function: Callable[..., Any], *inputs: Any) -> Any:
    fresh()
    return torch.compile(function, backend="trnx")(*inputs)


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs that share memory with an input and with each other, and a transposed one."""
    y = torch.sin(x) * 2
    return x.t(), y, y[1:], y.t(), y.unsqueeze(0)


def writes(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.view(-1) + 1


def constants(x: torch.Tensor) -> torch.Tensor:
    """A mask and positions that the passes compute."""
    rows = torch.arange(x.shape[0])
    mask = (rows[:, None] >= rows[None, :]).float() * 0.5
    return mask @ x.relu() + rows[:, None].float().cos()


def several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.topk(torch.nn.functional.layer_norm(x, (8,)), 3)
    return values, indices


@pytest.mark.parametrize("function", [views, writes, constants, several])
def test_a_warm_process_runs_no_pass_and_gives_the_same(
    function: Callable[..., Any], passes: Counter[str]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    inputs = [x.clone() for _ in range(3)]
    expected = function(inputs[0])
    cold = call(function, inputs[1])
    assert passes["graphs"] == 1
    warm = call(function, inputs[2])
    assert passes["graphs"] == 1
    assert torch.equal(inputs[1], inputs[0])
    assert torch.equal(inputs[2], inputs[0])
    every = [one if isinstance(one, tuple) else (one,) for one in (expected, cold, warm)]
    for eager, first, second in zip(*every, strict=True):
        assert torch.equal(first, second)
        assert eager.stride() == first.stride() == second.stride()
        assert eager.dtype == second.dtype
        torch.testing.assert_close(second, eager)
    memory = [
        [one.untyped_storage().data_ptr() for one in (given, *outputs)]
        for given, outputs in zip(inputs, every, strict=True)
    ]
    shared = [[one == other for one in row for other in row] for row in memory]
    assert shared[0] == shared[1] == shared[2]


def test_a_training_step(passes: Counter[str]) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.randn(4, 8)

    def step() -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        call(model, x).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    cold = step()
    assert passes["graphs"] == 2
    warm = step()
    assert passes["graphs"] == 2
    assert all(map(torch.equal, cold, warm))


def test_lines_are_those_of_the_process_that_asks(passes: Counter[str]) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.digamma(x.view(-1)) + 1.0

    def second(x: torch.Tensor) -> torch.Tensor:
        return torch.digamma(x.view(-1)) + 1.0

    call(first, torch.randn(4, 8))
    with trnx.collect_reports() as reports:
        call(second, torch.randn(4, 8))
    assert passes["graphs"] == 1
    line = second.__code__.co_firstlineno + 1
    assert reports[0].fallbacks[0].source.endswith(f":{line} in second")


def _nodes(change: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        change(value["nodes"])
        return value

    return run


FORGED: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda _: {},
    "a list": lambda _: [1],
    "no nodes": lambda value: {**value, "nodes": []},
    "a node less": _nodes(lambda nodes: nodes.pop(0)),
    "reversed": _nodes(lambda nodes: nodes.reverse()),
    "another operator": _nodes(lambda nodes: nodes[0].update(target="aten.cos.default")),
    "no operator": _nodes(lambda nodes: nodes[0].update(target="os.system.call")),
    "another size": _nodes(
        lambda nodes: nodes[0].update(value={"tensor": [[1], [1], 0, {"dtype": "float32"}]})
    ),
    "an unknown origin": _nodes(lambda nodes: nodes[0].update(origin=999)),
    "an attribute": _nodes(
        lambda nodes: nodes[0].update(attribute="mine", content={"shape": [1], "bytes": ""})
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_tampered_graph_is_told_and_made_again(
    name: str, folder: Path, passes: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(6, 8)
    expected = call(views, x)
    (file,) = (folder / "graph").rglob("*.json")
    entry = read_entry(file.read_bytes(), KINDS)
    file.write_bytes(Entry(entry.key, FORGED[name](entry.value)).to_bytes())
    with caplog.at_level(logging.WARNING, "trnx"):
        got = call(views, x)
    assert all(map(torch.equal, got, expected))
    assert passes["graphs"] == 2
    assert str(file) in caplog.text


def test_a_graph_that_others_could_have_written_is_not_read(
    folder: Path, passes: Counter[str]
) -> None:
    x = torch.randn(6, 8)
    expected = call(views, x)
    (file,) = (folder / "graph").rglob("*.json")
    file.chmod(0o666)
    assert all(map(torch.equal, call(views, x), expected))
    assert passes["graphs"] == 2
    cache = current()
    assert cache is not None
    assert cache.counts["foreign"] >= 1
