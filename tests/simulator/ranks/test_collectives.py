"""Collectives over simulated ranks, against NumPy."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from trnx.simulator import load_module, simulate, simulate_ranks
from trnx.simulator.errors import DeadlockError, FindingError, OutOfBoundsError
from trnx.simulator.multicore.ranks import RankArgumentsError

GROUPS = [[[0]], [[0, 1]], [[0, 1, 2, 3, 4]], [[0, 2], [3, 1]], [[7, 6, 5, 4, 3, 2, 1, 0]]]


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    return load_module(Path(__file__).with_name("rank_kernels.py"))


def values(ranks: int, shape: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    rng = np.random.default_rng(ranks)
    if np.issubdtype(dtype, np.integer):
        return list(rng.integers(-(2**30), 2**30, (ranks, *shape)).astype(dtype))
    return list(rng.standard_normal((ranks, *shape)).astype(dtype))


def ranks_of(groups: list[list[int]]) -> int:
    return sum(len(group) for group in groups)


def group_of(groups: list[list[int]], rank: int) -> list[int]:
    return next(group for group in groups if rank in group)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("in_sbuf", [False, True])
@pytest.mark.parametrize("op", ["add", "other"])
def test_all_reduce(twin: ModuleType, groups: Any, in_sbuf: bool, op: str) -> None:
    n = ranks_of(groups)
    x = values(n, (3, 5))
    got = simulate_ranks(twin.reduces, n)([(one, groups, op, in_sbuf) for one in x])
    function = np.add if op == "add" else np.minimum if in_sbuf else np.maximum
    for rank in range(n):
        want = x[group_of(groups, rank)[0]]
        for other in group_of(groups, rank)[1:]:
            want = function(want, x[other])
        assert np.array_equal(got[rank], want)


def test_all_reduce_of_several_tensors_and_types(twin: ModuleType) -> None:
    x = [torch.randn(4, 6).to(torch.bfloat16) for _ in range(3)]
    y = [torch.full((2, 2), 2**30, dtype=torch.int32) for _ in range(3)]
    arguments = [(a, b, [[0, 1, 2]]) for a, b in zip(x, y, strict=True)]
    for a, b in simulate_ranks(twin.reduces_two, 3)(arguments):
        assert torch.equal(a, ((x[0].float() + x[1].float()) + x[2].float()).to(torch.bfloat16))
        # Integers are exact and saturate.
        assert bool((b == 2**31 - 1).all())


@pytest.mark.parametrize("groups", GROUPS)
def test_ranks_that_borrow_one_tensor_write_each_their_own(twin: ModuleType, groups: Any) -> None:
    n = ranks_of(groups)
    x, shared = values(n, (3, 5)), np.ones((3, 5), dtype=np.float32)
    got = simulate_ranks(twin.reduces_into, n, borrow=True)([(one, shared, groups) for one in x])
    for rank, (total, before) in enumerate(got):
        group = group_of(groups, rank)
        want = functools.reduce(np.add, [x[other] for other in group])
        assert np.array_equal(total, want)
        assert np.array_equal(before, np.ones((3, 5)))
    assert np.array_equal(shared, np.ones((3, 5)))


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("dim", "in_sbuf"), [(0, False), (0, True), (1, True)])
def test_all_gather(twin: ModuleType, groups: Any, dim: int, in_sbuf: bool) -> None:
    n = ranks_of(groups)
    x = values(n, (3, 5))
    got = simulate_ranks(twin.gathers, n)([(one, groups, dim, in_sbuf) for one in x])
    for rank in range(n):
        want = np.concatenate([x[other] for other in group_of(groups, rank)], dim)
        assert np.array_equal(got[rank], want)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_reduce_scatter(twin: ModuleType, groups: Any, dtype: Any) -> None:
    n, size = ranks_of(groups), len(groups[0])
    x = values(n, (2 * size, 3), dtype)
    got = simulate_ranks(twin.scatters, n)([(one, groups) for one in x])
    for rank in range(n):
        group = group_of(groups, rank)
        total = x[group[0]].astype(np.float32 if dtype is np.float32 else np.int64)
        for other in group[1:]:
            total = total + x[other]
        if dtype is np.int32:
            total = np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)
        assert np.array_equal(got[rank], np.split(total, size)[group.index(rank)])


@pytest.mark.parametrize("groups", GROUPS)
def test_all_to_all(twin: ModuleType, groups: Any) -> None:
    n, size = ranks_of(groups), len(groups[0])
    x = values(n, (2 * size, 3))
    got = simulate_ranks(twin.exchanges_all, n)([(one, groups) for one in x])
    for rank in range(n):
        group = group_of(groups, rank)
        me = group.index(rank)
        want = np.concatenate([np.split(x[other], size)[me] for other in group])
        assert np.array_equal(got[rank], want)


def test_collective_permute(twin: ModuleType) -> None:
    x = values(4, (2, 3))
    got = simulate_ranks(twin.permutes, 4)([(one, [(0, 1), (1, 0), (2, 3)]) for one in x])
    assert np.array_equal(got[0], x[1])
    assert np.array_equal(got[1], x[0])
    assert np.array_equal(got[3], x[2])
    assert (got[2] == -1).all()


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_rings(twin: ModuleType, size: int) -> None:
    groups = [list(range(size))]
    x = values(size, (1, 4))
    for got in simulate_ranks(twin.gathers_by_ring, size)([(one, groups) for one in x]):
        assert np.array_equal(got, np.concatenate(x))
    if size == 1:
        return
    # After size - 1 turns a rank holds the sum of all others but the one it comes next to.
    for rank, got in enumerate(
        simulate_ranks(twin.reduces_by_ring, size)([(o, groups) for o in x])
    ):
        start = (rank - (size - 1)) % size
        want = x[start]
        for turn in range(1, size - 1):
            want = want + x[(start + turn) % size]
        assert np.array_equal(got, want)


def test_channels_in_sbuf(twin: ModuleType) -> None:
    x = values(4, (2, 6))
    arguments = [{"groups": [[0, 1, 2, 3]], "x": one} for one in x]
    got = simulate_ranks(twin.shifts_channels_in_sbuf, 4)(arguments)
    for rank in range(4):
        assert np.array_equal(got[rank], x[(rank - 1) % 4])


def test_rank_id(twin: ModuleType) -> None:
    x = torch.zeros(1)
    got = simulate_ranks(twin.tells_its_rank, 5)([(x,)] * 5)
    assert [int(one) for one in got] == [0, 1, 2, 3, 4]
    assert int(simulate(twin.tells_its_rank)(x)) == 0


@pytest.mark.parametrize("known", [False, True])
def test_all_to_all_v(twin: ModuleType, known: bool) -> None:
    n, groups = 3, [[0, 1, 2]]
    counts = np.array([[1, 0, 2], [3, 1, 0], [2, 2, 2]])
    starts = np.array([[0, 0, 4], [1, 4, 0], [0, 2, 4]])
    x = values(n, (6,))
    metadata = [
        torch.tensor(np.stack([counts[r], starts[r], [9, 9, 9]]), dtype=torch.uint32)
        for r in range(n)
    ]
    arguments = [(torch.from_numpy(x[r]), metadata[r], 9, groups, False, known) for r in range(n)]
    for rank, (got, after) in enumerate(simulate_ranks(twin.moves_chunks, n)(arguments)):
        want = np.full(9, -1, np.float32)
        for s in range(n):
            size, start = counts[s, rank], starts[s, rank]
            want[3 * s : 3 * s + size] = x[s][start : start + size]
        assert np.array_equal(got.numpy(), want)
        assert after.to(torch.int64)[2].tolist() == ([9] * 3 if known else list(counts[:, rank]))


def test_all_to_all_v_with_places_on_trn3(twin: ModuleType) -> None:
    rows = [[[1, 2], [0, 1], [0, 0], [3, 0]], [[2, 1], [0, 0], [0, 0], [0, 2]]]
    x = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])]
    metadata = [torch.tensor(row, dtype=torch.uint32) for row in rows]
    arguments = [(x[r], metadata[r], 4, [[0, 1]], False, False) for r in range(2)]
    got = simulate_ranks(twin.moves_chunks, 2, "trn3")(arguments)
    assert got[0][0].tolist() == [4, 5, -1, 1]
    assert got[1][0].tolist() == [2, 3, 4, -1]
    with pytest.raises(FindingError, match="needs trn3"):
        simulate_ranks(twin.moves_chunks, 2)(arguments)


def test_all_gather_v(twin: ModuleType) -> None:
    x = values(4, (5,))
    counts, starts = [2, 0, 5, 1], [1, 0, 0, 4]
    arguments = []
    for r in range(4):
        metadata = torch.zeros(3, 4, dtype=torch.int32)
        metadata[0, 0], metadata[1, 0] = counts[r], starts[r]
        arguments.append(
            (torch.from_numpy(x[r]), metadata.view(torch.uint32), 20, [[0, 1, 2, 3]], True, False)
        )
    want = np.full(20, -1, np.float32)
    for s in range(4):
        want[5 * s : 5 * s + counts[s]] = x[s][starts[s] : starts[s] + counts[s]]
    with pytest.raises(FindingError, match="ranks of two programs"):
        simulate_ranks(twin.moves_chunks, 4)(arguments)
    for got, after in simulate_ranks(twin.moves_chunks[2], 4)(arguments):
        assert np.array_equal(got.numpy(), want)
        assert after.to(torch.int64)[2].tolist() == counts


def test_chunks_out_of_bounds_are_found(twin: ModuleType) -> None:
    metadata = torch.tensor([[2, 2], [0, 2], [0, 0]], dtype=torch.uint32)
    arguments = [(torch.ones(3), metadata.clone(), 8, [[0, 1]], False, False) for _ in range(2)]
    with pytest.raises(OutOfBoundsError, match="elements 2 to 3 of 3") as caught:
        simulate_ranks(twin.moves_chunks, 2)(arguments)
    assert caught.value.location is not None
    assert caught.value.location.function == "moves_chunks"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("overlap", "overlap"),
        ("range", "not in 0 to 1"),
        ("missing", "rank 0 is in no group"),
        ("mixed", "cannot be mixed"),
        ("op", "op must be one of"),
        ("dim", "collective_dim 1"),
        ("shape", r"expected \(8, 4\)"),
        ("sbuf", "in sbuf; it must be in"),
        ("priority", "NeuronCore-v4"),
        ("pairs", "stands twice"),
        ("channels", "channel_ids"),
        ("unwritten", "nothing has written"),
        ("rank", "value of a register"),
    ],
)
def test_broken_rules_are_named(twin: ModuleType, what: str, message: str) -> None:
    before = threading.active_count()
    with pytest.raises(FindingError, match=message) as caught:
        simulate_ranks(twin.breaks, 2)([(torch.zeros(4, 4), what)] * 2)
    assert caught.value.location is not None
    assert caught.value.location.file.endswith("rank_kernels.py")
    assert threading.active_count() == before


def test_mismatched_collectives_are_a_deadlock(twin: ModuleType) -> None:
    x = torch.zeros(4, 4)
    with pytest.raises(DeadlockError, match="rank 0 waits for"):
        simulate_ranks(twin.meets_in_another_order, 2)([(x, True), (x, False)])
    with pytest.raises(DeadlockError, match=r"rank 0 waits for \[1\]"):
        simulate_ranks(twin.reduces, 2)(
            [(x, [[0, 1]], "add", False), (x, [[1], [0]], "add", False)]
        )


def test_a_rank_that_ends_early_is_a_deadlock(twin: ModuleType) -> None:
    arguments = [(torch.zeros(4, 4), [[0, 1]], "add", False)]
    with pytest.raises(FindingError, match="names ranks that are not in 0 to 0"):
        simulate(twin.reduces)(*arguments[0])
    with pytest.raises(RankArgumentsError, match="2 ranks"):
        simulate_ranks(twin.reduces, 2)(arguments)
