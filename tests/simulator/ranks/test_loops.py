"""Programs and ranks that meet in register loops, against plain Python, first and replayed."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, simulate_ranks, trace
from trnx.simulator.errors import DeadlockError
from trnx.simulator.program.listing import listing

TURNS = [0, 1, 3, 7]


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    return load_module(Path(__file__).with_name("loop_kernels.py"))


def _turns(count: int) -> torch.Tensor:
    return torch.tensor([[count]], dtype=torch.int32)


def _numbers(*shape: int) -> torch.Tensor:
    # Small integers: sums are exact in any order.
    return torch.randint(-8, 8, shape).float()


def _added(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = 2 * x + x.flip(0)
    return x


@pytest.mark.parametrize("traced", [0, 3])
def test_exchanges_in_a_loop(twin: ModuleType, traced: int) -> None:
    x = _numbers(2, 5)
    program = trace(twin.swaps_and_adds, [x, _turns(traced)], grid=2, values=True)
    assert listing(program) == listing(
        trace(twin.swaps_and_adds, [TensorSpec.of(x), TensorSpec.of(_turns(0))], grid=2)
    )
    for count in TURNS:
        x = _numbers(2, 5)
        assert torch.equal(program.run([x, _turns(count)])[0], _added(x, count))
        assert torch.equal(simulate(twin.swaps_and_adds[2])(x, _turns(count)), _added(x, count))


@pytest.mark.parametrize("as_while", [False, True])
def test_one_tile_goes_to_and_fro(twin: ModuleType, as_while: bool) -> None:
    spec = TensorSpec.dense((2, 5), torch.float32)
    count = TensorSpec.dense((1, 1), torch.int32)
    program = trace(twin.swaps_in_place, [spec, count, as_while], grid=2)
    for turns in TURNS:
        x = _numbers(2, 5)
        want = (x.flip(0) if turns % 2 else x) + turns
        assert torch.equal(program.run([x, _turns(turns)])[0], want)
        assert torch.equal(simulate(twin.swaps_in_place[2])(x, _turns(turns), as_while), want)


def test_barriers_in_nested_loops(twin: ModuleType) -> None:
    count = TensorSpec.dense((1, 1), torch.int32)
    program = trace(
        twin.writes_in_turns, [TensorSpec.dense((2, 5), torch.float32), count, count], grid=2
    )
    for outer, inner in ((0, 4), (1, 1), (2, 3), (3, 0), (5, 1)):
        x, turns = _numbers(2, 5), outer * inner
        want = (x.flip(0) if turns % 2 else x) * 2.0**turns
        assert torch.equal(program.run([x, _turns(outer), _turns(inner)])[0], want)
        got = simulate(twin.writes_in_turns[2])(x, _turns(outer), _turns(inner))
        assert torch.equal(got, want)


def test_programs_with_other_numbers_of_turns_are_a_deadlock(twin: ModuleType) -> None:
    before = threading.active_count()
    x = _numbers(2, 5)
    counts = TensorSpec.dense((2, 1), torch.int32)
    program = trace(twin.counts_for_itself, [TensorSpec.of(x), counts], grid=2)

    def replay(count: torch.Tensor) -> torch.Tensor:
        return program.run([x, count])[0]

    def first(count: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = simulate(twin.counts_for_itself[2])(x, count)
        return found

    for run in (replay, first):
        with pytest.raises(
            DeadlockError, match=r"program 1 waits in .*core_barrier.* for"
        ) as error:
            run(torch.tensor([[2], [3]], dtype=torch.int32))
        assert error.value.location is not None
        assert error.value.location.function == "counts_for_itself"
        # Nothing is left of it.
        assert torch.equal(run(torch.tensor([[3], [3]], dtype=torch.int32)), x)
    assert threading.active_count() == before


def test_a_barrier_that_only_one_has_in_a_loop_is_a_deadlock(twin: ModuleType) -> None:
    with pytest.raises(DeadlockError, match="within 1 register loops"):
        simulate(twin.waits_in_a_loop_alone[2])(_numbers(2, 5), _turns(1))


@pytest.mark.parametrize("groups", [[[0]], [[0, 1, 2]], [[0, 2], [3, 1]]])
def test_collectives_in_a_loop(twin: ModuleType, groups: list[list[int]]) -> None:
    ranks = sum(map(len, groups))
    for count in TURNS:
        inputs = list(_numbers(ranks, 2, 5))
        got = simulate_ranks(twin.sums_in_turns, ranks)(
            [(x, _turns(count), groups) for x in inputs]
        )
        for group in groups:
            want = {rank: inputs[rank] for rank in group}
            for _ in range(count):
                want = dict.fromkeys(group, sum(want.values()) + 1)
            assert all(torch.equal(got[rank], want[rank]) for rank in group)


def test_a_ring_in_a_loop(twin: ModuleType) -> None:
    ranks, groups = 4, [[0, 1, 2, 3]]
    inputs = list(_numbers(ranks, 1, 5))
    for count in (0, 2, 4):
        got = simulate_ranks(twin.gathers_by_a_ring_in_a_loop, ranks)(
            [(x, _turns(count), groups) for x in inputs]
        )
        for rank in range(ranks):
            want = torch.zeros(ranks, 5)
            for turn in range(count):
                want[(rank - turn) % ranks] = inputs[(rank - turn) % ranks][0]
            assert torch.equal(got[rank], want)


@pytest.mark.parametrize("groups", [[[0, 1, 2]], [[0, 2], [3, 1]]])
def test_collectives_in_loops_of_two_programs_a_rank(
    twin: ModuleType, groups: list[list[int]]
) -> None:
    ranks = sum(map(len, groups))
    for count in TURNS[:3]:
        inputs = list(_numbers(ranks, 4, 5))
        got = simulate_ranks(twin.reduces_halves_in_turns, ranks, grid=2)(
            [(x, _turns(count), groups) for x in inputs]
        )
        for group in groups:
            want = {rank: inputs[rank] for rank in group}
            for _ in range(count):
                want = dict.fromkeys(group, sum(want.values()).roll(2, 0))
            assert all(torch.equal(got[rank], want[rank]) for rank in group)


def test_ranks_with_other_numbers_of_turns_are_a_deadlock(twin: ModuleType) -> None:
    with pytest.raises(DeadlockError, match=r"rank 1 waits in .*all_reduce.* for rank 0, which"):
        simulate_ranks(twin.sums_in_turns, 2)(
            [(_numbers(2, 5), _turns(1 + rank), [[0, 1]]) for rank in range(2)]
        )


@pytest.mark.parametrize("count", [1, 3])
def test_collectives_at_dynamic_addresses(twin: ModuleType, count: int) -> None:
    """What a rank fetches for a collective is fetched before the data of all move."""
    inputs = list(_numbers(3, 6, 5))
    ids = torch.randint(0, 6, (3, 4, 1), dtype=torch.int32)
    got = simulate_ranks(twin.reduces_rows_at_an_index, 3)(
        [(x, ids[rank], _turns(count), [[0, 1, 2]]) for rank, x in enumerate(inputs)]
    )
    want = sum(inputs[rank][ids[rank, turn]] for rank in range(3) for turn in range(count))
    assert all(torch.equal(one, want) for one in got)
