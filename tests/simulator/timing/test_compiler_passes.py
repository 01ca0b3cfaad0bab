"""The compiler's passes: what each changes, what it leaves alone, and what the profile says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

import trnx
from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.hardware import TRN2
from trnx.simulator.timing.compiler import EVERY, Pass
from trnx.simulator.timing.scheduler import schedule

ROWS = 1024


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("pass_kernels.py"))


def _sums(kernels: ModuleType, how: str, columns: int = 512) -> Program:
    spec = TensorSpec.dense((ROWS, columns), torch.float32)
    return trace(kernels.sums, [spec, spec, how], target="trn2")


@pytest.mark.parametrize("columns", [1, 127, 512])
def test_a_copied_result_is_written_in_place(kernels: ModuleType, columns: int) -> None:
    direct = schedule(_sums(kernels, "direct", columns).rows, TRN2)
    copied = _sums(kernels, "copied", columns).rows
    found = schedule(copied, TRN2)
    assert found.total_ps == direct.total_ps
    assert len(found.order) == len(direct.order)
    assert len(found.changed.copies) == 1
    without = schedule(copied, TRN2, passes=EVERY - {Pass.forward_copies})
    assert len(without.order) == len(direct.order) + ROWS // 128
    assert without.changed.copies == ()


def test_a_result_goes_where_its_operand_lies(kernels: ModuleType) -> None:
    found = schedule(_sums(kernels, "in place").rows, TRN2)
    assert found.total_ps == schedule(_sums(kernels, "direct").rows, TRN2).total_ps
    assert len(found.changed.copies) == 1


@pytest.mark.parametrize("how", ["shifted", "scanned", "cast", "used again"])
def test_copies_that_are_needed_stay(kernels: ModuleType, how: str) -> None:
    rows = _sums(kernels, how).rows
    found = schedule(rows, TRN2)
    assert found.changed.copies == ()
    assert len(found.order) == len(rows)


def test_the_profile_says_what_the_compiler_may_do(kernels: ModuleType) -> None:
    spec = TensorSpec.dense((ROWS, 512), torch.float32)
    copied = trnx.profile(kernels.sums, spec, spec, "copied", target="trn2")
    assert [place.function for place in copied.copied] == ["sums"]
    assert "are taken not to be made" in str(copied)
    assert copied.program_order_seconds > copied.total_seconds > copied.busiest_seconds > 0
    assert copied.to_dict()["copied"]
