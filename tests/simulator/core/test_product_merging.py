"""Products that a replay runs as one: which, and that sums stay what they are."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.memory.storage import Step
from trnx.simulator.program import product_merging, wide_products
from trnx.simulator.program.portable import from_data, to_data
from trnx.simulator.program.product_merging import merge_products, overwrites
from trnx.simulator.program.regions import Region
from trnx.simulator.program.step_effects import EffectReader


@pytest.fixture(autouse=True)
def small_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of any size are large enough; tiles stay apart."""
    monkeypatch.setattr(product_merging, "_LEAST_LARGE", 0)
    monkeypatch.setattr(wide_products, "_FEW", 0)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("merging_kernels.py"))


def _products(steps: tuple[Step, ...] | list[Step]) -> int:
    assert all(isinstance(step, functools.partial) for step in steps)
    return sum(step.func in (torch.mm, torch.addmm) for step in steps)  # type: ignore[attr-defined]


def _integers(*shape: int) -> torch.Tensor:
    """Small ones: their sums of products are exact in any order."""
    return torch.randint(-4, 5, shape).float()


def _merged(kernel: object, tensors: list[torch.Tensor]) -> Program:
    """The Program with its products merged: results and inputs are as recorded, twice."""
    specs = [TensorSpec.of(x) for x in tensors]
    program, recorded = trace(kernel, specs), trace(kernel, specs)
    given = [x.clone() for x in tensors]
    expected = [*recorded.run(given), *given]
    program.shorten()
    for _ in range(2):
        given = [x.clone() for x in tensors]
        for one, other in zip([*program.run(given), *given], expected, strict=True):
            assert torch.equal(one, other)
    return program


@pytest.mark.parametrize(
    ("rows", "depth"), [(8, 384), (32, 1024), (32, 288), (8, 288), (32, 257), (33, 384)]
)
def test_parts_of_rows_by_a_large_matrix_are_one_product(
    kernels: ModuleType, rows: int, depth: int
) -> None:
    x, weight = _integers(rows, depth), _integers(512, depth)
    program = _merged(kernels.rows_by_weight, [x, weight])
    assert _products(program.steps) == 1
    assert torch.equal(program.run([x, weight])[0], x @ weight.T)


@pytest.mark.parametrize("depth", [384, 288 + 128])
@pytest.mark.parametrize("is_doubled", [False, True])
def test_a_row_on_the_partitions_is_gathered_once_for_all_tiles(
    kernels: ModuleType, depth: int, is_doubled: bool
) -> None:
    """But is read where it lies, if that is no copy."""
    x, weight = _integers(1, depth), _integers(1536, depth)
    kernel = kernels.doubled_row if is_doubled else kernels.row_on_partitions
    program = _merged(kernel, [x, weight])
    assert _products(program.steps) == 3
    reads = [step.args[1].numel() for step in program.steps if step.func is torch.mm]  # type: ignore[attr-defined]
    assert reads == [depth * 512] * 3
    copies = [step.func.__self__ for step in program.steps if step.func.__name__ == "copy_"]  # type: ignore[attr-defined]
    # Whole columns are brought on chip, and all is gathered.
    moved = (depth // 128 * 128 + depth) * is_doubled
    assert sum(into.numel() for into in copies if into.dim() == 3) == moved
    assert torch.equal(program.run([x, weight])[0], (1 + is_doubled) * x @ weight.T)


def test_a_row_that_changes_between_tiles_is_gathered_again(kernels: ModuleType) -> None:
    x, weight = _integers(1, 384), _integers(1024, 384)
    program = _merged(kernels.row_that_doubles, [x, weight])
    assert _products(program.steps) == 2
    expected = torch.cat([x @ weight[:512].T, 2 * x @ weight[512:].T], 1)
    assert torch.equal(program.run([x, weight])[0], expected)


@pytest.mark.parametrize(("columns", "products"), [(512, 1), (340, 3)])
def test_small_factors_stay_in_parts(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, columns: int, products: int
) -> None:
    monkeypatch.setattr(product_merging, "_LEAST_LARGE", 384 * 512)
    program = _merged(kernels.rows_by_weight, [_integers(8, 384), _integers(columns, 384)])
    assert _products(program.steps) == products


def test_a_sum_that_is_read_on_the_way_stays_in_parts(kernels: ModuleType) -> None:
    program = _merged(kernels.sums_on_the_way, [_integers(2, 512), _integers(512, 512)])
    assert _products(program.steps) == 4


def test_merged_programs_are_data_for_the_cache(kernels: ModuleType) -> None:
    x, weight = _integers(1, 384), _integers(1536, 384)
    program = _merged(kernels.row_on_partitions, [x, weight])
    data = to_data(program)
    assert data is not None
    assert not data["contents"]
    again = from_data(data, lambda: program.rows)
    assert torch.equal(again.run([x, weight])[0], x @ weight.T)
    first, second = program.replica(), program.replica()
    y = _integers(1, 384)
    for one, row in ((first, x), (second, y), (first, y)):
        assert torch.equal(one.run([row, weight])[0], row @ weight.T)


def test_narrow_sums_round_at_every_part() -> None:
    """A sum in bfloat16 is rounded after each part: it stays in parts."""
    a, b = torch.randn(1, 384).bfloat16(), torch.randn(384, 64).bfloat16()
    out = torch.zeros(1, 64).bfloat16()
    assert len(merge_products(_chain(a, b, out), EffectReader([], {}), 0)) == 3
    assert (
        len(merge_products(_chain(a.float(), b.float(), out.float()), EffectReader([], {}), 0)) == 1
    )


def _chain(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> list[Step]:
    parts = [(a[:, k : k + 128], b[k : k + 128]) for k in range(0, 384, 128)]
    first, *others = parts
    return [
        functools.partial(torch.mm, *first, out=out),
        *(functools.partial(torch.addmm, out, *one, out=out) for one in others),
    ]


class _Memories:
    """Some memories, and views of them for random steps."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.weight = _integers(96, 64)
        self.row = _integers(4 * 96)
        self.banks = _integers(3, 64)

    def every(self) -> list[torch.Tensor]:
        return [self.weight, self.row, self.banks]

    def factors(self, part: int, is_on_partitions: bool) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.weight[part * 16 : part * 16 + 16, : self.chance.choice([64, 64, 64, 32])]
        if is_on_partitions:
            return self.row[:96].view(16, 6)[:, part : part + 1].T, weight
        return self.row[part * 16 : part * 16 + 16].view(1, 16), weight

    def step(self, part: int, bank: int, is_on_partitions: bool) -> Step:
        chance = self.chance.random()
        if chance < 0.05:
            return functools.partial(self.row[:16].fill_, self.chance.randint(-3, 3))
        if chance < 0.1:
            return functools.partial(self.weight[part : part + 4].copy_, self.weight[90:94])
        if chance < 0.15:
            columns = self.banks[bank : bank + 1, :16]
            return functools.partial(torch.add, columns, 1, out=columns)
        if chance < 0.2:
            return functools.partial(self.row[112:128].copy_, self.banks[bank, 8:24])
        a, b = self.factors(part, is_on_partitions)
        out = self.banks[bank : bank + 1, : b.shape[1]]
        if part == 0:
            return functools.partial(torch.mm, a, b, out=out)
        return functools.partial(torch.addmm, out, a, b, out=out)


def _run(steps: list[Step], memories: _Memories, start: list[torch.Tensor]) -> list[torch.Tensor]:
    for memory, value in zip(memories.every(), start, strict=True):
        memory.copy_(value)
    for step in steps:
        step()
    return [memory.clone() for memory in memories.every()]


def _random_steps(memories: _Memories) -> list[Step]:
    """Sums in several banks at once, their parts mostly in order, other steps in between."""
    chance, steps = memories.chance, []
    for _ in range(6):
        banks = chance.sample(range(3), chance.randint(1, 3))
        layouts = [chance.random() < 0.5 for _ in banks]
        for part in range(6):
            place = part if chance.random() < 0.95 else chance.randrange(6)
            for bank, layout in zip(banks, layouts, strict=True):
                steps.append(memories.step(place, bank, layout))
    return steps


def test_random_steps_leave_the_same_memory() -> None:
    merged = gathered = 0
    for seed in range(150):
        torch.manual_seed(seed)
        memories = _Memories(random.Random(seed))
        start = [memory.clone() for memory in memories.every()]
        steps = _random_steps(memories)
        blank = {m.untyped_storage().data_ptr(): m.nbytes for m in memories.every()}
        reader = EffectReader([], blank)
        left = merge_products(steps, reader, 0)
        merged += _products(steps) - _products(left)
        gathered += len(reader.made)
        expected = _run(steps, memories, start)
        for one, other in zip(_run(left, memories, start), expected, strict=True):
            assert torch.equal(one.nan_to_num(), other.nan_to_num()), seed
    assert merged > 1_000
    assert gathered > 100


def test_writes_to_an_input_count_for_all_inputs() -> None:
    """A caller may pass one memory as two inputs."""

    def at(memory: int) -> Region:
        return Region(memory, torch.float32, (4,), (1,), 0)

    assert overwrites(at(-1), at(-2), inputs=2)
    assert not overwrites(at(-1), at(-2), inputs=1)
    assert not overwrites(at(-3), at(-1), inputs=2)
