"""Elements that nothing has written, handed on: found where they are used, and there alone."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import load_module, simulate
from trnx.simulator.errors import UninitialisedReadError


@pytest.fixture(scope="module")
def partial() -> ModuleType:
    return load_module(Path(__file__).with_name("partial_kernels.py"))


@pytest.mark.parametrize("rows", [4, 33, 127])
def test_a_shuffle_hands_on_what_its_mask_takes(partial: ModuleType, rows: int) -> None:
    x = torch.randn(rows, 5)
    got = simulate(partial.broadcasts_a_partition)(x, 3, 0)
    assert torch.equal(got, x[3:4].expand(32, 5))
    last = (rows - 4) // 32
    got = simulate(partial.broadcasts_a_partition)(x, 3, last)
    assert torch.equal(got, x[32 * last + 3 :][:1].expand(32, 5))
    with pytest.raises(UninitialisedReadError, match="nc_stream_shuffle: src"):
        simulate(partial.broadcasts_a_partition)(x, 31 if rows == 127 else 3, 3)


def test_a_shuffle_keeps_what_it_does_not_write(partial: ModuleType) -> None:
    x = torch.randn(2, 5)
    for used in (0, 16):
        got = simulate(partial.moves_one_partition)(x, used)
        assert torch.equal(got, x[1:2])
    for used in (1, 32, 48):
        with pytest.raises(UninitialisedReadError, match="nc_stream_shuffle"):
            simulate(partial.moves_one_partition)(x, used)


def test_an_exchange_lacks_what_the_other_program_lacks(partial: ModuleType) -> None:
    x = torch.randn(5, 7)
    got = simulate(partial.exchanges_unequal_parts, grid=2)(x, (2, 3))
    assert torch.equal(got[0], torch.cat([x[3:5], torch.zeros(1, 7)]))
    assert torch.equal(got[1], x[0:3])
    with pytest.raises(UninitialisedReadError, match="sendrecv: src"):
        simulate(partial.exchanges_unequal_parts, grid=2)(x, (3, 3))


def test_a_predicate_decides_element_by_element(partial: ModuleType) -> None:
    x, mask = torch.randn(3, 6), torch.randint(0, 2, (3, 5), dtype=torch.uint8)
    got = simulate(partial.selects_by_a_partial_mask)(x, mask, 5)
    assert torch.equal(got, x[:, :5] * mask)
    with pytest.raises(UninitialisedReadError, match="tensor_copy_predicated: predicate"):
        simulate(partial.selects_by_a_partial_mask)(x, mask, 6)


def test_two_opposite_predicates_fill_a_tile(partial: ModuleType) -> None:
    x, y = torch.randn(2, 3, 5)
    mask = torch.randint(0, 2, (3, 5), dtype=torch.uint8)
    run = simulate(partial.fills_by_two_predicates)
    assert torch.equal(run(x, y, mask, True, False), torch.where(mask > 0, x, y))
    assert torch.equal(run(y, x, 1 - mask, True, False), torch.where(mask > 0, x, y))


@pytest.mark.parametrize(("second", "changes_mask"), [(False, False), (True, True)])
def test_other_predicates_leave_elements_unwritten(
    partial: ModuleType, second: bool, changes_mask: bool
) -> None:
    x, mask = torch.randn(3, 5), torch.ones(3, 5, dtype=torch.uint8)
    with pytest.raises(UninitialisedReadError, match="dma_copy: src") as finding:
        simulate(partial.fills_by_two_predicates)(x, x, mask, second, changes_mask)
    assert finding.value.location is not None
    line = Path(partial.__file__).read_text().splitlines()[finding.value.location.line - 1]
    assert line.strip() == "nisa.dma_copy(dst=out, src=tile)"


def test_a_shuffle_into_a_new_tile_is_found_where_the_rest_is_read(partial: ModuleType) -> None:
    x = torch.randn(32, 4)
    assert torch.equal(simulate(partial.shuffles_into_a_new_tile)(x, 0), x[:1].expand(16, 4))
    with pytest.raises(UninitialisedReadError, match="tensor_scalar") as finding:
        simulate(partial.shuffles_into_a_new_tile)(x, 16)
    assert finding.value.location is not None
    line = Path(partial.__file__).read_text().splitlines()[finding.value.location.line - 1]
    assert line.strip() == "rows = nl.add(spread, 0.0)"


def test_nonzeros_are_counted_on_every_sixteenth_partition(partial: ModuleType) -> None:
    x = torch.zeros(64, 4)
    x[16, 1:3] = 1.0
    kernel = simulate(partial.counts_nonzeros)
    assert kernel(x, 16, False).tolist() == [[1, 2, -1, -1, 2]]
    got = kernel(x, 16, True)
    assert got[0].tolist() == [1, 2, -1, -1, 2]
    assert bool((got[1:] == 7).all())
    for row in (1, 17, 63):
        with pytest.raises(UninitialisedReadError, match="dma_copy: src"):
            kernel(x, row, False)


@pytest.mark.parametrize("rows", [1, 127])
def test_functions_of_tiles_hand_on_what_is_missing(partial: ModuleType, rows: int) -> None:
    x = torch.randn(rows, 6)
    kernel = simulate(partial.computes_on_a_part)
    torch.testing.assert_close(kernel(x, rows, 6, False), torch.floor(x) * torch.cos(x))
    for more in ((rows + 1, 6), (rows, 7)):
        with pytest.raises(UninitialisedReadError, match="operand"):
            kernel(x, *more, False)
    # A maximum of a row needs all of the row.
    with pytest.raises(UninitialisedReadError, match="operand"):
        kernel(x, rows, 1, True)


def test_a_product_that_is_added_to_what_is_missing(partial: ModuleType) -> None:
    a, b = torch.randn(33, 20), torch.randn(33, 7)
    kernel = simulate(partial.adds_to_a_partial_product)
    torch.testing.assert_close(kernel(a, b, 20), 2 * a.t() @ b, rtol=1e-5, atol=1e-5)
    with pytest.raises(UninitialisedReadError, match="nc_matmul: stationary"):
        kernel(a, b, 21)
