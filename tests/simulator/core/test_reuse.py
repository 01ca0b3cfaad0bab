"""What instructions share (copies of operands, buffers, steps, constants) changes no result."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import Program, TensorSpec, load_module, simulate, trace
from trnx.simulator.memory import pool


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("reuse_kernels.py"))


def _both_ways(kernel: object, arguments: list[object]) -> torch.Tensor:
    """The result with values, which replay must give as well, bit by bit, twice."""
    first: torch.Tensor = simulate(kernel)(*arguments)
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    specs = [TensorSpec.of(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    program = trace(kernel, specs)
    for _ in range(2):
        assert torch.equal(program.run(tensors)[0].view(torch.uint8), first.view(torch.uint8))
    return first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [2, 96, 512])
def test_a_kept_copy_is_made_anew_after_a_write(
    kernels: ModuleType, dtype: torch.dtype, columns: int
) -> None:
    x, y, z = (torch.randn(128, n).to(dtype) for n in (64, columns, columns))
    got = _both_ways(kernels.products_around_a_write, [x, y, z])
    x, y, z = x.float(), y.float(), z.float()
    expected = torch.stack([x.T @ y, x.T @ z, x.T @ z])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


def test_without_room_for_copies_the_result_is_the_same(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors: list[object] = [torch.randn(128, n).bfloat16() for n in (64, 512, 512)]
    kept = _both_ways(kernels.products_around_a_write, tensors)
    monkeypatch.setattr(pool, "_KEPT_BYTES", 0)
    assert torch.equal(_both_ways(kernels.products_around_a_write, tensors), kept)


def test_copies_of_a_pool_are_bounded_and_come_back() -> None:
    buffers = pool.BufferPool()
    first = buffers.take_kept(pool._KEPT_BYTES)
    assert first is not None
    assert buffers.take_kept(1) is None
    buffers.put_kept(first)
    assert buffers.take_kept(pool._KEPT_BYTES) is first


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_products_in_a_loop_see_what_the_loop_wrote(kernels: ModuleType, turns: int) -> None:
    x, y = torch.randn(128, 64).bfloat16(), torch.randn(128, 512).bfloat16()
    if not turns:
        program = trace(kernels.products_in_a_loop, [TensorSpec.of(x), TensorSpec.of(y), 0])
        (got,) = program.run([x, y])
    else:
        got = _both_ways(kernels.products_in_a_loop, [x, y, turns])
        last = x.float().T @ (y.float() * 0.5 ** (turns - 1))
        torch.testing.assert_close(got[1], last, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(got[0], x.float().T @ y.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("shape", [(1, 1), (127, 64), (128, 63), (128, 64), (127, 127), (128, 128)])
def test_transposes_move_bits(
    kernels: ModuleType, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)
    x = bits.view(dtype)[:, : shape[1]] if dtype is not torch.bfloat16 else bits.float().bfloat16()
    got = _both_ways(kernels.transposes, [x])
    raw = torch.int16 if dtype is torch.bfloat16 else torch.int32
    for turned in got:
        assert torch.equal(turned.view(raw), x.T.contiguous().view(raw))


@pytest.mark.parametrize("shape", [(513, 3, 128), (512, 8, 127), (7, 2, 5)])
@pytest.mark.parametrize("is_dense", [True, False])
def test_planes_are_reversed(
    kernels: ModuleType, shape: tuple[int, int, int], is_dense: bool
) -> None:
    x = torch.randn(shape) if is_dense else torch.randn(shape[0], shape[1], 140)[..., : shape[2]]
    (got,) = trace(kernels.planes, [TensorSpec.of(x)], target="trn2").run([x])
    assert torch.equal(got, x.permute(2, 1, 0))


def test_zeros_of_both_signs_are_two_constants(kernels: ModuleType) -> None:
    negative, positive = _both_ways(kernels.zeros, [torch.ones(3, 5)])
    assert bool(negative.signbit().all())
    assert not bool(positive.signbit().any())


def test_turns_of_a_loop_share_their_steps(kernels: ModuleType) -> None:
    x = torch.randn(9, 11)

    def steps(count: int) -> tuple[Program, int]:
        program = trace(kernels.turns, [TensorSpec.of(x), count])
        return program, len({id(step) for step in program.steps})

    few, distinct = steps(3)
    many, as_distinct = steps(30)
    assert len(many.steps) == 10 * len(few.steps)
    assert distinct == as_distinct < len(few.steps)
    assert torch.equal(many.run([x])[0], few.run([x])[0])


def _nested_turns(x: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    total = torch.zeros_like(x)
    for _ in range(outer):
        first = x - total
        for k in range(3):
            total = total + first * k
        for _ in range(inner):
            total = total + ((first + x) * 0.5 + 1.0)
        total = total - first * 0.25
    return total


@pytest.mark.parametrize("outer", [1, 2, 3])
@pytest.mark.parametrize("inner", [0, 1, 3])
def test_turns_read_what_none_of_them_wrote_again(
    kernels: ModuleType, outer: int, inner: int
) -> None:
    x = torch.randn(127, 33)
    got = _both_ways(kernels.nested_turns, [x, outer, inner])
    torch.testing.assert_close(got, _nested_turns(x, outer, inner))


@pytest.mark.parametrize("outer", [1, 2, 3])
@pytest.mark.parametrize("inner", [0, 1, 3])
def test_turns_read_what_is_dropped_in_them(kernels: ModuleType, outer: int, inner: int) -> None:
    x = torch.randn(127, 33)
    got = _both_ways(kernels.dropped_in_turns, [x, outer, inner])
    total = torch.zeros_like(x)
    for _ in range(outer):
        first = x - total
        total = total + first * 0.5
        for _ in range(inner):
            total = total + first
            total = total - (total * 0.125 + 1.0)
    torch.testing.assert_close(got, total)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_programs_that_meet_in_turns_have_memory_of_their_own(
    kernels: ModuleType, turns: int
) -> None:
    x = torch.randn(2, 127, 33)
    got = simulate(kernels.turns_that_meet, "trn2", 2)(x, turns)
    torch.testing.assert_close(got, turns * (2.0 * x.flip(0) + 1.0))


def test_a_body_has_the_memory_of_what_is_live(kernels: ModuleType) -> None:
    x = torch.randn(128, 64)
    got = _both_ways(kernels.many_tiles_in_a_turn, [x, 100])
    torch.testing.assert_close(got, x + 200.0)
    few, many = (
        trace(kernels.many_tiles_in_a_turn, [TensorSpec.of(x), tiles]).host_bytes
        for tiles in (4, 100)
    )
    assert many == few


def test_a_traced_run_leaves_no_memory_to_the_garbage_collector(kernels: ModuleType) -> None:
    x = torch.randn(9, 11)
    simulate(kernels.turns)(x, 2)
    gc.disable()
    try:
        x = torch.randn(9, 11)
        memory = weakref.ref(x.untyped_storage())
        result = simulate(kernels.turns)(x, 2)
        torch.testing.assert_close(result, torch.exp(x) + 1.0)
        del x
        assert memory() is None
    finally:
        gc.enable()


def test_a_kept_copy_is_made_anew_after_an_exchange(kernels: ModuleType) -> None:
    x, y = torch.randn(128, 64).bfloat16(), torch.randn(2, 128, 96).bfloat16()
    first = simulate(kernels.products_around_an_exchange, grid=2)(x, y)
    own = x.float().T @ y.float()
    torch.testing.assert_close(first, torch.stack([own, own.flip(0)], 1), rtol=1e-5, atol=1e-4)
    program = trace(kernels.products_around_an_exchange, [TensorSpec.of(t) for t in (x, y)], grid=2)
    for _ in range(2):
        assert torch.equal(program.run([x, y])[0], first)
