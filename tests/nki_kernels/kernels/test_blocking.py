"""Layouts and block sizes of matrix products: host-side planning."""

from __future__ import annotations

import pytest
import torch

from trnx.nki_kernels.kernels._blocking import (
    COLUMNS,
    DMA,
    ROWS,
    block_sizes,
    leading_dims_merge,
    operand_layout,
)
from trnx.simulator.hardware import TRN1, TRN2, TRN3, Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

SIZES = (1, 127, 128, 129, 513, 4096, 50257, 1_000_000)


def spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec.of(tensor)


def test_row_major_operands_are_transposed() -> None:
    for tensor in (torch.empty(6, 8), torch.empty(2, 3, 8), torch.empty(6, 8).bfloat16()):
        assert operand_layout(spec(tensor), TRN1) == ROWS
        assert operand_layout(spec(tensor), TRN2) == DMA
        assert operand_layout(spec(tensor), TRN3) == DMA


def test_transposed_views_need_no_transposes() -> None:
    assert operand_layout(spec(torch.empty(8, 6).mT), TRN2) == COLUMNS
    assert operand_layout(spec(torch.empty(2, 8, 6).mT), TRN2) == COLUMNS


def test_one_row_needs_no_transposes() -> None:
    assert operand_layout(spec(torch.empty(8)), TRN2) == COLUMNS
    assert operand_layout(spec(torch.empty(1, 8)), TRN2) == COLUMNS


def test_neither_dimension_adjacent_loads_rows() -> None:
    assert operand_layout(spec(torch.empty(6, 16)[:, ::2]), TRN2) == ROWS
    assert operand_layout(spec(torch.ones(()).expand(6, 8)), TRN2) == ROWS


def test_leading_dims_merge() -> None:
    assert leading_dims_merge(spec(torch.empty(8)))
    assert leading_dims_merge(spec(torch.empty(2, 3, 8)))
    assert leading_dims_merge(spec(torch.empty(2, 1, 3, 8)))
    assert leading_dims_merge(spec(torch.empty(2, 3, 8)[..., ::2]))
    assert leading_dims_merge(spec(torch.empty(6, 8).mT))
    assert not leading_dims_merge(spec(torch.empty(2, 3, 8)[:, :2]))
    assert not leading_dims_merge(spec(torch.empty(2, 8, 3).mT))


@pytest.mark.parametrize("hw", [TRN1, TRN2, TRN3], ids=lambda hw: hw.target)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_blocks_of_any_size_fit_twice(hw: Hardware, itemsize: int) -> None:
    for rows in SIZES:
        for columns in SIZES:
            for depth in SIZES:
                assert_fits(rows, columns, depth, itemsize, hw)


def assert_fits(rows: int, columns: int, depth: int, itemsize: int, hw: Hardware) -> None:
    block_rows, block_columns, block_depth, keep = block_sizes(rows, columns, depth, itemsize, hw)
    assert block_rows % 128 == 0
    # Narrow blocks of a deep matrix are for few rows, which are kept.
    unit = 128 if keep else 512
    assert block_columns % unit == 0
    assert block_depth == depth or block_depth % 128 == 0
    height = min(block_rows, -(-rows // 128) * 128)
    width = min(block_columns, -(-columns // unit) * unit)
    chunks = -(-block_depth // 128)
    weights, data = chunks * width * itemsize, chunks * height * itemsize
    used = (1 if columns <= block_columns else 2) * weights + 2 * data
    if keep:
        assert block_depth == depth
        used = 2 * weights + chunks * -(-rows // 128) * 128 * itemsize
    if block_depth < depth:
        used = weights + data + height // 128 * width * 4
        assert min(block_rows, block_columns) >= 1024  # reloads are rare enough
    used += 2 * 16384 + 2 * width * itemsize  # rows to transpose, a tile of the result, bias
    assert used <= hw.sbuf_partition_bytes, (rows, columns, depth)


def test_a_weight_that_fits_is_one_block() -> None:
    assert block_sizes(1024, 3072, 768, 4, TRN1) == (512, 3072, 768, False)


def test_columns_are_split_evenly() -> None:
    assert block_sizes(1024, 6000, 768, 4, TRN1) == (512, 2048, 768, True)


def test_rows_stay_in_sbuf_while_a_large_weight_streams() -> None:
    block_rows, _, depth, keep = block_sizes(64, 50257, 768, 4, TRN2)
    assert (block_rows, depth, keep) == (128, 768, True)
    assert not block_sizes(100_000, 50257, 768, 4, TRN2)[3]
