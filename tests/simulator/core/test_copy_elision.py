"""Copies that a replay leaves out: which, and that results stay what they are."""

from __future__ import annotations

import functools
import itertools
import random
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.program.portable import from_data, to_data
from trnx.simulator.program.regions import Region


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("elision_kernels.py"))


def _copied_bytes(program: Program) -> int:
    """Bytes that steps which only copy write."""
    total = 0
    for step in program.steps:
        assert isinstance(step, functools.partial)
        owner = getattr(step.func, "__self__", None)
        if getattr(step.func, "__name__", "") == "copy_" and isinstance(owner, torch.Tensor):
            total += owner.nbytes
        if getattr(step.func, "__name__", "") in ("_turn", "_reverse"):
            total += sum(x.nbytes for x in step.args if isinstance(x, torch.Tensor)) // 2
    return total


def _integers(*shape: int) -> torch.Tensor:
    """Small ones: a BLAS gives the bits of their products however it adds them up."""
    return torch.randint(-8, 9, shape).float()


def _shortened(kernel: object, arguments: list[object]) -> tuple[Program, list[torch.Tensor]]:
    """The Program after copies are left out; both give the same bits, twice."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    specs = [TensorSpec.of(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    program, recorded = trace(kernel, specs), trace(kernel, specs)
    given = [x.clone() for x in tensors]
    expected = [*recorded.run(given), *given]
    program.shorten()
    for _ in range(2):
        given = [x.clone() for x in tensors]
        for one, other in zip([*program.run(given), *given], expected, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return program, expected


def test_products_read_turned_operands_where_they_lie(kernels: ModuleType) -> None:
    x, weight = _integers(64, 256), _integers(384, 256)
    recorded = trace(kernels.weight_by_columns, [TensorSpec.of(x), TensorSpec.of(weight)])
    program, (got, *_) = _shortened(kernels.weight_by_columns, [x, weight])
    assert torch.equal(got, x @ weight.T)
    result = 64 * 384 * 4
    assert _copied_bytes(recorded) >= result + x.nbytes + weight.nbytes
    # The product reads the arguments and writes the result.
    assert _copied_bytes(program) == 0
    assert program.host_bytes < recorded.host_bytes - weight.nbytes
    assert sum(1 for slot in program.slots for _ in slot.views()) == 3


@pytest.mark.parametrize("rows", [1, 2])
def test_one_row_is_as_exact_as_before(kernels: ModuleType, rows: int) -> None:
    """BLAS adds the terms of products of few rows in another order: chains become sums of parts."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 1024), torch.randn(512, 1024)
    specs = [TensorSpec.of(x), TensorSpec.of(weight)]
    program, recorded = (trace(kernels.weight_by_columns, specs) for _ in range(2))
    program.shorten()
    assert len(program.steps) < len(recorded.steps)
    exact = x.double() @ weight.double().T
    before = (recorded.run([x, weight])[0] - exact).abs().max()
    assert (program.run([x, weight])[0] - exact).abs().max() <= before


def test_tensors_of_other_memory_are_read_at_each_run(kernels: ModuleType) -> None:
    specs = [
        TensorSpec.dense((64, 256), torch.float32),
        TensorSpec.dense((384, 256), torch.float32),
    ]
    program = trace(kernels.weight_by_columns, specs)
    # Bound once before: the new views have to be bound, too.
    tensors = [_integers(64, 256), _integers(384, 256)]
    before = program.run(tensors)[0]
    program.shorten()
    assert torch.equal(program.run(tensors)[0], before)
    for _ in range(2):
        x, weight = torch.randn(64, 256), torch.randn(384, 256)
        got = program.run([x, weight])[0]
        torch.testing.assert_close(got, x @ weight.T, rtol=1e-5, atol=1e-4)


def test_replicas_keep_what_they_were_bound_to(kernels: ModuleType) -> None:
    program = trace(
        kernels.weight_by_columns,
        [TensorSpec.dense((rows, 256), torch.float32) for rows in (64, 384)],
    )
    program.shorten()
    first, second = program.replica(), program.replica()
    layers = [(one, torch.randn(64, 256), torch.randn(384, 256)) for one in (first, second)]
    results = [torch.empty(64, 384) for _ in layers]
    for (one, *tensors), result in zip(layers, results, strict=True):
        one.run(tensors, [result])
    bound = [[slot.address for slot in one.slots] for one, *_ in layers]
    assert not set(bound[0]) & set(bound[1])
    for (one, x, weight), result in zip(layers, results, strict=True):
        one.run([x, weight], [result])
        torch.testing.assert_close(result, x @ weight.T, rtol=1e-5, atol=1e-4)
    assert [[slot.address for slot in one.slots] for one, *_ in layers] == bound


def test_replicas_share_what_touches_no_slot(kernels: ModuleType) -> None:
    specs = [TensorSpec.dense(shape, torch.float32) for shape in ((128, 80), (64, 128, 9))]
    program = trace(kernels.taps_of_weight, specs)
    program.shorten()
    replica = program.replica()
    shared = {id(step) for step in program.steps} & {id(step) for step in replica.steps}
    assert 0 < len(shared) < len(program.steps)
    assert replica.blank == program.blank


@pytest.mark.parametrize(("times", "are_kept"), [(1, False), (4, False), (5, True)])
def test_a_copy_that_is_read_often_is_kept(kernels: ModuleType, times: int, are_kept: bool) -> None:
    x, y = torch.randn(128, 64), torch.randn(128, 512)
    program, _ = _shortened(kernels.products, [x, y, times])
    assert len(program.steps) == times + (2 if are_kept else 0)
    assert _copied_bytes(program) == (x.nbytes + y.nbytes if are_kept else 0)


def test_a_sum_reads_what_a_copy_was_made_of(kernels: ModuleType) -> None:
    x, y = torch.randn(128, 64), torch.randn(128, 512)
    program, (got, *_) = _shortened(kernels.product_and_sum, [x, y])
    torch.testing.assert_close(got, x.T @ y + y[:64], rtol=1e-5, atol=1e-4)
    assert len(program.steps) == 2
    assert _copied_bytes(program) == 0


def test_a_copy_that_is_changed_is_kept(kernels: ModuleType) -> None:
    x, y = torch.randn(128, 64), torch.randn(128, 512)
    program, _ = _shortened(kernels.copy_changed_in_part, [x, y])
    # That of x is left out, and those of the result.
    assert len(program.steps) == 3
    assert _copied_bytes(program) == y.nbytes


def test_a_source_that_is_overwritten_is_copied_before(kernels: ModuleType) -> None:
    x, y, z = torch.randn(128, 64), torch.randn(128, 512), torch.randn(128, 512)
    program, (got, _, written, _) = _shortened(kernels.source_overwritten, [x, y, z])
    torch.testing.assert_close(got, x.T @ y, rtol=1e-5, atol=1e-4)
    assert torch.equal(written, z)
    # That of x is kept as well: x may share the memory of y.
    assert _copied_bytes(program) == x.nbytes + y.nbytes + 2 * z.nbytes


def test_inputs_that_share_memory_with_one_that_is_written(kernels: ModuleType) -> None:
    x, z = torch.randn(128, 512), torch.randn(128, 512)
    specs = [TensorSpec.of(x[:, :64].contiguous()), TensorSpec.of(x), TensorSpec.of(z)]
    program = trace(kernels.source_overwritten, specs)
    program.shorten()
    memory = torch.randn(128, 512)
    first = memory.view(-1)[: 128 * 64].view(128, 64)
    expected = first.T.clone() @ memory.clone()
    got = program.run([first, memory, z])[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


def test_copies_that_bring_what_a_product_reads_instead_are_kept(kernels: ModuleType) -> None:
    x, y = torch.randn(128, 64), torch.randn(128, 256)
    recorded = trace(kernels.copies_of_padded_rows, [TensorSpec.of(x), TensorSpec.of(y)])
    program, (got, *_) = _shortened(kernels.copies_of_padded_rows, [x, y])
    torch.testing.assert_close(got[:, :256], x.T @ y, rtol=1e-5, atol=1e-4)
    assert not got[:, 256:].any()
    # The copies of x, of the padded tile and of the result; that of y into it stays.
    assert len(program.steps) == len(recorded.steps) - 4
    assert _copied_bytes(program) == y.nbytes


@pytest.mark.parametrize("outputs", [128, 64])
def test_weights_that_are_taken_apart_are_brought_in_one_pass(
    kernels: ModuleType, outputs: int
) -> None:
    x, weight = torch.randn(128, 80), torch.randn(outputs, 128, 9)
    recorded = trace(kernels.taps_of_weight, [TensorSpec.of(x), TensorSpec.of(weight)])
    program, (got, *_) = _shortened(kernels.taps_of_weight, [x, weight])
    expected = sum(weight[:, :, t] @ x[:, t : t + 72] for t in range(9))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-3)
    recorded.run([x, weight])
    program.run([x, weight])
    # x is read nine times.
    assert _copied_bytes(program) == weight.nbytes + x.nbytes
    assert _copied_bytes(recorded) >= 4 * weight.nbytes + x.nbytes + 2 * got.nbytes
    assert program.host_bytes < recorded.host_bytes - weight.nbytes
    # What was made is known as memory that runs write first, for the compile cache.
    data = to_data(program)
    assert data is not None
    assert not data["contents"]
    again = from_data(data, lambda: recorded.rows)
    assert torch.equal(again.run([x, weight])[0], got)


def test_turned_weights_that_others_read_stay_where_they_are(kernels: ModuleType) -> None:
    x, weight = torch.randn(128, 80), torch.randn(64, 128, 9)
    recorded = trace(kernels.taps_that_are_read_again, [TensorSpec.of(x), TensorSpec.of(weight)])
    program, (got, sums, *_) = _shortened(kernels.taps_that_are_read_again, [x, weight])
    torch.testing.assert_close(got, weight[:, :, 1] @ x, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(sums[:, 0], weight[:, :, 1].sum(0), rtol=1e-5, atol=1e-3)
    # That of x is left out, and those of the results.
    assert len(program.steps) == len(recorded.steps) - 4
    assert _copied_bytes(program) >= weight.nbytes


def test_elements_that_came_from_where_they_are_copied_to_are_read_there(
    kernels: ModuleType,
) -> None:
    x, y = torch.randn(128, 64), torch.randn(128, 512)
    _, (got, *_) = _shortened(kernels.shifted_on_chip, [x, y])
    torch.testing.assert_close(got, 2 * x.T @ y[:, :256], rtol=1e-5, atol=1e-4)


def _bytes(region: Region) -> set[int]:
    size = region.dtype.itemsize
    return {
        (region.offset + sum(i * s for i, s in zip(at, region.strides, strict=True))) * size + b
        for at in itertools.product(*map(range, region.shape))
        for b in range(size)
    }


def _any_region(chance: random.Random) -> Region:
    dtype = chance.choice([torch.float32, torch.bfloat16])
    dims = chance.randint(1, 3)
    shape = tuple(chance.randint(1, 4) for _ in range(dims))
    strides = tuple(chance.choice([0, 1, 2, 3, 4, 6, 8, 12, 16]) for _ in range(dims))
    return Region(0, dtype, shape, strides, chance.randint(0, 20))


def test_regions_overlap_and_cover_as_their_bytes_do() -> None:
    chance = random.Random(0)
    said = {"apart": 0, "covered": 0}
    for _ in range(20_000):
        one, other = _any_region(chance), _any_region(chance)
        if not one.overlaps(other):
            said["apart"] += 1
            assert not _bytes(one) & _bytes(other)
        if one.covers(other):
            said["covered"] += 1
            assert _bytes(other) <= _bytes(one)
    assert said["apart"] > 5_000
    assert said["covered"] > 100


def test_parts_of_a_copy_are_found_in_its_source() -> None:
    """Against memory that says where its elements came from."""
    chance = random.Random(1)
    found = 0
    for _ in range(20_000):
        part = _any_region(chance)
        target = _any_region(chance)
        source = Region(7, target.dtype, target.shape, _any_strides(chance, target), 5)
        origin = part.through(target, source)
        if origin is None:
            continue
        found += 1
        came_from = dict(zip(_places(target), _places(source), strict=True))
        assert [came_from[at] for at in _places(part)] == list(_places(origin))
    assert found > 100


def _any_strides(chance: random.Random, like: Region) -> tuple[int, ...]:
    return tuple(chance.choice([0, 1, 3, 10, 50]) for _ in like.shape)


def _places(region: Region) -> list[int]:
    return [
        region.offset + sum(i * s for i, s in zip(at, region.strides, strict=True))
        for at in itertools.product(*map(range, region.shape))
    ]
