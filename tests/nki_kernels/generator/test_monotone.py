"""Steps that an extremum goes through, and those that it does not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

aten = torch.ops.aten
Build = Callable[..., Any]
F32, BF16 = torch.float32, torch.bfloat16
EXTREMA = [aten.amax.default, aten.amin.default]


def steps(x: Any, y: Any) -> Any:
    shifted = aten.sub.Tensor(aten.relu.default(aten.mul.Tensor(x, 1.3)), 0.7)
    return aten.maximum.default(aten.add.Tensor(shifted, 0.2), y)


def falling(x: Any, y: Any) -> Any:
    return aten.rsub.Scalar(aten.mul.Tensor(aten.maximum.default(x, y), -1.3), 0.7)


def summed(x: Any, y: Any) -> Any:
    return aten.add.Tensor(aten.mul.Tensor(x, 1.3), y)


def infinite(x: Any, y: Any) -> Any:
    return aten.maximum.default(aten.add.Tensor(aten.mul.Tensor(x, 0.0), -math.inf), y)


def extremum(function: Any, op: Any, dims: list[int], keep: bool = True) -> Any:
    return lambda x, y: op(function(x, y), dims, keep)


def begins_with_load(made: Any) -> bool:
    """Whether what is reduced is what was loaded."""
    return bool(re.search(r"tensor_reduce\([^)]*\bdata=x0_tile", made.source()))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("op", EXTREMA)
@pytest.mark.parametrize("function", [steps, falling, summed])
@pytest.mark.parametrize(
    ("shape", "dims"), [((129, 3, 40), [0, 2]), ((5, 127), [1]), ((1, 9), [0])]
)
def test_values(
    region: Build, function: Any, op: Any, shape: tuple[int, ...], dims: list[int], dtype: Any
) -> None:
    other = [1 if i in dims else n for i, n in enumerate(shape)]
    made = region(
        extremum(function, op, dims), draw(*shape, dtype=dtype), draw(*other, dtype=dtype)
    )
    made.check(rtol=0, atol=0)


@pytest.mark.parametrize("op", EXTREMA)
@pytest.mark.parametrize("function", [steps, falling, summed, infinite])
def test_special_values(region: Build, function: Any, op: Any) -> None:
    x, y = draw(64, 40), draw(64, 1)
    special = [math.inf, -math.inf, math.nan]
    for row, value in enumerate(special):
        x[row, 3], x[row + 3, :], y[row + 6] = value, value, value
        x[row + 9, 3] = y[row + 9] = value
        x[row + 12, 5], y[row + 12] = value, -value
    made = region(extremum(function, op, [1]), x, y)
    made.check(rtol=0, atol=0)


def test_a_reduction_begins_with_what_was_loaded(region: Build) -> None:
    made = region(extremum(steps, aten.amax.default, [1]), draw(256, 300), draw(256, 1))
    assert begins_with_load(made)
    made.check(rtol=0, atol=0)


def test_what_something_else_reads_stays(region: Build) -> None:
    def function(x: Any) -> Any:
        shifted = aten.add.Tensor(x, 0.5)
        return aten.sub.Tensor(shifted, aten.amax.default(shifted, [1], True))

    made = region(function, draw(256, 300))
    assert not begins_with_load(made)
    made.check(rtol=0, atol=0)


def of_one_function(x: Any) -> Any:
    return aten.amax.default(aten.tanh.default(aten.mul.Tensor(x, 2.0)), [1], True)


def of_two_functions(x: Any) -> Any:
    return aten.sigmoid.default(of_one_function(x))


@pytest.mark.parametrize(
    ("function", "rows", "moves"),
    [
        (of_one_function, 100, False),
        (of_one_function, 300, True),
        (of_two_functions, 300, False),
        (of_two_functions, 2_000, True),
    ],
)
def test_functions_of_many_elements_move(
    region: Build, function: Any, rows: int, moves: bool
) -> None:
    made = region(function, draw(rows, 300))
    assert begins_with_load(made) is moves
    made.check(rtol=1e-6, atol=1e-6)


def test_what_is_rounded_is_reduced_in_its_own_type(region: Build) -> None:
    made = region(
        extremum(summed, aten.amax.default, [1]),
        draw(256, 300, dtype=BF16),
        draw(256, 300).bfloat16(),
    )
    assert "nl.float32" not in made.source()
    made.check(rtol=0, atol=0)
