"""Products that add up in one bank and become one: which, and that memory ends as it did."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program import product_merging
from trnx.simulator.program.portable import from_data, to_data
from trnx.simulator.program.product_merging import merge_products
from trnx.simulator.program.step_effects import EffectReader


@pytest.fixture(autouse=True)
def small_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of any size are large enough."""
    monkeypatch.setattr(product_merging, "_LEAST_LARGE", 0)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("elision_kernels.py"))


def _depths(program: Program) -> list[int]:
    """Contraction sizes of the products that a run executes."""
    factors = {torch.mm: 0, torch.addmm: 1}
    return [
        step.args[factors[step.func]].shape[1]
        for step in program.steps
        if isinstance(step, functools.partial) and step.func in factors
    ]


def _shortened(kernel: object, tensors: list[torch.Tensor]) -> tuple[Program, torch.Tensor]:
    """The Program as it replays, and its first result, which is that of the recorded one."""
    specs = [TensorSpec.of(x) for x in tensors]
    program, recorded = trace(kernel, specs), trace(kernel, specs)
    expected = recorded.run([x.clone() for x in tensors])[0]
    program.shorten()
    for _ in range(2):
        got = program.run([x.clone() for x in tensors])[0]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    return program, got


@pytest.mark.parametrize("depth", [128, 129, 255, 256, 640])
@pytest.mark.parametrize("rows", [1, 64])
def test_products_of_a_bank_are_one_product(kernels: ModuleType, depth: int, rows: int) -> None:
    x, y = torch.randn(depth, rows), torch.randn(depth, 384)
    program, got = _shortened(kernels.product_of_rows, [x, y])
    assert _depths(program) == [depth]
    torch.testing.assert_close(got, x.T @ y, rtol=1e-5, atol=1e-4)


def test_turned_factors_are_read_where_they_lie(kernels: ModuleType) -> None:
    x, weight = torch.randn(64, 640), torch.randn(384, 640)
    program, got = _shortened(kernels.weight_by_columns, [x, weight])
    assert _depths(program) == [640]
    torch.testing.assert_close(got, x @ weight.T, rtol=1e-5, atol=1e-4)


def test_a_merged_program_is_kept_and_read_again(kernels: ModuleType) -> None:
    x, weight = torch.randn(64, 384), torch.randn(384, 384)
    program, got = _shortened(kernels.weight_by_columns, [x, weight])
    data = to_data(program)
    assert data is not None
    again = from_data(data, lambda: program.rows)
    assert len(again.steps) == len(program.steps)
    assert torch.equal(again.run([x, weight])[0], got)


def test_a_bank_that_is_read_in_between_is_complete_then(kernels: ModuleType) -> None:
    x, y = torch.randn(512, 64), torch.randn(512, 256)
    program, got = _shortened(kernels.bank_read_half_way, [x, y])
    assert _depths(program) == [256, 256]
    torch.testing.assert_close(got[0], x[:256].T @ y[:256], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(got[1], x.T @ y, rtol=1e-5, atol=1e-4)


def test_depths_in_another_order_stay_apart(kernels: ModuleType) -> None:
    x, y = torch.randn(384, 64), torch.randn(384, 256)
    program, got = _shortened(kernels.depths_backwards, [x, y])
    assert _depths(program) == [128, 128, 128]
    torch.testing.assert_close(got, x.T @ y, rtol=1e-5, atol=1e-4)


def test_a_factor_that_is_overwritten_after_its_product(kernels: ModuleType) -> None:
    x, y, z = torch.randn(256, 64), torch.randn(256, 256), torch.randn(128, 256)
    program, got = _shortened(kernels.factor_overwritten, [x, y, z])
    assert _depths(program) == [128, 128]
    torch.testing.assert_close(got, x.T @ y, rtol=1e-5, atol=1e-4)


class _Steps:
    """Random steps on memory of whole numbers, whose sums have no order."""

    def __init__(self, seed: int, memory: torch.Tensor, banks: torch.Tensor) -> None:
        self.chance = random.Random(seed)
        self.memory = memory
        self.banks = banks
        self.steps: list[Step] = []

    def matrix(self, at: int, rows: int, columns: int, far: int) -> torch.Tensor:
        return self.memory.as_strided((rows, columns), (far, 1), at)

    def bank(self, number: int) -> torch.Tensor:
        return self.banks.as_strided((3, 5), (5, 1), 16 * number)

    def add(self) -> None:
        chance, kind = self.chance, self.chance.random()
        # Factors in 0..255, copies of them in 256..511; banks of 3x5.
        bank = self.bank(chance.randint(0, 2))
        if kind < 0.5:
            first = 2 * chance.randint(0, 3)
            for block in range(first, min(first + 2 * chance.randint(1, 3), 8), 2):
                self._product(bank, block, chance.choice([0, 256]))
        elif kind < 0.7:
            at = 16 * chance.randint(0, 7)
            target = self.matrix(256 + at, 1, 16, 16)
            self.steps.append(functools.partial(target.copy_, self.matrix(at, 1, 16, 16)))
        elif kind < 0.85:
            some = self.matrix(chance.randint(0, 500), 1, 4, 4)
            self.steps.append(functools.partial(some.fill_, float(chance.randint(-1, 1))))
        else:
            target = self.bank(chance.randint(3, 6))
            self.steps.append(functools.partial(torch.add, bank, 1.0, out=target))

    def _product(self, bank: torch.Tensor, block: int, base: int) -> None:
        rows = self.matrix(base + block, 3, 2, 8)
        columns = self.matrix(base + 64 + 5 * block, 2, 5, 5)
        if self.chance.random() < 0.2:
            self.steps.append(functools.partial(torch.mm, rows, columns, out=bank))
        else:
            self.steps.append(functools.partial(torch.addmm, bank, rows, columns, out=bank))


@pytest.mark.parametrize("is_input", [False, True])
def test_memory_ends_as_it_did_before(is_input: bool) -> None:
    merged = 0
    for seed in range(400):
        start = torch.randint(-2, 3, (700,), generator=torch.Generator().manual_seed(seed)).float()
        memory, banks = start[:512].clone(), start[512:].clone()
        made = _Steps(seed, memory, banks)
        for _ in range(24):
            made.add()
        slots = _slots(made.steps, memory) if is_input else []
        steps = merge_products(made.steps, EffectReader(slots, {}), len(slots))
        merged += len(made.steps) - len(steps)
        ends = []
        for some in (made.steps, steps):
            memory.copy_(start[:512])
            banks.copy_(start[512:])
            for step in some:
                step()
            ends.append(torch.cat([memory, banks]))
        assert torch.equal(*ends), seed
    assert merged > 100


def _slots(steps: list[Step], memory: torch.Tensor) -> list[Slot]:
    """The memory as that of one argument: steps on views of its slot."""
    slot = Slot(memory)

    def placed(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if value.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr():
            return value
        shape, strides = tuple(value.shape), value.stride()
        return slot.view(value.dtype, shape, strides, int(value.storage_offset()))

    for number, step in enumerate(steps):
        assert isinstance(step, functools.partial)
        function, owner = step.func, getattr(step.func, "__self__", None)
        if isinstance(owner, torch.Tensor):
            function = getattr(placed(owner), function.__name__)
        named = {name: placed(value) for name, value in step.keywords.items()}
        steps[number] = functools.partial(function, *map(placed, step.args), **named)
    return [slot]
