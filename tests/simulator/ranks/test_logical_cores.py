"""Ranks that are launches of two programs each (LNC2)."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import load_module, simulate_ranks
from trnx.simulator.errors import DeadlockError, FindingError


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    return load_module(Path(__file__).with_name("rank_kernels.py"))


def _inputs(ranks: int) -> list[torch.Tensor]:
    return list(torch.randn(ranks, 6, 5))


@pytest.mark.parametrize("groups", [[[0, 1, 2]], [[0, 2], [3, 1]]])
def test_each_program_has_its_own_sbuf(twin: ModuleType, groups: list[list[int]]) -> None:
    ranks = sum(map(len, groups))
    inputs = _inputs(ranks)
    for kernel, grid in ((twin.reduces_by_halves, 2), (twin.reduces_by_halves[2], None)):
        results = simulate_ranks(kernel, ranks, grid=grid)([(x, groups) for x in inputs])
        for group in groups:
            total = inputs[group[0]]
            for rank in group[1:]:
                total = total + inputs[rank]
            for rank in group:
                torch.testing.assert_close(results[rank], total, rtol=0, atol=1e-6)


@pytest.mark.parametrize("reads", ["own", "other"])
def test_shared_memory_moves_once_when_both_have_written(twin: ModuleType, reads: str) -> None:
    inputs = _inputs(3)
    arguments = [(x, [[0, 1, 2]], reads) for x in inputs]
    results = simulate_ranks(twin.passes_shared_memory_on, 3, grid=2)(arguments)
    for rank, result in enumerate(results):
        assert torch.equal(result, inputs[rank - 1])


def test_a_collective_that_one_program_makes_is_a_deadlock(twin: ModuleType) -> None:
    before = threading.active_count()
    with pytest.raises(DeadlockError, match="program 0 waits"):
        simulate_ranks(twin.reduces_in_one_program, 2, grid=2)([(x,) for x in _inputs(2)])
    assert threading.active_count() == before


def test_a_failure_in_one_program_ends_all(twin: ModuleType) -> None:
    before = threading.active_count()
    arguments = [(torch.ones(2, 4),), (torch.ones(3, 4),)]
    for _ in range(3):
        with pytest.raises(FindingError, match="dma_copy"):
            simulate_ranks(twin.fails_in_one_program, 2, grid=2)(arguments)
        assert threading.active_count() == before
    results = simulate_ranks(twin.fails_in_one_program, 2, grid=2)([arguments[0]] * 2)
    for result in results:
        assert torch.equal(result, torch.full((2, 4), 2.0))
