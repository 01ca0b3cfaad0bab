"""Programs: both modes of tracing, replay on new tensors, binding, results, threads."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
import torch

from trnx.simulator import TensorSpec, simulate, trace
from trnx.simulator.errors import FindingWarning
from trnx.simulator.frontend.options import GridError
from trnx.simulator.frontend.tracing import LaunchError
from trnx.simulator.memory.host_memory import MemoryReadError
from trnx.simulator.program.program import BindingError


def _specs(*tensors: torch.Tensor) -> list[TensorSpec]:
    return [TensorSpec.of(tensor) for tensor in tensors]


@pytest.mark.parametrize(("k", "m", "n"), [(1, 1, 1), (127, 5, 129), (128, 128, 512), (513, 7, 3)])
def test_matmul_equals_torch(kernels: ModuleType, k: int, m: int, n: int) -> None:
    a, b = torch.randn(k, m), torch.randn(k, n)
    torch.testing.assert_close(simulate(kernels.matmul)(a, b), a.t() @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matmul_of_narrow_types_accumulates_in_float32(
    kernels: ModuleType, dtype: torch.dtype
) -> None:
    a, b = torch.randn(300, 9).to(dtype), torch.randn(300, 17).to(dtype)
    got = simulate(kernels.matmul)(a, b)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, a.float().t() @ b.float(), rtol=1e-5, atol=1e-4)


def test_both_modes_record_equal_programs_and_results(kernels: ModuleType) -> None:
    a, b = torch.randn(200, 33), torch.randn(200, 65)
    with_values = trace(kernels.matmul, [a, b], values=True)
    without = trace(kernels.matmul, _specs(a, b))
    assert with_values.rows == without.rows
    assert with_values.totals == without.totals
    first = simulate(kernels.matmul)(a, b)
    assert torch.equal(with_values.run([a, b])[0], first)
    assert torch.equal(without.run([a, b])[0], first)


def test_counts(kernels: ModuleType) -> None:
    program = trace(
        kernels.matmul,
        [TensorSpec.dense((256, 128), torch.float32), TensorSpec.dense((256, 512), torch.float32)],
    )
    assert program.matmul_flops == 2 * 256 * 128 * 512
    assert program.hbm_bytes == 4 * (256 * 128 + 256 * 512 + 128 * 512)
    assert program.instruction_count == 2 * 3 + 2
    assert program.peak_psum_bytes == 2048
    # The second pair of tiles and the accumulator's copy never live together with the first pair.
    assert program.peak_sbuf_bytes == 4 * (128 + 512)
    assert program.rows.nbytes / program.instruction_count < 400
    names = [row.opcode for row in program.rows]
    assert names.count("nc_matmul") == 2
    assert program.rows[0].location.file.endswith("core_kernels.py")


def test_replay_follows_new_inputs_and_outputs(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((129, 4), torch.float32)])
    for _ in range(3):
        x = torch.randn(129, 4)
        assert torch.equal(program.run([x])[0], x)
    x, out = torch.randn(129, 4), torch.empty(129, 4)
    (result,) = program.run([x], [out])
    assert result is out
    assert torch.equal(out, x)
    x.add_(1)
    program.run([x], [out])
    assert torch.equal(out, x)


def test_results_of_two_runs_do_not_share_memory(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    x = torch.randn(5, 4)
    first = program.run([x])[0]
    kept = first.clone()
    program.run([x + 1])
    assert torch.equal(first, kept)


def test_a_run_keeps_no_memory_of_its_caller(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    x, out = torch.randn(5, 4), torch.empty(5, 4)
    expected = x.clone()
    gone = [weakref.ref(one.untyped_storage()) for one in (x, out)]
    result = program.run([x])[0]
    program.run([x], [out])
    del x, out
    assert [one() for one in gone] == [None, None]
    assert torch.equal(result, expected)
    again = torch.randn(5, 4)
    assert torch.equal(program.run([again])[0], again)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(6, 10).t(),
        lambda: torch.randn(20, 12)[::2, ::2],
        lambda: torch.randn(1, 6).expand(10, 6),
        lambda: torch.randn(3, 10, 6)[1],
        lambda: torch.randn(70).as_strided((10, 6), (6, 1), 5),
    ],
)
def test_arguments_may_have_any_strides(kernels: ModuleType, make: object) -> None:
    x = make()  # type: ignore[operator]
    program = trace(kernels.copy, _specs(x))
    (y,) = program.run([x])
    assert torch.equal(y, x)
    assert y.is_contiguous()
    assert torch.equal(simulate(kernels.copy)(x), x)


def test_int64_arrives_as_words_and_bool_as_bytes(kernels: ModuleType) -> None:
    x = torch.tensor([5, -1, 2**31 + 7, 1 << 40, 3], dtype=torch.int64)
    low = trace(kernels.low_words, _specs(x)).run([x])[0]
    assert low.dtype is torch.int32
    assert torch.equal(low, x.to(torch.int32))
    strided = torch.arange(20, dtype=torch.int64)[3::4]
    assert torch.equal(trace(kernels.low_words, _specs(strided)).run([strided])[0], strided.int())
    mask = torch.rand(7, 5) > 0.5
    got = trace(kernels.copy, _specs(mask)).run([mask])[0]
    assert got.dtype is torch.uint8
    assert torch.equal(got.bool(), mask)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float8_e5m2, torch.bfloat16])
def test_copies_keep_bits(kernels: ModuleType, dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (13, 8 * dtype.itemsize), dtype=torch.uint8).view(dtype)
    y = simulate(kernels.copy)(x)
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))


def test_wrong_tensors_are_named(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    with pytest.raises(BindingError, match="takes 1 tensors"):
        program.run([])
    with pytest.raises(BindingError, match=r"input 0 is torch.float32 \(4, 5\)"):
        program.run([torch.randn(4, 5)])
    with pytest.raises(BindingError, match="float64"):
        program.run([torch.randn(5, 4, dtype=torch.float64)])
    with pytest.raises(BindingError, match="output is"):
        program.run([torch.randn(5, 4)], [torch.empty(4, 5)])


def test_a_dense_program_takes_a_strided_tensor_by_a_copy_each_time(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    x = torch.randn(4, 5).t()
    for _ in range(3):
        x.add_(1)
        assert torch.equal(program.run([x])[0], x)


def test_a_strided_output_is_filled(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    x, out = torch.randn(5, 4), torch.zeros(4, 5).t()
    (y,) = program.run([x], [out])
    assert y is out
    assert torch.equal(out, x)


def test_an_argument_written_in_place_is_returned(kernels: ModuleType) -> None:
    x = torch.zeros(4, 3)
    program = trace(kernels.writes_argument, _specs(x))
    (y,) = program.run([x])
    assert y is x
    assert torch.equal(x, torch.full((4, 3), 7.0))
    with pytest.raises(BindingError, match="strides"):
        program.run([torch.zeros(3, 4).t()])
    z = torch.zeros(4, 3)
    assert simulate(kernels.writes_argument)(z) is z


def test_results_that_share_memory(kernels: ModuleType) -> None:
    x = torch.randn(6, 3)
    for a, b in (
        trace(kernels.two_results, _specs(x)).run([x]),
        simulate(kernels.two_results)(x),
    ):
        assert torch.equal(a, x)
        assert torch.equal(b, torch.ones(6, 3))
    outs = [torch.empty(6, 3), torch.empty(6, 3)]
    trace(kernels.two_results, _specs(x)).run([x], outs)
    assert torch.equal(outs[0], x)
    assert torch.equal(outs[1], torch.ones(6, 3))


def test_numpy_in_numpy_out(kernels: ModuleType) -> None:
    import ml_dtypes

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    y = simulate(kernels.copy)(x)
    assert isinstance(y, np.ndarray)
    assert np.array_equal(x, y)
    narrow = x.astype(ml_dtypes.bfloat16)
    z = simulate(kernels.copy)(narrow)
    assert z.dtype == narrow.dtype
    assert np.array_equal(z, narrow)


def test_the_kernel_is_called_directly(kernels: ModuleType) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(kernels.copy(x), x)


@pytest.mark.parametrize("grid", [1, 2])
def test_programs_of_a_grid_share_results(kernels: ModuleType, grid: int) -> None:
    x = torch.randn(8, 3)
    assert torch.equal(simulate(kernels.per_program, grid=grid)(x), x)
    assert torch.equal(simulate(kernels.per_program[grid])(x), x)
    assert torch.equal(trace(kernels.per_program, _specs(x), grid=grid).run([x])[0], x)


@pytest.mark.parametrize(
    ("grid", "target", "allowed"),
    [(4, "trn2", "1 or 2"), (3, "trn3", "1 or 2"), (2, "trn1", "1"), ((1, 2), "trn2", "1 or 2")],
)
def test_a_launch_that_the_target_does_not_have(
    kernels: ModuleType, grid: int | tuple[int, ...], target: str, allowed: str
) -> None:
    x = torch.randn(12, 3)
    with pytest.raises(LaunchError, match=f"takes one number, {allowed}\\. NKI 0.1") as caught:
        simulate(kernels.per_program, target, grid)(x)
    assert caught.value.check == "launch-grid"
    assert "per_program" in str(caught.value)
    with pytest.warns(FindingWarning, match="launch-grid"):
        result = simulate(kernels.per_program[grid], target, warn=("launch-grid",))(x)
    assert torch.equal(result, x)


@pytest.mark.parametrize("grid", [0, -1, 2.5, "two", (2, 0)])
def test_a_grid_that_is_no_number_of_programs(kernels: ModuleType, grid: object) -> None:
    with pytest.raises(GridError, match="positive number of programs"):
        simulate(kernels.per_program, grid=grid)(torch.randn(8, 3))  # type: ignore[arg-type]


def test_a_loop_is_recorded_once_and_follows_its_bound(kernels: ModuleType) -> None:
    x = torch.randn(1, 6)
    bound = torch.tensor([3], dtype=torch.int32)
    program = trace(kernels.repeats, _specs(x, bound))
    count = program.instruction_count
    for n in (0, 1, 8):
        bound.fill_(n)
        (y,) = program.run([x, bound])
        assert torch.equal(y[:n], x.expand(n, 6))
        assert torch.equal(y[n:], torch.zeros(8 - n, 6))
    assert count == program.instruction_count
    assert torch.equal(
        simulate(kernels.repeats)(x, torch.tensor([2], dtype=torch.int32))[:2], x.expand(2, 6)
    )


def test_threads_share_a_program_and_trace_at_once(kernels: ModuleType) -> None:
    program = trace(kernels.matmul, [TensorSpec.dense((128, 8), torch.float32)] * 2)

    def work(seed: int) -> bool:
        g = torch.Generator().manual_seed(seed)
        a, b = torch.randn(128, 8, generator=g), torch.randn(128, 8, generator=g)
        own = simulate(kernels.matmul)(a, b)
        return all(torch.equal(program.run([a, b])[0], own) for _ in range(5))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(12)))


def test_inference_mode_and_grad_do_not_leak(kernels: ModuleType) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    with torch.inference_mode():
        program = trace(kernels.copy, _specs(x))
    (y,) = program.run([x])
    assert not y.requires_grad
    assert torch.equal(y, x)
    with torch.inference_mode():
        assert torch.equal(program.run([x])[0], x)
    assert torch.equal(program.run([x])[0], x)


def test_memory_is_bounded_by_what_is_live(kernels: ModuleType, simulator: object) -> None:
    from trnx.simulator.frontend.simulator import Simulator

    assert isinstance(simulator, Simulator)
    for _ in range(50):
        kernels.streams_tiles.function(1, 1024)
    tile = 128 * 1024 * 4
    assert simulator.pool.allocated_bytes <= 2 * tile


def test_a_tensor_that_changes_in_place_is_bound_again(kernels: ModuleType) -> None:
    x = torch.nn.Parameter(torch.randn(4, 4))
    program = trace(kernels.copy, [TensorSpec.dense((4, 4), torch.float32)])
    assert torch.equal(program.run([x])[0], x)
    x.data = x.data.t()
    assert torch.equal(program.run([x])[0], x)
    x.data = torch.randn(4, 4)
    assert torch.equal(program.run([x])[0], x)


def test_given_outputs_may_stay_change_or_move(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((4, 4), torch.float32)])
    first, second = torch.empty(4, 4), torch.empty(4, 4)
    for out in (first, first, second, first, None, first, first):
        x = torch.randn(4, 4)
        got = program.run([x], None if out is None else [out])
        assert torch.equal(got[0], x)
    first.data = first.data.t()
    x = torch.randn(4, 4)
    assert torch.equal(program.run([x], [first])[0], x)
    assert torch.equal(first, x)
    program.release()
    program.run([x], [second])
    assert torch.equal(second, x)


def test_memory_that_shrank_since_the_last_run_is_refused(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    x, out = torch.randn(5, 4), torch.empty(5, 4)
    program.replay([x], [out])
    x.untyped_storage().resize_(40)
    with pytest.raises(MemoryReadError, match="byte 80 of a storage that has 40 bytes"):
        program.replay([x], [out])
    y = torch.randn(5, 4)
    out.untyped_storage().resize_(0)
    with pytest.raises(MemoryReadError, match="has 0 bytes"):
        program.replay([y], [out])
    assert torch.equal(program.run([y])[0], y)


def test_a_bound_tensor_whose_memory_moved_is_bound_again(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    x, out = torch.randn(5, 4), torch.empty(5, 4)
    for _ in range(3):
        program.run([x], [out])
        assert torch.equal(out, x)
        x.untyped_storage().resize_(0)
        others = [torch.full((5, 4), 7.0) for _ in range(4)]
        x.untyped_storage().resize_(80)
        x.copy_(torch.randn(5, 4))
        assert len(others) == 4
    x.data = torch.randn(5, 4)
    program.run([x], [out])
    assert torch.equal(out, x)


def test_a_program_gives_the_outputs_that_it_is_given(kernels: ModuleType) -> None:
    program = trace(kernels.copy, [TensorSpec.dense((5, 4), torch.float32)])
    x, out = torch.randn(5, 4), torch.empty(5, 4)
    for _ in range(3):
        (got,) = program.run([x], [out])
        assert got is out
        assert torch.equal(out, x)
        x = x + 1
    other, kept = torch.zeros(5, 4), out.clone()
    assert program.run([x], [other])[0] is other
    assert torch.equal(other, x)
    assert torch.equal(out, kept)
