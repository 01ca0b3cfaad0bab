"""Dense tensors in any order of dims: flat for pointwise ops, with eager's strides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trnx
from trnx.nki_kernels.generator.geometry import memory_order

aten = torch.ops.aten
SHAPE = (3, 5, 129)


def dense(shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random, dense, with the dimensions in this order in memory."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return torch.randn([shape[i] for i in order]).to(dtype).permute(back)


def legal(function: Callable[..., Any]) -> Callable[..., Any]:
    options = {"select": "legal", "fallback": "error"}
    return torch.compile(function, backend="trnx", options=options)


def assert_like_eager(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """All on NKI; values, dtypes, shapes and strides are eager's.

    Fake tensors give dims of size 1 strides that differ from those of eager; they address nothing.
    """
    torch.compiler.reset()
    found, expected = legal(function)(*args), function(*args)
    for one, other in zip(
        found if isinstance(found, tuple) else (found,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        torch.testing.assert_close(one, other, equal_nan=True)
        assert one.shape == other.shape
        longer = [dim for dim in range(one.ndim) if one.shape[dim] > 1]
        assert [one.stride(dim) for dim in longer] == [other.stride(dim) for dim in longer]


def test_the_order_of_most_bytes_is_taken() -> None:
    rows, columns = {0: 7, 1: 1}, {0: 1, 1: 5}
    assert memory_order((0, 1), [(rows, 4), (columns, 4)]) == (0, 1)
    assert memory_order((0, 1), [(rows, 2), (columns, 4)]) == (1, 0)
    assert memory_order((0, 1), [(rows, 2), (columns, 2), (columns, 2)]) == (1, 0)
    assert memory_order((0, 1), [({1: 1}, 4)]) == (0, 1), "a row has no say"
    assert memory_order((0, 1), [({0: 0, 1: 1}, 4)]) == (0, 1), "nor has what is expanded"
    assert memory_order((), []) == ()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_order_of_dims_is_the_same_program(
    order: tuple[int, ...], dtype: torch.dtype, region: Callable[..., Any]
) -> None:
    function = lambda x: aten.sigmoid.default(aten.mul.Tensor(x, 2.0))  # noqa: E731
    here = region(function, dense(SHAPE, order, dtype))
    row_major = region(function, torch.randn([SHAPE[i] for i in order]).to(dtype)).program()
    found = here.program()
    assert found.instruction_count == row_major.instruction_count
    assert found.totals == row_major.totals
    assert_like_eager(lambda x: torch.sigmoid(x * 2), here.inputs["x"])


@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 1), (4, 127, 3, 43)])
def test_channels_last(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    x[0, 0, 0, 0] = torch.nan
    assert_like_eager(lambda x: torch.relu(x) + 1, x)
    assert_like_eager(lambda x: (x > 0, x * x), x)


def test_layouts_meet() -> None:
    plain, last = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 7)
    last = last.to(memory_format=torch.channels_last)
    assert_like_eager(lambda x, y: x * y + 1, plain, last)
    assert_like_eager(lambda x, y: x * y + 1, last, plain)
    assert_like_eager(lambda x, y, z: x * y + z, last, last.clone(), plain)
    assert_like_eager(lambda x, y: (x + y, x * 2, y * 2), last, plain)


def test_what_is_broadcast_or_has_gaps_does_not_matter() -> None:
    last = torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last)
    assert_like_eager(lambda x, b: x * b.view(1, -1, 1, 1) + 1, last, torch.randn(6))
    assert_like_eager(lambda x, b: x * b + 1, last, torch.randn(7))
    assert_like_eager(lambda x, b: x * b + 1, last, torch.randn(1, 6, 5, 7).expand(2, 6, 5, 7))
    assert_like_eager(lambda x: x * 2 + 1, last[:, ::2])
    assert_like_eager(lambda x: x * 2 + 1, last[:, :, 1:4])


def test_reductions_over_any_dim() -> None:
    last = torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last)
    for dims in ((1,), (2, 3), (0, 2, 3), (3,)):
        assert_like_eager(lambda x, dims=dims: (x * 2).sum(dims), last)
        assert_like_eager(lambda x, dims=dims: x - (x * 2).amax(dims, keepdim=True), last)
    assert_like_eager(lambda x: (x + 1, (x + 1).sum()), last)


def test_transposed_matrices() -> None:
    x = torch.randn(129, 65)
    assert_like_eager(lambda x: torch.relu(x.t()), x)
    assert_like_eager(lambda x, y: torch.relu(x.t() + y), x, torch.randn(65, 129))


def explained_in_both_formats(model: torch.nn.Module) -> tuple[Any, Any]:
    """Reports of the model for a row-major image, and with all in channels last."""
    x = torch.randn(4, 8, 40, 40)
    last = torch.channels_last
    with torch.no_grad():
        plain = trnx.explain(model, x).reports
        return plain, trnx.explain(model.to(memory_format=last), x.to(memory_format=last)).reports


def test_channels_last_keeps_its_coverage() -> None:
    plain, last = explained_in_both_formats(
        torch.nn.Sequential(
            torch.nn.Conv2d(8, 16, 3),
            torch.nn.SiLU(),
            torch.nn.Conv2d(16, 8, 3),
            torch.nn.Sigmoid(),
        ).eval()
    )
    assert last.bytes_on_nki == plain.bytes_on_nki
    assert plain.bytes_on_nki


def test_pointwise_ops_in_channels_last_take_no_longer() -> None:
    plain, last = explained_in_both_formats(torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Tanh()))
    assert last.bytes_on_nki == plain.bytes_on_nki == 1.0
    assert last.predicted_seconds == plain.predicted_seconds
