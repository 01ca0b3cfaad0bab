"""Tiles that a kernel writes anew: the compiler gives each value a copy, as far as memory goes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trnx
from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.hardware import TRN2, hardware
from trnx.simulator.timing.compiler import PROGRAM_ORDER
from trnx.simulator.timing.profile import Profile
from trnx.simulator.timing.scheduler import schedule

TARGETS = ("trn1", "trn2", "trn3")


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("timing_kernels.py"))


def _spec(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec.dense(shape, dtype)


def _block_sums(kernels: ModuleType, target: str, is_cleared: bool, is_fresh: bool) -> Profile:
    tensors = (_spec(512, 1024, dtype=torch.bfloat16), _spec(512, 512, dtype=torch.bfloat16))
    return trnx.profile(kernels.block_sums, *tensors, is_cleared, is_fresh, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_cleared", [True, False])
def test_a_tile_for_all_turns_is_as_fast_as_one_for_each(
    kernels: ModuleType, target: str, is_cleared: bool
) -> None:
    reused = _block_sums(kernels, target, is_cleared, is_fresh=False)
    fresh = _block_sums(kernels, target, False, is_fresh=True)
    assert reused.total_seconds == pytest.approx(fresh.total_seconds, rel=0.01)
    assert reused.program_order_seconds > 1.05 * reused.total_seconds
    assert fresh.program_order_seconds == fresh.total_seconds
    assert {line.function for line in reused.rewritten} == {"block_sums"}
    assert not fresh.rewritten
    assert "in program order" in str(reused)
    assert "in program order" not in str(fresh)
    assert reused.to_dict()["program_order_seconds"] == reused.program_order_seconds


def test_a_memset_that_nothing_reads_takes_no_time(kernels: ModuleType) -> None:
    result = schedule(trace(kernels.cleared_twice, [_spec(128, 512)], target="trn2").rows, TRN2)
    assert len(result.order) == 2
    both = trace(kernels.cleared_twice, [_spec(128, 512)], target="trn2").rows
    assert len(schedule(both, TRN2, passes=PROGRAM_ORDER).order) == 3


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("running_sum", ()), ("by_halves", ()), ("placed", ()), ("scale", (True,))],
)
def test_what_is_read_before_it_is_written_stays_as_it_is(
    kernels: ModuleType, name: str, arguments: tuple[Any, ...]
) -> None:
    for target in TARGETS:
        found = trnx.profile(getattr(kernels, name), _spec(1024, 512), *arguments, target=target)
        assert found.program_order_seconds == found.total_seconds
        assert found.rewritten == ()


def test_copies_end_where_memory_ends(kernels: ModuleType) -> None:
    # Three quarters of SBUF: there is no second copy.
    columns = TRN2.sbuf_partition_bytes * 3 // 4 // 4
    full = trnx.profile(kernels.scale, _spec(1024, columns), False, target="trn2")
    assert full.total_seconds == full.program_order_seconds
    half = trnx.profile(kernels.scale, _spec(1024, columns // 3), False, target="trn2")
    assert half.total_seconds < 0.8 * half.program_order_seconds


@pytest.mark.parametrize("target", TARGETS)
def test_repetition_is_skipped_with_the_same_times(kernels: ModuleType, target: str) -> None:
    tensors = [_spec(512, 40960, dtype=torch.bfloat16), _spec(512, 512, dtype=torch.bfloat16)]
    rows = trace(kernels.block_sums, [*tensors, True, False], target=target).rows
    skipping, plain = (schedule(rows, hardware(target), skips=skips) for skips in (True, False))
    assert skipping.skipped > 0
    assert skipping.total_ps == plain.total_ps
    assert skipping.start == plain.start
