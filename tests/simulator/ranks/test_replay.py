"""Programs of several ranks: a replay gives what a first run gives, without the kernel's Python."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from trnx.simulator import RankProgram, TensorSpec, load_module, simulate_ranks, trace_ranks
from trnx.simulator.errors import DeadlockError, OutOfBoundsError
from trnx.simulator.multicore.ranks import RankArgumentsError
from trnx.simulator.program.listing import listing
from trnx.simulator.program.program import BindingError

FILES = ("rank_kernels.py", "loop_kernels.py")
GROUPS = [[0, 2, 1, 3]]

# Kernel -> the shape of what each of four ranks gives, and its further arguments.
KERNELS: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "reduces": ((3, 5), (GROUPS, "add", True)),
    "gathers": ((3, 5), (GROUPS, 0, False)),
    "scatters": ((8, 3), (GROUPS,)),
    "exchanges_all": ((8, 3), ([[0, 1], [3, 2]],)),
    "permutes": ((2, 3), ([(0, 1), (1, 0), (2, 3)],)),
    "gathers_by_ring": ((1, 4), (GROUPS,)),
    "reduces_by_ring": ((1, 4), (GROUPS,)),
    "tells_its_rank": ((1,), ()),
    "reduces_by_halves": ((6, 5), (GROUPS,)),
    "passes_shared_memory_on": ((6, 5), (GROUPS, "other")),
}
OF_TWO_PROGRAMS = ("reduces_by_halves", "passes_shared_memory_on", "reduces_halves_in_turns")


@pytest.fixture(scope="module")
def twins() -> dict[str, Callable[..., Any]]:
    modules = [load_module(Path(__file__).with_name(name)) for name in FILES]
    return {name: value for module in modules for name, value in vars(module).items()}


def _grid(name: str) -> int | None:
    return 2 if name in OF_TWO_PROGRAMS else None


def _inputs(shape: tuple[int, ...], ranks: int = 4) -> list[torch.Tensor]:
    return list(torch.randn(ranks, *shape))


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_replay_gives_what_a_first_run_gives(twins: dict[str, Any], name: str) -> None:
    shape, rest = KERNELS[name]
    spec = TensorSpec.dense(shape, torch.float32)
    program = trace_ranks(twins[name], [(spec, *rest)] * 4, grid=_grid(name))
    for _ in range(3):
        inputs = _inputs(shape)
        want = simulate_ranks(twins[name], 4, grid=_grid(name))([(x, *rest) for x in inputs])
        got = program.run([[x] for x in inputs])
        assert all(torch.equal(one[0], other) for one, other in zip(got, want, strict=True))
    outputs = [[torch.empty_like(result) for result in results] for results in got]
    again = program.run([[x] for x in inputs], outputs)
    for results, given, other in zip(again, outputs, want, strict=True):
        assert results[0] is given[0]
        assert torch.equal(results[0], other)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_both_ways_of_tracing_give_equal_programs(twins: dict[str, Any], name: str) -> None:
    shape, rest = KERNELS[name]
    with_values, without = (
        trace_ranks(twins[name], [(x, *rest)] * 4, grid=_grid(name), values=values)
        for values, x in ((True, torch.randn(shape)), (False, TensorSpec.dense(shape, torch.float)))
    )
    assert [listing(part) for part in with_values.programs] == [
        listing(part) for part in without.programs
    ]
    assert len(with_values.steps) == len(without.steps)
    assert with_values.inputs == without.inputs
    assert with_values.outputs == without.outputs


def _turns(count: int) -> torch.Tensor:
    return torch.tensor([[count]], dtype=torch.int32)


@pytest.mark.parametrize("traced", [0, 3])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("sums_in_turns", (2, 5)),
        ("gathers_by_a_ring_in_a_loop", (1, 5)),
        ("reduces_halves_in_turns", (4, 5)),
    ],
)
def test_loops_replay_with_other_numbers_of_turns(
    twins: dict[str, Any], name: str, shape: tuple[int, ...], traced: int
) -> None:
    first = [(x, _turns(traced), GROUPS) for x in _inputs(shape)]
    program = trace_ranks(twins[name], first, grid=_grid(name), values=True)
    for count in (0, 1, 4):
        inputs = _inputs(shape)
        run = simulate_ranks(twins[name], 4, grid=_grid(name))
        want = run([(x, _turns(count), GROUPS) for x in inputs])
        got = program.run([[x, _turns(count)] for x in inputs])
        assert all(torch.equal(one[0], other) for one, other in zip(got, want, strict=True))


def _sums(twins: dict[str, Any], ranks: int) -> RankProgram:
    specs = (TensorSpec.dense((2, 5), torch.float32), TensorSpec.dense((1, 1), torch.int32))
    return trace_ranks(twins["sums_in_turns"], [(*specs, [list(range(ranks))])] * ranks)


def test_a_replay_that_cannot_end_is_a_deadlock(twins: dict[str, Any]) -> None:
    program, inputs = _sums(twins, 2), _inputs((2, 5), 2)
    with pytest.raises(DeadlockError, match=r"rank 1 waits in .* rank 0, which has left") as error:
        program.run([[x, _turns(1 + rank)] for rank, x in enumerate(inputs)])
    assert error.value.location is not None
    assert error.value.location.function == "sums_in_turns"
    got = program.run([[x, _turns(1)] for x in inputs])
    assert all(torch.equal(one[0], inputs[0] + inputs[1] + 1) for one in got)


def test_ranks_that_do_not_meet_are_found_when_they_are_recorded(twins: dict[str, Any]) -> None:
    spec = TensorSpec.dense((4, 4), torch.float32)
    with pytest.raises(DeadlockError, match="rank 0 waits for"):
        trace_ranks(twins["meets_in_another_order"], [(spec, True), (spec, False)])
    with pytest.raises(RankArgumentsError):
        trace_ranks(twins["reduces"], [])


def test_the_kernel_is_not_executed_again(twins: dict[str, Any]) -> None:
    program, inputs = _sums(twins, 3), _inputs((2, 5), 3)
    files = []

    def see(frame: FrameType, _event: str, _argument: object) -> None:
        files.append(frame.f_code.co_filename)

    sys.setprofile(see)
    try:
        program.run([[x, _turns(2)] for x in inputs])
    finally:
        sys.setprofile(None)
    assert files
    assert not [name for name in files if name.endswith(FILES)]


def test_threads_share_a_program(twins: dict[str, Any]) -> None:
    program, before = _sums(twins, 3), threading.active_count()

    def run(seed: int) -> bool:
        inputs = list(torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(seed)))
        turns = seed % 3
        want = inputs
        for _ in range(turns):
            want = [want[0] + want[1] + want[2] + 1] * 3
        got = program.run([[x, _turns(turns)] for x in inputs])
        return all(torch.equal(one[0], other) for one, other in zip(got, want, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(40)))
    assert threading.active_count() == before


def test_arguments_by_name_and_what_a_kernel_writes_into_them(twins: dict[str, Any]) -> None:
    counts = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.uint32)
    rest = {"size": 4, "groups": [[0, 1]], "gather": False, "known": False}
    specs = {"x": TensorSpec.dense((3,), torch.float32), "metadata": TensorSpec.of(counts)}
    program = trace_ranks(twins["moves_chunks"], [{**specs, **rest}] * 2)
    metadata = [counts.clone(), counts.clone()]
    (first, after), (second, _) = program.run([[torch.ones(3), m] for m in metadata])
    assert after is metadata[0]
    assert first.tolist() == [1, -1, 1, -1]
    assert second.tolist() == [-1, -1, -1, -1]
    assert after.to(torch.int64)[2].tolist() == [1, 1]
    # Values are checked in a replay, too.
    wrong = torch.tensor([[1, 1], [0, 3], [0, 0]], dtype=torch.uint32)
    with pytest.raises(OutOfBoundsError):
        program.run([[torch.ones(3), wrong] for _ in range(2)])


def test_parts_do_not_run_alone(twins: dict[str, Any]) -> None:
    program, inputs = _sums(twins, 2), _inputs((2, 5), 2)
    with pytest.raises(BindingError, match="one rank's part"):
        program.programs[0].run([inputs[0], _turns(1)])
    with pytest.raises(BindingError, match="2 ranks need inputs"):
        program.run([[inputs[0], _turns(1)]])
    with pytest.raises(BindingError, match="was traced for"):
        program.run([[inputs[0], _turns(1)], [inputs[1].double(), _turns(1)]])
    program.release()
    program.run([[x, _turns(1)] for x in inputs])
