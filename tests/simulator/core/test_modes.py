"""Both modes of tracing give equal Programs, and the listing tells apart what is not equal."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import Program, TensorSpec, simulate, trace
from trnx.simulator.program.listing import listing

X = torch.arange(12.0).reshape(4, 3)
IDS = torch.tensor([2, 0, 3], dtype=torch.int32)
ONE = torch.tensor([1], dtype=torch.int32)

# Kernel of core_kernels, its arguments, the grid.
CASES: list[tuple[str, tuple[Any, ...], int | None]] = [
    ("matmul", (torch.randn(200, 6), torch.randn(200, 7)), None),
    ("cast", (X, "bfloat16"), None),
    ("low_words", (torch.arange(5),), None),
    ("gather", (X, IDS), None),
    ("gather_by_pattern", (X, IDS, True), None),
    ("scatter", (X[:3], IDS, 5), None),
    ("pick_column", (X, ONE), None),
    ("writes_in_halves", (X,), None),
    ("streams_tiles", (3, 16), None),
    ("writes_argument", (X.clone(),), None),
    ("two_results", (X,), None),
    ("repeats", (X[:1], ONE), None),
    ("per_program", (X,), 2),
    ("exchanges", (X[:2],), 2),
    ("reads_the_other_half", (X[:2], True), 2),
    ("swaps_in_a_loop", (X, 3), None),
    ("dynamic_columns", (X, ONE), None),
]


def _specs(arguments: tuple[Any, ...]) -> list[Any]:
    return [TensorSpec.of(a) if isinstance(a, torch.Tensor) else a for a in arguments]


def _copies(arguments: tuple[Any, ...]) -> list[Any]:
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]


@pytest.mark.parametrize(("name", "arguments", "grid"), CASES, ids=[case[0] for case in CASES])
def test_both_modes_record_equal_programs(
    kernels: ModuleType, name: str, arguments: tuple[Any, ...], grid: int | None
) -> None:
    kernel = getattr(kernels, name)
    without = trace(kernel, _specs(arguments), grid=grid)
    with_values = trace(kernel, _copies(arguments), grid=grid, values=True)
    assert listing(without) == listing(with_values)
    first = simulate(kernel, grid=grid)(*_copies(arguments))
    expected = first if isinstance(first, tuple) else (first,)
    for program in (without, with_values):
        tensors = [a for a in _copies(arguments) if isinstance(a, torch.Tensor)]
        for result, value in zip(program.run(tensors), expected, strict=True):
            assert torch.equal(result, value)


def test_a_listing_does_not_change_by_running(kernels: ModuleType) -> None:
    program = trace(kernels.matmul, [torch.randn(200, 6), torch.randn(200, 7)], values=True)
    before = listing(program)
    program.run([torch.randn(200, 6), torch.randn(200, 7)])
    assert listing(program) == before
    program.release()
    assert listing(program) == before


def _program(kernels: ModuleType, *arguments: Any, name: str = "cast") -> Program:
    return trace(getattr(kernels, name), _specs(arguments))


def test_a_listing_tells_programs_apart(kernels: ModuleType) -> None:
    base = listing(_program(kernels, X, "bfloat16"))
    assert listing(_program(kernels, X, "bfloat16")) == base
    assert listing(_program(kernels, X, "float16")) != base
    assert listing(_program(kernels, X.t(), "bfloat16")) != base
    assert listing(_program(kernels, X.repeat(2, 1), "bfloat16")) != base
    tiles = listing(_program(kernels, 3, 16, name="streams_tiles"))
    assert listing(_program(kernels, 4, 16, name="streams_tiles")) != tiles


def test_a_listing_shows_a_step_that_differs(kernels: ModuleType) -> None:
    """Another operand, another constant, or another buffer in one step is another text."""
    program = _program(kernels, X[:1], ONE, name="repeats")
    base = listing(program)
    first, second = program.steps[0], program.steps[2]
    assert isinstance(first, functools.partial)
    assert isinstance(second, functools.partial)
    steps = list(program.steps)
    for index, changed in (
        (0, functools.partial(first.func, 1.0)),
        (2, functools.partial(second.func, second.args[0].clone())),
        (2, functools.partial(first.func, 0)),
    ):
        program._steps = [*steps[:index], changed, *steps[index + 1 :]]
        assert listing(program) != base
    program._steps = steps
    assert listing(program) == base
