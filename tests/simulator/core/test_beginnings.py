"""The first instructions of a kernel are those that its whole trace has."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.errors import FindingError
from trnx.simulator.frontend.tracing import trace_beginning

TARGETS = ("trn1", "trn2", "trn3")


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("beginning_kernels.py"))


def _x(rows: int) -> TensorSpec:
    return TensorSpec.dense((rows, 64), torch.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("most", [0, 1, 7, 29, 30, 31])
def test_it_ends_after_so_many_instructions(kernels: ModuleType, target: str, most: int) -> None:
    whole = list(trace(kernels.tiles, [_x(128 * 10)], target=target).rows)
    found = trace_beginning(kernels.tiles, [_x(128 * 10)], most, target=target)
    assert len(whole) == 30
    assert list(found.rows) == whole[:most]
    assert found.is_whole == (most >= 30)


def test_each_core_has_its_own(kernels: ModuleType) -> None:
    arguments = [_x(128 * 10)]
    whole = list(trace(kernels.tiles, arguments, target="trn2", grid=2).rows)
    found = trace_beginning(kernels.tiles, arguments, 4, target="trn2", grid=2)
    for core in (0, 1):
        own = [row for row in whole if row.core == core]
        cut = [row for row in found.rows if row.core == core]
        assert [row.opcode for row in cut] == [row.opcode for row in own[:4]]
        assert [row.location for row in cut] == [row.location for row in own[:4]]
    assert not found.is_whole


def test_a_register_loop_is_recorded_to_its_end(kernels: ModuleType) -> None:
    found = trace_beginning(kernels.turns, [_x(128), 5], 2, target="trn2")
    whole = list(trace(kernels.turns, [_x(128), 5], target="trn2").rows)
    (loop,) = found.rows.loops
    assert loop[2] == 5
    assert list(found.rows) == whole[: loop[1]]
    assert not found.is_whole


def test_what_is_recorded_is_checked(kernels: ModuleType) -> None:
    with pytest.raises(FindingError, match="uninitialised"):
        trace_beginning(kernels.reads_nothing, [_x(128)], 10, target="trn2")


def test_a_program_that_waits_for_one_that_ended_raises(kernels: ModuleType) -> None:
    with pytest.raises(Exception, match="program"):
        trace_beginning(kernels.meets, [_x(128)], 2, target="trn2", grid=2)
