"""Products of windows: the host computes columns between theirs as well, which nobody sees."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn.functional import pad

from trnx.simulator import TensorSpec, load_module, simulate, trace


@pytest.fixture(scope="module")
def windows() -> ModuleType:
    return load_module(Path(__file__).with_name("window_kernels.py"))


def _three_windows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    def product(image: torch.Tensor) -> torch.Tensor:
        return torch.einsum("km,krc->mrc", weight, image)

    first = pad(product(x[:, 1:, 1:]), (0, 1, 0, 1))
    return product(x) + first + pad(product(x[:, :-1, :-1]), (1, 0, 1, 0))


@pytest.mark.parametrize("size", [2, 3, 7, 8])
@pytest.mark.parametrize("times", [1, 4])
def test_products_of_windows_onto_windows(windows: ModuleType, size: int, times: int) -> None:
    """From the second time on, instructions are recorded by templates."""
    x, weight = torch.randn(32, size, size), torch.randn(32, 64)
    got = simulate(windows.window_products)(x, weight, times)
    expected = _three_windows(x, weight).expand(times, 64, size, size)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    specs = [TensorSpec.of(x), TensorSpec.of(weight), times]
    program = trace(windows.window_products, specs)
    assert torch.equal(program.run([x, weight])[0], got)
    program.shorten()
    torch.testing.assert_close(program.run([x, weight])[0], expected, rtol=1e-5, atol=1e-4)


def test_what_lies_between_windows_has_no_part_in_them(windows: ModuleType) -> None:
    """The last column and row of an image meet other windows than the first."""
    x, weight = torch.randn(32, 6, 6), torch.randn(32, 64)
    x[:, :, 0], x[:, 0] = float("inf"), float("nan")
    got = simulate(windows.window_products)(x, weight, 1)[0]
    expected = _three_windows(x, weight)
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert got[:, 2:, 2:].isfinite().all()
    torch.testing.assert_close(got[:, 2:, 2:], expected[:, 2:, 2:], rtol=1e-5, atol=1e-4)


def test_a_window_with_products_in_a_part_of_it(windows: ModuleType) -> None:
    x, weight = torch.randn(32, 6, 6), torch.randn(32, 64)
    got = simulate(windows.window_products_first)(x, weight)
    expected = torch.einsum("km,krc->mrc", weight, torch.cat([x[:, :, :1], x[:, :, :-1]], 2))
    expected[:, :2, 1:] += torch.einsum("km,krc->mrc", weight, x[:, :2, 1:])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


def test_nothing_need_be_written_between_the_rows_of_a_window(windows: ModuleType) -> None:
    x, weight = torch.randn(32, 5, 6), torch.randn(32, 64)
    got = simulate(windows.window_of_a_part)(x, weight)
    expected = 2 * torch.einsum("km,krc->mrc", weight, x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
