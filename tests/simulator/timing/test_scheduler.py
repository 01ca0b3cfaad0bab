"""The scheduler: repetition skipped without a trace, the same times anywhere, meetings, classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.multicore.ranks import RankArgumentsError, one_of
from trnx.simulator.timing.order import interleaved
from trnx.simulator.timing.repeats import find_runs
from trnx.simulator.timing.schedule import Schedule, Wait
from trnx.simulator.timing.scheduler import schedule

TARGETS = ("trn1", "trn2", "trn3")
COLUMNS = ("start", "free", "visible", "begin", "last", "cause", "reason")


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("timing_kernels.py"))


def _spec(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec.dense(shape, dtype)


def _both(program: Program, target: str) -> tuple[Schedule, Schedule]:
    chip = hardware(target)
    return schedule(program.rows, chip), schedule(program.rows, chip, skips=False)


def _assert_equal(skipping: Schedule, full: Schedule) -> None:
    for name in COLUMNS:
        assert getattr(skipping, name) == getattr(full, name), name
    assert full.skipped == 0
    for name in ("total_ps", "throttled_ps", "busy_ps", "stalled_ps", "hbm_bytes"):
        assert getattr(skipping, name) == getattr(full, name), name


# ---- repetition ----


@pytest.mark.parametrize("target", TARGETS)
def test_skipping_repetition_changes_nothing(kernels: ModuleType, target: str) -> None:
    bf16 = torch.bfloat16
    skipped = 0
    for program in (
        trace(kernels.scale, [_spec(128 * 900, 2048), True], target=target),
        trace(kernels.scale, [_spec(128 * 700, 64), False], target=target),
        trace(kernels.matmul, [_spec(128 * 20, 128), _spec(128 * 20, 512 * 40)], target=target),
        trace(
            kernels.products,
            [_spec(128, 128, dtype=bf16), _spec(128, 512, dtype=bf16), 3000],
            target=target,
        ),
        trace(kernels.loop, [_spec(128, 64), 3000], target=target),
    ):
        skipping, full = _both(program, target)
        _assert_equal(skipping, full)
        assert skipping.skipped > 0.5 * len(skipping.order), program.name
        skipped += skipping.skipped
    assert skipped


@settings(max_examples=6, deadline=None)
@given(
    tiles=st.integers(350, 600), columns=st.sampled_from([1, 64, 513, 2048]),
    depth=st.integers(1, 5), is_double=st.booleans(), target=st.sampled_from(TARGETS),
)  # fmt: skip
def test_skipping_is_exact_for_random_shapes(
    kernels: ModuleType, tiles: int, columns: int, depth: int, is_double: bool, target: str
) -> None:
    program = trace(kernels.scale, [_spec(128 * tiles, columns), is_double], target=target)
    _assert_equal(*_both(program, target))
    shapes = [_spec(128 * depth, 128), _spec(128 * depth, 512 * (2 + tiles // (2 * depth)))]
    program = trace(kernels.matmul, shapes, target=target)
    _assert_equal(*_both(program, target))


@settings(max_examples=40, deadline=None)
@given(
    head=st.lists(st.integers(0, 9), max_size=20),
    body=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    times=st.integers(6, 60),
)
def test_runs_are_periodic(head: list[int], body: list[int], times: int) -> None:
    numbers = np.array([*head, *body * times, 99], np.uint32)
    for runs in find_runs(numbers):
        for first, end, period in runs:
            assert end - first >= 4 * period
            assert (numbers[first + period : end] == numbers[first : end - period]).all()


def test_nested_loops_have_several_periods() -> None:
    inner = [1, 2, 3] * 10
    numbers = np.array([*[*inner, 4, 5] * 20], np.uint32)
    assert {runs[0].period for runs in find_runs(numbers)} >= {32, 3}


# ---- determinism ----


_PREDICT = """
import hashlib, sys
import torch
from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.multicore.ranks import RankArgumentsError, one_of
from trnx.simulator.timing.scheduler import schedule
kernels = load_module(sys.argv[1])
digest = hashlib.sha256()
shapes = ((1280, 128), (1280, 10240))
specs = [TensorSpec.dense(shape, torch.float32) for shape in shapes]
rows = trace(kernels.matmul, specs).rows
for target in ("trn1", "trn2", "trn3"):
    result = schedule(rows, hardware(target))
    for name in ("order", "queue", "start", "free", "visible", "cause", "reason"):
        digest.update(getattr(result, name).tobytes())
    digest.update(repr([result.busy_ps, result.stalled_ps, result.memory()]).encode())
print(digest.hexdigest())
"""


def test_hash_seeds_do_not_matter() -> None:
    kernels = str(Path(__file__).with_name("timing_kernels.py"))
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _PREDICT, kernels],
            env=os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, text=True,
        )
        for seed in ("0", "4242")
    ]  # fmt: skip
    found = [run.communicate(timeout=300)[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert len(found[0]) == 64
    assert len(set(found)) == 1


def test_times_are_integers(kernels: ModuleType) -> None:
    result = schedule(trace(kernels.matmul, [_spec(512, 128), _spec(512, 512)]).rows,
                      hardware("trn2"))  # fmt: skip
    assert all(isinstance(getattr(result, name), array) for name in COLUMNS)
    assert isinstance(result.total_ps, int)


# ---- what the columns say ----


def test_critical_path_adds_up_and_memory_returns_to_nothing(kernels: ModuleType) -> None:
    program = trace(kernels.matmul, [_spec(1024, 128), _spec(1024, 1024)])
    result = schedule(program.rows, hardware("trn2"))
    path = result.critical_path()
    assert sum(until - result.start[p] for p, until in path) == result.total_ps
    steps = result.memory()
    assert [step.ps for step in steps] == sorted(step.ps for step in steps)
    last = {(s.core, s.region): s.bytes_per_partition for s in steps}
    assert set(last.values()) == {0}
    chip = hardware("trn2")
    limit = {"sbuf": chip.sbuf_partition_bytes, "psum": chip.psum_partition_bytes}
    assert all(0 <= s.bytes_per_partition <= limit[s.region.value] for s in steps)


def test_waits_name_their_reason(kernels: ModuleType) -> None:
    # Tiles of 128 KiB: SBUF of trn2 holds one, so that the next load waits for its memory.
    result = schedule(
        trace(kernels.scale, [_spec(1024, 32768), True]).rows, hardware("trn2")
    )  # fmt: skip
    reasons = {Wait(reason) for reason in result.reason}
    assert {Wait.data, Wait.memory} <= reasons
    assert sum(result.stalled_ps[q][key] for q in result.stalled_ps
               for key in result.stalled_ps[q] if key[0] is Wait.memory) > 0  # fmt: skip


def test_unknown_trip_counts_are_named(kernels: ModuleType) -> None:
    program = trace(kernels.unknown_loop, [_spec(128, 512), _spec(1, 1, dtype=torch.int32)])
    once = schedule(program.rows, hardware("trn2"))
    often = schedule(program.rows, hardware("trn2"), unknown_trips=50)
    assert not once.is_exact
    assert "timing_kernels.py" in once.assumptions[0]
    assert len(often.order) > len(once.order)
    assert often.total_ps > once.total_ps


# ---- cores, ranks, classes ----


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_cores_meet(kernels: ModuleType, target: str) -> None:
    program = trace(kernels.uneven_cores, [_spec(128, 512)], target=target, grid=2)
    result = schedule(program.rows, hardware(target))
    meetings = [
        [
            p
            for p in range(len(result.order))
            if result.cost(p).meets and result.queue[p] // 8 == core
        ]
        for core in (0, 1)
    ]
    assert [len(own) for own in meetings] == [2, 2]
    for one, other in zip(*meetings, strict=True):
        assert result.start[one] == result.start[other]
    # The core with less work waits for the other.
    assert result.reason[meetings[0][0]] == Wait.partner
    assert sum(life.core for life in result.lifetimes) > 0


def test_two_cores_share_a_stack(kernels: ModuleType) -> None:
    shape = _spec(128 * 32, 8192)
    one = schedule(trace(kernels.scale, [_spec(128 * 16, 8192), True]).rows, hardware("trn2"))
    two = schedule(trace(kernels.shared_scale, [shape], grid=2).rows, hardware("trn2"))
    # Each core moves as much as `one`; 725 GB/s are less than twice 368.
    assert two.total_ps > one.total_ps
    assert two.total_ps > two.hbm_bytes / 725e9 * 1e12
    skipping = schedule(trace(kernels.shared_scale, [_spec(128 * 900, 64)], grid=2).rows,
                        hardware("trn2"))  # fmt: skip
    assert skipping.skipped > 0


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_cores_meet_in_loops(kernels: ModuleType, trips: int) -> None:
    program = trace(kernels.meets_in_a_loop, [_spec(128, 512), trips], target="trn2", grid=2)
    result = schedule(program.rows, hardware("trn2"))
    names = [program.rows[row].opcode for row in result.order]
    assert names.count("core_barrier") == 2 * 2 * trips
    assert names.count("tensor_scalar") == 3 + 3 * trips
    meetings: dict[int, list[int]] = {0: [], 1: []}
    for position, row in enumerate(result.order):
        if names[position] == "core_barrier":
            meetings[program.rows[row].core].append(position)
    for one, other in zip(meetings[0], meetings[1], strict=True):
        assert result.start[one] == result.start[other]


def test_cores_are_interleaved() -> None:
    cores = array("B", [0, 0, 0, 1, 1, 0])
    permutation = interleaved(cores)
    assert permutation is not None
    assert list(permutation) == [0, 3, 1, 4, 2, 5]
    assert interleaved(array("B", [0, 0])) is None


def test_a_higher_class_overtakes(kernels: ModuleType) -> None:
    x = _spec(128, 16384)
    plain, urgent = (
        schedule(trace(kernels.two_classes, [x, priority], target="trn3").rows, hardware("trn3"))
        for priority in (3, 0)
    )
    last = [max(p for p, b in enumerate(s.begin) if b >= 0 and s.cost(p).dma_bytes < 128 * 4096)
            for s in (plain, urgent)]  # fmt: skip
    assert urgent.last[last[1]] < plain.last[last[0]]
    assert json.dumps(urgent.total_ps)


def test_columns_of_rows_that_values_name(kernels: ModuleType) -> None:
    """Writes to the same columns have their order, those to other columns need not wait."""
    chip = hardware("trn2")

    def writes(*starts: int) -> tuple[Schedule, int, int]:
        rows = trace(kernels.scattered_columns, [_spec(128, 512), *starts], target="trn2").rows
        found = schedule(rows, chip)
        first, second = (p for p in range(len(found.order)) if found.order[p] >= len(rows) - 2)
        return found, first, second

    for second_start in (0, 255):
        found, first, second = writes(0, second_start)
        assert found.start[second] >= found.visible[first]
    found, first, second = writes(0, 256)
    assert found.start[second] < found.visible[first]


def _load_rate(kernels: ModuleType, rows: int, first: int, target: str) -> float:
    """Bytes a second of 16 loads of `rows` rows of 8 KiB."""
    arguments = [_spec(128, 32768), rows, first, 2048]
    result = schedule(trace(kernels.loads_of_rows, arguments, target=target).rows, hardware(target))
    loads = range(len(result.order) - 1)
    taken = max(result.last[p] for p in loads) - min(result.begin[p] for p in loads)
    return sum(result.cost(p).dma_bytes for p in loads) / taken * 1e12


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize(
    ("rows", "first", "engines"),
    [
        # The busiest engine has 8 rows at most, so 9 rows take no longer than 16.
        *((1, 0, 1), (8, 0, 1), (8, 4, 2), (9, 0, 9 / 8), (16, 4, 2), (64, 0, 8), (64, 64, 8)),
        *((127, 0, 127 / 8), (127, 1, 127 / 8), (128, 0, 16)),
    ],
)
def test_partitions_are_bound_to_dma_engines(
    kernels: ModuleType, target: str, rows: int, first: int, engines: float
) -> None:
    rate = _load_rate(kernels, rows, first, target)
    most = engines * hardware(target).dma_engine_rate
    assert rate <= most * 1.001
    if rows > 1:  # a trigger takes longer than one row
        assert rate == pytest.approx(most, rel=0.1)


def test_trn1_gives_transfers_the_engines_that_are_free(kernels: ModuleType) -> None:
    few, many = (_load_rate(kernels, rows, 0, "trn1") for rows in (64, 128))
    assert few == pytest.approx(many, rel=0.1)


def test_the_same_bank_of_psum_serves_one_engine(kernels: ModuleType) -> None:
    together = schedule(trace(kernels.two_readers, [_spec(128, 128), True]).rows, hardware("trn2"))
    apart = schedule(trace(kernels.two_readers, [_spec(128, 128), False]).rows, hardware("trn2"))
    assert Wait.port in {Wait(reason) for reason in together.reason}
    assert Wait.port not in {Wait(reason) for reason in apart.reason}


@pytest.mark.parametrize("target", TARGETS)
def test_collectives_cost_hops_and_bytes(target: str) -> None:
    collectives = load_module(
        Path(__file__).parent.parent / "ranks" / "rank_kernels.py"
    )  # fmt: skip

    def total(columns: int, ranks: int) -> int:
        arguments = [_spec(128, columns), [list(range(ranks))], "add", False]
        program = trace(collectives.reduces, arguments, target=target, rank=one_of(ranks))
        return schedule(program.rows, hardware(target)).total_ps

    few, many = total(4096, 2), total(8192, 2)
    assert few < many < 2 * few
    # A ring has two hops of 1.5 us more for each rank more, and more bytes for each.
    assert total(1, 4) - total(1, 3) >= 2 * 1_500_000
    chip = hardware(target)
    across = 2 * chip.cores_per_chip
    assert total(8192, across) > total(8192, chip.cores_per_chip)
    # What crosses chips does not beat the links.
    link = chip.neuronlink_bytes_per_second / chip.cores_per_chip
    nbytes = 2 * 128 * 8192 * 4 * (across - 1) / across
    assert total(8192, across) / 1e12 >= nbytes / link


def test_ranks_that_are_not_there_are_refused() -> None:
    with pytest.raises(RankArgumentsError, match="rank 4 is not one of 4"):
        one_of(4, 4)


@pytest.mark.parametrize("target", TARGETS)
def test_row_tiles_work_side_by_side(kernels: ModuleType, target: str) -> None:
    bf16 = torch.bfloat16
    specs = [_spec(128, 128, dtype=bf16), _spec(128, 512, dtype=bf16)]
    chip = hardware(target)
    whole, halves = (
        trace(kernels.row_tiles, [*specs, 3000, tiles], target=target) for tiles in (1, 2)
    )
    one, two = schedule(whole.rows, chip), schedule(halves.rows, chip)
    assert two.total_ps == pytest.approx(one.total_ps / 2, rel=0.1)
    # As many FLOPs a second as the whole array has, no more.
    assert two.total_ps / 1e12 >= halves.matmul_flops / (2 * 128 * 128 * chip.pe_clock)
    _assert_equal(*_both(halves, target))
    assert two.skipped > 0
