"""The compiler's passes: what each changes, what it leaves alone, and what the profile says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

import trnx
from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.hardware import TRN2, hardware
from trnx.simulator.timing.compiler import EVERY, PROGRAM_ORDER, USUAL, Pass
from trnx.simulator.timing.schedule import Schedule
from trnx.simulator.timing.scheduler import schedule

ROWS, COLUMNS = 1024, 2048


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("pass_kernels.py"))


def _sums(kernels: ModuleType, how: str, columns: int = 512) -> Program:
    spec = TensorSpec.dense((ROWS, columns), torch.float32)
    return trace(kernels.sums, [spec, spec, how], target="trn2")


def _products(kernels: ModuleType, how: str) -> Program:
    x = TensorSpec.dense((128, ROWS), torch.float32)
    w = TensorSpec.dense((128, COLUMNS), torch.float32)
    return trace(kernels.products, [x, w, how], target="trn2")


@pytest.mark.parametrize("columns", [1, 127, 512])
def test_a_copied_result_is_written_in_place(kernels: ModuleType, columns: int) -> None:
    direct = schedule(_sums(kernels, "direct", columns).rows, TRN2)
    copied = _sums(kernels, "copied", columns).rows
    found = schedule(copied, TRN2)
    assert found.total_ps == direct.total_ps
    assert len(found.order) == len(direct.order)
    assert len(found.changed.copies) == 1
    without = schedule(copied, TRN2, passes=USUAL - {Pass.forward_copies})
    assert len(without.order) == len(direct.order) + ROWS // 128
    assert without.changed.copies == ()


@pytest.mark.parametrize("how", ["in place", "cast", "used again"])
def test_copies_that_are_needed_stay(kernels: ModuleType, how: str) -> None:
    rows = _sums(kernels, how).rows
    found = schedule(rows, TRN2)
    assert found.changed.copies == ()
    assert len(found.order) == len(rows)


def test_the_next_turn_starts_before_the_results_of_this_one(kernels: ModuleType) -> None:
    """As if the kernel were written so."""
    turns = _products(kernels, "turns").rows
    ahead = schedule(_products(kernels, "ahead").rows, TRN2).total_ps
    in_order = schedule(turns, TRN2).total_ps
    reordered = schedule(turns, TRN2, passes=EVERY)
    assert in_order > 1.1 * ahead
    assert reordered.total_ps <= 1.02 * ahead
    assert reordered.total_ps >= max(reordered.busy_ps.values())
    assert sorted(reordered.order) == list(range(len(turns)))
    _results_come_first(reordered, schedule(turns, TRN2, passes=EVERY))


def _results_come_first(found: Schedule, again: Schedule) -> None:
    assert found.order == again.order
    assert found.start == again.start
    position = {row: at for at, row in enumerate(found.order)}
    # A tile is loaded, scaled four times, multiplied: rows of one turn follow each other.
    first = next(row for row in found.order if found.cost(position[row]).queue == 1)
    for row in range(first, first + 3):
        assert found.visible[position[row]] <= found.start[position[row + 1]]


def test_what_must_stay_in_order_does(kernels: ModuleType) -> None:
    ordered = _products(kernels, "ordered").rows
    assert ordered.ordered == [(1, len(ordered))]
    turns = _products(kernels, "turns").rows
    in_order = schedule(ordered, TRN2).total_ps
    assert in_order == schedule(turns, TRN2).total_ps
    assert schedule(ordered, TRN2, passes=EVERY).total_ps == in_order
    count = TensorSpec.dense((128, 64), torch.float32)
    looped = trace(kernels.counted, [count, 3], target="trn2").rows
    assert schedule(looped, TRN2, passes=EVERY).order == schedule(looped, TRN2).order


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_re_ordering_never_costs_time(kernels: ModuleType, target: str) -> None:
    chip = hardware(target)
    for how in ("turns", "ahead", "ordered"):
        rows = _products(kernels, how).rows
        usual = schedule(rows, chip).total_ps
        assert schedule(rows, chip, passes=EVERY).total_ps <= usual
        assert usual <= schedule(rows, chip, passes=PROGRAM_ORDER).total_ps


def test_the_profile_says_what_the_compiler_may_do(kernels: ModuleType) -> None:
    x = torch.empty(128, ROWS, device="meta")
    w = torch.empty(128, COLUMNS, device="meta")
    specs = [TensorSpec.of(x), TensorSpec.of(w)]
    profile = trnx.profile(kernels.products, *specs, "turns", target="trn2")
    assert profile.reordered_seconds is not None
    assert profile.busiest_seconds <= profile.reordered_seconds < profile.total_seconds
    assert "the compiler may re-order it" in str(profile)
    ahead = trnx.profile(kernels.products, *specs, "ahead", target="trn2")
    assert "the compiler may re-order it" not in str(ahead)
    spec = TensorSpec.dense((ROWS, 512), torch.float32)
    copied = trnx.profile(kernels.sums, spec, spec, "copied", target="trn2")
    assert [place.function for place in copied.copied] == ["sums"]
    assert "are taken not to be made" in str(copied)
    assert copied.program_order_seconds > copied.total_seconds
    assert copied.to_dict()["copied"]
