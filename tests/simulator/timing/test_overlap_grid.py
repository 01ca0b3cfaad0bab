"""Operands share a cell where, and only where, they share a byte."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.overlap_grid import OverlapGrid
from trnx.simulator.timing.scheduler import schedule

Part = tuple[int, int, int, int, int]
Elements = set[tuple[int, int]]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("timing_kernels.py"))


def _elements(part: Part) -> Elements:
    top, bottom, left, right, step = part
    return {(row, column) for row in range(top, bottom) for column in range(left, right, step)}


def _assert_exact(program: Program, parts: list[Elements]) -> None:
    cells = OverlapGrid(program.rows).of
    assert len(cells) == len(parts)
    for (one, own), (other, theirs) in combinations(zip(cells, parts, strict=True), 2):
        assert bool(set(one) & set(other)) == bool(own & theirs)


def _parts() -> st.SearchStrategy[Part]:
    rows = st.sampled_from([(0, 128), (0, 64), (32, 64), (64, 128)])
    starts = st.tuples(st.integers(0, 100), st.integers(1, 156))
    return st.builds(
        lambda rows, columns, step: (*rows, columns[0], sum(columns), step),
        *(rows, starts, st.sampled_from([1, 2, 3, 4, 64])),
    )


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(_parts(), min_size=1, max_size=6))
def test_cells_are_shared_where_bytes_are(kernels: ModuleType, parts: list[Part]) -> None:
    _assert_exact(trace(kernels.cleared_parts, [parts]), [_elements(part) for part in parts])


def test_parts_of_heads_are_apart(kernels: ModuleType) -> None:
    parts = [(0, 16), (16, 32), (8, 24), (0, 32), (31, 32)]
    elements = [{(0, h * 32 + c) for h in range(8) for c in range(*part)} for part in parts]
    _assert_exact(trace(kernels.cleared_heads, [parts]), elements)


def test_very_many_walks_never_miss_an_overlap(kernels: ModuleType) -> None:
    """There cells may be shared by what is apart."""
    parts: list[Part] = [(0, 128, 0, 256, step) for step in range(1, 80)]
    parts += [(0, 128, column, column + 1, 1) for column in range(256)]
    cells = OverlapGrid(trace(kernels.cleared_parts, [parts]).rows).of
    assert sum(map(len, cells)) <= 128 * len(parts)
    for (one, own), (other, theirs) in combinations(zip(cells, parts, strict=True), 2):
        assert set(one) & set(other) or not _elements(own) & _elements(theirs)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_column_that_a_value_names_is_waited_for(kernels: ModuleType, target: str) -> None:
    arguments = [TensorSpec.dense((128, 64), torch.float32), TensorSpec.dense((1, 1), torch.int32)]
    rows = trace(kernels.column_of_value, [*arguments, 5], target=target).rows
    found = schedule(rows, hardware(target))
    write, read = (found.order.index(len(rows) - n) for n in (2, 1))
    assert found.start[read] >= found.visible[write]
