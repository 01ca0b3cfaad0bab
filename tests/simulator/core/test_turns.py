"""Register loops of two programs: their accesses to shared HBM are compared turn by turn."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import UnorderedAccessError
from trnx.simulator.program.listing import listing


@pytest.fixture(scope="module")
def twin() -> ModuleType:
    return load_module(Path(__file__).with_name("turn_kernels.py"))


def _whole(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
SAME = X[:1].expand(2, 3).contiguous()


@pytest.mark.parametrize("reads_back", [False, True])
@pytest.mark.parametrize(
    ("x", "ids", "counts"),
    [
        (X, [[0, 1, 2], [3, 4, 5]], [3, 3]),
        (X, [[0, 1, 2], [3, 4, 2]], [3, 2]),  # the last of program 1 is not reached
        (X, [[1, 1, 1], [7, 7, 0]], [2, 3]),
        (SAME, [[0, 1, 2], [2, 1, 5]], [3, 3]),  # the same values
    ],
)
def test_programs_with_rows_of_their_own_pass(
    twin: ModuleType,
    x: torch.Tensor,
    ids: list[list[int]],
    counts: list[int],
    reads_back: bool,
) -> None:
    turns = _whole(*([count] for count in counts))
    got = simulate(twin.stores_rows[2])(x, _whole(*ids), turns, reads_back)
    want = torch.zeros(8, 3)
    for program in (0, 1):
        for row in ids[program][: counts[program]]:
            want[row] = x[program]
    assert torch.equal(got, want)


@pytest.mark.parametrize("ids", [[[0, 1, 2], [3, 4, 2]], [[5, 6, 7], [5, 6, 7]]])
def test_a_row_that_both_store_is_found(twin: ModuleType, ids: list[list[int]]) -> None:
    with pytest.raises(UnorderedAccessError, match=r"program 0 writes .* program 1") as error:
        simulate(twin.stores_rows[2])(X, _whole(*ids), _whole([3], [3]), False)
    assert error.value.location is not None
    assert error.value.location.function == "stores_rows"


def _orders(first: list[int], second: list[int]) -> torch.Tensor:
    return torch.tensor([[first, first], [second, second]], dtype=torch.int32)


def test_rows_of_vector_indices_are_compared(twin: ModuleType) -> None:
    x = torch.randn(2, 3)
    got = simulate(twin.gathers_what_the_other_scatters[2])(x, _orders([0, 1], [4, 5]))
    assert torch.equal(got, torch.zeros(2, 3))
    with pytest.raises(UnorderedAccessError, match=r"program 0 writes .* program 1 reads"):
        simulate(twin.gathers_what_the_other_scatters[2])(x, _orders([0, 1], [4, 1]))


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_turns_are_compared_with_other_turns(twin: ModuleType, turns: int) -> None:
    count = _whole([turns])
    want = X.flip(0) if turns % 2 else X
    assert torch.equal(simulate(twin.reads_before_it_waits[2])(X, count, 2), want)
    if turns < 2:
        assert torch.equal(simulate(twin.reads_before_it_waits[2])(X, count, 1), want)
        return
    with pytest.raises(UnorderedAccessError, match="nothing that orders the two"):
        simulate(twin.reads_before_it_waits[2])(X, count, 1)


def test_findings_may_be_warnings_and_programs_are_the_same(twin: ModuleType) -> None:
    ids, counts = _whole([0, 1, 2], [3, 4, 2]), _whole([3], [3])
    tensors = [X, ids, counts]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with_values = trace(
            twin.stores_rows, [*tensors, False], grid=2, values=True, warn=("shared-hbm-order",)
        )
    assert len(found) == 1
    without = trace(twin.stores_rows, [*map(TensorSpec.of, tensors), False], grid=2)
    assert listing(with_values) == listing(without)
