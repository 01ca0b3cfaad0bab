"""DMA: casts, indirect gather and scatter, transposes, read-modify-write."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, simulate, trace
from trnx.simulator.errors import OutOfBoundsError


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_gather_rows(kernels: ModuleType, dtype: torch.dtype) -> None:
    table = torch.arange(40).view(10, 4).to(dtype)
    ids = _ids(3, 0, 9, 3, 5)
    assert torch.equal(simulate(kernels.gather)(table, ids), table[ids])
    assert torch.equal(
        simulate(kernels.gather_by_pattern)(table.float(), ids, False), table[ids].float()
    )
    program = trace(kernels.gather, [TensorSpec.of(table), TensorSpec.of(ids)])
    for shift in (0, 1):
        assert torch.equal(program.run([table, (ids + shift) % 10])[0], table[(ids + shift) % 10])


def test_gather_from_a_strided_table(kernels: ModuleType) -> None:
    table = torch.randn(4, 10).t()
    ids = _ids(9, 2)
    assert torch.equal(simulate(kernels.gather)(table, ids), table[ids])


@pytest.mark.parametrize("index", [10, -1])
def test_an_index_out_of_bounds_is_found_in_replay(kernels: ModuleType, index: int) -> None:
    table = torch.randn(10, 4)
    program = trace(kernels.gather, [TensorSpec.of(table), TensorSpec.of(_ids(0, 1))])
    with pytest.raises(OutOfBoundsError, match=f"index {index}") as caught:
        program.run([table, _ids(0, index)])
    assert caught.value.location is not None


def test_skipped_rows_stay(kernels: ModuleType) -> None:
    table = torch.randn(10, 4)
    got = simulate(kernels.gather_by_pattern)(table, _ids(3, 77, 0), True)
    assert torch.equal(got, torch.stack([table[3], torch.full((4,), -1.0), table[0]]))


def test_scatter_rows(kernels: ModuleType) -> None:
    x = torch.randn(3, 4)
    expected = torch.zeros(8, 4)
    expected[[7, 0, 2]] = x
    assert torch.equal(simulate(kernels.scatter)(x, _ids(7, 0, 2), 8), expected)


def test_scalar_offset(kernels: ModuleType) -> None:
    x = torch.randn(5, 6)
    for column in range(6):
        assert torch.equal(
            simulate(kernels.pick_column)(x, _ids(column)), x[:, column : column + 1]
        )


def test_read_modify_write(kernels: ModuleType) -> None:
    table, rows = torch.randn(9, 4), torch.randn(3, 4)
    ids = _ids(8, 1, 4)
    expected = table.clone()
    expected[ids.long()] += rows
    assert torch.equal(simulate(kernels.add_rmw)(table, rows, ids), expected)


@pytest.mark.parametrize("how", ["dma", "tensor", "vector"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transposes(kernels: ModuleType, how: str, dtype: torch.dtype) -> None:
    x = torch.randn(31, 7).to(dtype)
    x[0, 0] = float("nan")
    x[1, 1] = float("inf")
    assert torch.equal(
        simulate(kernels.transposes)(x, how).view(torch.uint8), x.t().contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("int8", [-128, -2, 0, 2, 4, 127]),
        ("uint8", [0, 0, 0, 2, 4, 255]),
        ("int32", [-300, -2, 0, 2, 4, 2147483647]),
        ("uint32", [0, 0, 0, 2, 4, 3000000000]),
        ("int16", [-300, -2, 0, 2, 4, 32767]),
        ("uint16", [0, 0, 0, 2, 4, 65535]),
    ],
)
def test_casts_round_to_even_and_saturate(
    kernels: ModuleType, target: str, expected: list[int]
) -> None:
    x = torch.tensor([[-300.0, -1.5, 0.5, 2.4, 3.5, 3e9]])
    assert simulate(kernels.cast)(x, target).to(torch.int64).tolist() == [expected]


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
def test_float_casts_equal_torch(kernels: ModuleType, target: str) -> None:
    x = torch.randn(4, 64) * 10
    got = simulate(kernels.cast)(x, target)
    want = x.to(getattr(torch, target))
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def test_ieee_float8_equals_ml_dtypes(kernels: ModuleType) -> None:
    import ml_dtypes
    import numpy as np

    values = np.concatenate(
        [
            np.linspace(-300, 300, 2000, dtype=np.float32),
            np.array([240.0, 247.9, 248.0, np.inf, -np.inf, 2**-9, 2**-10, 1e-4], dtype=np.float32),
        ]
    ).reshape(8, -1)
    codes = simulate(kernels.cast)(torch.from_numpy(values), "float8_e4m3")
    want = values.astype(ml_dtypes.float8_e4m3).view(np.uint8)
    assert np.array_equal(codes.numpy(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compute_engines_take_scalar_offsets(kernels: ModuleType, dtype: torch.dtype) -> None:
    x = torch.randn(5, 6).to(dtype)
    program = trace(kernels.dynamic_columns, [TensorSpec.of(x), TensorSpec.of(_ids(0))])
    for column in range(6):
        want = x.float().clone()
        want[:, column] = 1.0
        want[:, 0] = x[:, column].float()
        assert torch.equal(program.run([x, _ids(column)])[0], want)
    with pytest.raises(OutOfBoundsError, match="index 6"):
        program.run([x, _ids(6)])


def test_scatters_may_write_every_row(kernels: ModuleType) -> None:
    x, ids = torch.randn(8, 3), torch.randperm(8).int()
    want = torch.empty(8, 3)
    want[ids.long()] = x
    assert torch.equal(simulate(kernels.scatters_all)(x, ids), want)
