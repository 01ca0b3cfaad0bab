"""Rows that a gather skipped: a read of them is found, in every run, where they were unwritten."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, load_module, simulate, trace
from trnx.simulator.errors import UninitialisedReadError

TABLE = torch.randn(10, 4)
OUT = 99


@pytest.fixture(scope="module")
def skipping() -> ModuleType:
    return load_module(Path(__file__).with_name("skipping_kernels.py"))


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_rows_that_no_result_needs_may_be_skipped(skipping: ModuleType) -> None:
    got = simulate(skipping.doubles_rows)(TABLE, _ids(3, 5, OUT), 2)
    assert torch.equal(got, TABLE[[3, 5]] * 2)
    got = simulate(skipping.doubles_rows)(TABLE, _ids(3, 5, 0), 3)
    assert torch.equal(got, TABLE[[3, 5, 0]] * 2)


@pytest.mark.parametrize("ids", [(OUT, 1, 2), (1, -1, 2), (1, 2, 10)])
def test_a_result_needs_a_skipped_row(skipping: ModuleType, ids: tuple[int, ...]) -> None:
    with pytest.raises(UninitialisedReadError, match=r"tensor_scalar: data .* skipped") as caught:
        simulate(skipping.doubles_rows)(TABLE, _ids(*ids), 3)
    assert caught.value.location is not None
    source = Path(caught.value.location.file).read_text().splitlines()
    assert "tensor_scalar" in source[caught.value.location.line - 1]


def test_a_replay_finds_it_by_its_own_values(skipping: ModuleType) -> None:
    specs = [TensorSpec.of(TABLE), TensorSpec.of(_ids(0, 0, 0))]
    program = trace(skipping.doubles_rows, [*specs, 3])
    for _ in range(2):
        assert torch.equal(program.run([TABLE, _ids(1, 2, 3)])[0], TABLE[1:4] * 2)
        with pytest.raises(UninitialisedReadError, match="skipped"):
            program.run([TABLE, _ids(1, OUT, 3)])


def test_two_gathers_fill_a_tile(skipping: ModuleType) -> None:
    kernel = simulate(skipping.sums_rows)
    got = kernel(TABLE, _ids(4, OUT, 6), _ids(OUT, 1, OUT))
    assert torch.allclose(got[0], TABLE[[4, 1, 6]].sum(0))
    with pytest.raises(UninitialisedReadError, match=r"nc_matmul: moving .* skipped"):
        kernel(TABLE, _ids(4, OUT, 6), _ids(OUT, OUT, 2))


def test_a_result_may_be_gathered(skipping: ModuleType) -> None:
    kernel = simulate(skipping.gathers_to_the_result)
    assert torch.equal(kernel(TABLE, _ids(4, 2), False), TABLE[[4, 2]])
    filled = kernel(TABLE, _ids(4, OUT), True)
    assert torch.equal(filled, torch.stack((TABLE[4], torch.zeros(4))))
    with pytest.raises(UninitialisedReadError, match=r"result .* skipped"):
        kernel(TABLE, _ids(4, OUT), False)


def test_a_gather_that_converts(skipping: ModuleType) -> None:
    kernel = simulate(skipping.gathers_converted)
    assert torch.equal(kernel(TABLE, _ids(4, OUT), 1), TABLE[4:5].bfloat16())
    with pytest.raises(UninitialisedReadError, match="skipped"):
        kernel(TABLE, _ids(4, OUT), 2)


def test_a_transpose_keeps_columns_that_it_skips(skipping: ModuleType) -> None:
    table = torch.randn(64, 64).bfloat16()
    ids = torch.arange(16, dtype=torch.int32) * 3
    ids[5:] = 64
    kernel = simulate(skipping.transposes_rows)
    got = kernel(table, ids, 16, True)
    assert torch.equal(got[:, :5], table[ids[:5].long()].t())
    assert torch.equal(got[:, 5:], torch.full((64, 11), 7.0).bfloat16())
    assert torch.equal(kernel(table, ids, 5, False), got[:, :5])
    with pytest.raises(UninitialisedReadError, match="skipped"):
        kernel(table, ids, 6, False)


def test_a_gather_from_skipped_rows(skipping: ModuleType) -> None:
    kernel = simulate(skipping.gathers_from_gathered)
    ids = _ids(4, OUT, 2)
    assert torch.equal(kernel(TABLE, _ids(4, 3, 2), _ids(2, 1)), TABLE[[2, 3]])
    assert torch.equal(kernel(TABLE, ids, _ids(2, 0)), TABLE[[2, 4]])
    with pytest.raises(UninitialisedReadError, match="skipped"):
        kernel(TABLE, ids, _ids(2, 1))
