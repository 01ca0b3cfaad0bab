"""Runs of one Program that repeat: fewer steps from the fifth on, and the bits of the first."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.memory.host_memory import are_apart
from trnx.simulator.memory.storage import Step
from trnx.simulator.program import copy_analysis
from trnx.simulator.program.equal_products import are_equal
from trnx.simulator.program.regions import Region
from trnx.simulator.program.repetition import RUNS_AS_RECORDED
from trnx.simulator.program.step_effects import Effects


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("elision_kernels.py"))


def _inputs(rows: int = 64) -> list[torch.Tensor]:
    return [torch.randn(rows, 256), torch.randn(384, 256)]


def _traced(kernel: object, tensors: list[torch.Tensor]) -> Program:
    return trace(kernel, [TensorSpec.of(one) for one in tensors])


def _repeated(program: Program, tensors: list[torch.Tensor]) -> None:
    for _ in range(RUNS_AS_RECORDED + 1):
        program.run(tensors)


def _executed(program: Program, tensors: list[torch.Tensor]) -> list[Step]:
    """The steps of the next run."""
    return list(program._steps_for(tensors, ()))


def test_runs_that_repeat_take_fewer_steps_and_give_the_same_bits(kernels: ModuleType) -> None:
    tensors = _inputs()
    program = _traced(kernels.weight_by_columns, tensors)
    counts = []
    for turn in range(RUNS_AS_RECORDED + 3):
        tensors = _inputs()
        (expected,) = _traced(kernels.weight_by_columns, tensors).run(tensors)
        counts.append(len(_executed(program, tensors)))
        program._repetition.runs = turn  # which asking for them counts as well
        (got,) = program.run(tensors)
        assert torch.equal(got, expected), turn
    assert set(counts[:RUNS_AS_RECORDED]) == {len(program.steps)}
    assert counts[-1] < counts[0] / 2


def test_results_in_the_memory_of_an_argument_are_as_recorded(kernels: ModuleType) -> None:
    """A product that writes where its factor lies reads what it has just written."""
    x, y = torch.randn(128, 128), torch.randn(128, 128)
    program = _traced(kernels.products_square, [x, y])
    (expected,) = program.run([x, y])
    _repeated(program, [x, y])
    given = x.clone()
    program.run([given, y], [given])
    assert torch.equal(given, expected)


def test_a_product_that_would_round_otherwise_reads_its_copy(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = _inputs()
    few = _traced(kernels.weight_by_columns, tensors)
    _repeated(few, tensors)
    monkeypatch.setattr(copy_analysis, "are_equal", lambda *_: False)
    program = _traced(kernels.weight_by_columns, tensors)
    _repeated(program, tensors)
    assert len(_executed(program, tensors)) > len(_executed(few, tensors))


def _turned(rows: int, depth: int, columns: int) -> tuple[Effects, Region]:
    """A product whose first factor lies by columns, and where it lies by rows."""
    first = Region(8, torch.float32, (rows, depth), (1, rows), 0)
    second = Region(16, torch.float32, (depth, columns), (columns, 1), 0)
    out = Region(24, torch.float32, (rows, columns), (columns, 1), 0)
    place = Region(-1, torch.float32, (rows, depth), (depth, 1), 0)
    return Effects({0: first, 1: second}, (out,), factors=(0, 1), is_pure=True), place


@pytest.mark.parametrize("size", [(16, 1024, 16), (17, 96, 300), (64, 128, 512), (200, 77, 33)])
def test_products_that_are_taken_for_equal_are_so_for_other_numbers(
    size: tuple[int, int, int],
) -> None:
    rows, depth, columns = size
    effects, place = _turned(*size)
    found = are_equal(effects, {0: place})
    same = True
    for shift in range(16):
        a, b = torch.randn(rows, depth), torch.randn(depth, columns)
        there = torch.zeros(a.numel() + shift)[shift:].view(rows, depth).copy_(a)
        same &= torch.equal(torch.mm(a.t().contiguous().t(), b), torch.mm(there, b))
    assert found <= same


def test_products_of_few_rows_or_columns_are_not_taken_for_equal() -> None:
    """BLAS computes them otherwise where memory begins elsewhere."""
    for size in ((1, 33, 34), (33, 64, 2)):
        effects, place = _turned(*size)
        assert not are_equal(effects, {0: place})


def test_products_of_narrow_types_are_not_taken_for_equal() -> None:
    wide = Region(8, torch.float32, (64, 64), (64, 1), 0)
    narrow = Region(-1, torch.bfloat16, (64, 64), (64, 1), 0)
    effects = Effects({0: narrow, 1: narrow}, (wide,), factors=(0, 1), is_pure=True)
    assert not are_equal(effects, {0: narrow})


def test_shortening_draws_no_random_numbers_of_the_caller(kernels: ModuleType) -> None:
    tensors = _inputs(96)
    program = _traced(kernels.weight_by_columns, tensors)
    state = torch.get_rng_state()
    _repeated(program, tensors)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_program_that_repeats_in_inference_mode_runs_outside_of_it(kernels: ModuleType) -> None:
    tensors = _inputs()
    program = _traced(kernels.weight_by_columns, tensors)
    with torch.inference_mode():
        _repeated(program, tensors)
    (got,) = program.run(tensors)
    (expected,) = _traced(kernels.weight_by_columns, tensors).run(tensors)
    assert torch.equal(got, expected)


def test_a_program_that_repeated_can_be_shortened(kernels: ModuleType) -> None:
    tensors = _inputs()
    program = _traced(kernels.weight_by_columns, tensors)
    _repeated(program, tensors)
    before = program.run(tensors)[0]
    program.shorten()
    assert torch.allclose(program.run(tensors)[0], before, rtol=1e-5, atol=1e-5)
    assert _executed(program, tensors) == list(program.steps)


def test_outputs_are_apart_from_inputs_and_from_each_other() -> None:
    whole = torch.zeros(8, 4)
    parts = [whole[:4], whole[4:], whole[2:6], torch.zeros(0), torch.zeros(8, 4)]
    for (one, first), (other, second) in itertools.permutations(enumerate(parts), 2):
        is_apart = {one, other} not in ({0, 2}, {1, 2})
        assert are_apart([first], [second]) == is_apart
        assert are_apart([], [first, second]) == is_apart
