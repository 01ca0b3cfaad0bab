"""The timing model: monotone, bounded by the roofline, exact about overlap, deterministic."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trnx
from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import Profile
from trnx.simulator.timing.scheduler import schedule

TARGETS = ("trn1", "trn2", "trn3")


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("timing_kernels.py"))


def _spec(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec.dense(shape, dtype)


def _assert_sane(profile: Profile) -> None:
    chip = hardware(profile.target)
    total = profile.total_seconds
    assert total >= profile.matmul_flops / (2 * 128 * 128 * chip.pe_clock)
    assert total >= profile.hbm_bytes / chip.dma_bytes_per_second
    assert 0 <= profile.mfu <= 1
    assert 0 <= profile.mbu <= 1
    assert 0 <= profile.dma_busy <= 1
    assert all(entry.busy_seconds <= total for entry in profile.queues)
    assert sum(line.seconds for line in profile.critical_path) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("target", TARGETS)
def test_roofline_is_never_beaten(kernels: ModuleType, target: str) -> None:
    bf16 = torch.bfloat16
    for profile in (
        trnx.profile(kernels.matmul, _spec(2048, 128), _spec(2048, 1024), target=target),
        trnx.profile(kernels.matmul, _spec(128, 1), _spec(128, 512), target=target),
        trnx.profile(
            kernels.products,
            _spec(128, 128, dtype=bf16),
            _spec(128, 512, dtype=bf16),
            300,
            target=target,
        ),
        trnx.profile(kernels.scale, _spec(1024, 2048), True, target=target),
    ):
        _assert_sane(profile)


@settings(max_examples=15, deadline=None)
@given(
    tiles=st.integers(1, 6), more=st.integers(0, 4), columns=st.sampled_from([1, 64, 513, 2048]),
    is_double=st.booleans(), target=st.sampled_from(TARGETS),
)  # fmt: skip
def test_more_rows_take_more_time(
    kernels: ModuleType, tiles: int, more: int, columns: int, is_double: bool, target: str
) -> None:
    few = trnx.profile(kernels.scale, _spec(tiles * 128, columns), is_double, target=target)
    many = trnx.profile(
        kernels.scale, _spec((tiles + more) * 128, columns), is_double, target=target
    )
    assert many.total_seconds >= few.total_seconds
    wide = trnx.profile(kernels.scale, _spec(tiles * 128, columns * 2), is_double, target=target)
    assert wide.total_seconds >= few.total_seconds
    _assert_sane(few)


@pytest.mark.parametrize("target", TARGETS)
def test_overlap_is_reached_by_double_buffering_and_lost_without(
    kernels: ModuleType, target: str
) -> None:
    x = _spec(64 * 128, 2048)
    serial = trnx.profile(kernels.scale, x, False, target=target)
    overlapped = trnx.profile(kernels.scale, x, True, target=target)
    one = trnx.profile(kernels.scale, _spec(128, 2048), False, target=target)
    # The DMA engines never pause but for the first load's and the last store's latencies.
    assert overlapped.dma_busy > 0.95
    assert overlapped.total_seconds < 0.7 * serial.program_order_seconds
    # The compiler does it where the kernel does not.
    assert serial.total_seconds == overlapped.total_seconds
    assert overlapped.program_order_seconds == overlapped.total_seconds
    # One tile for all: every round is a load, a multiplication and a store, one after the other.
    assert serial.program_order_seconds == pytest.approx(64 * one.total_seconds, rel=0.25)


def test_tensor_engine_runs_without_gaps_after_the_throttle(kernels: ModuleType) -> None:
    bf16 = torch.bfloat16
    profile = trnx.profile(
        kernels.products, _spec(128, 128, dtype=bf16), _spec(128, 512, dtype=bf16), 1000
    )
    ideal = 1000 * 512 / 2.4e9
    # Half rate during 3 us costs 1.5 us; then load, drain, copy and store: a few us.
    assert profile.throttled_seconds == pytest.approx(1.5e-6)
    assert ideal + 1.5e-6 < profile.total_seconds < ideal + 12e-6
    # Float32 takes four times as long.
    wide = trnx.profile(kernels.products, _spec(128, 128), _spec(128, 512), 1000)
    assert wide.busy("tensor") == pytest.approx(4 * ideal + 1.5e-6, rel=0.001)


def test_stores_of_neighbouring_columns_do_not_wait_for_each_other(kernels: ModuleType) -> None:
    program = trace(kernels.columns, [_spec(128, 8 * 512)])
    result = schedule(program.rows, hardware("trn2"))
    stores = [p for p, row in enumerate(result.order) if program.rows[row].operands[1].is_write
              and "hbm" in program.rows[row].operands[1].buffer.value]  # fmt: skip
    assert len(stores) == 8
    assert all(
        result.start[after] < result.visible[before] for before, after in itertools.pairwise(stores)
    )


def test_a_load_waits_for_the_store_of_what_it_loads(kernels: ModuleType) -> None:
    program = trace(kernels.through_hbm, [_spec(128, 64)])
    result = schedule(program.rows, hardware("trn2"))
    assert all(result.start[i + 1] >= result.visible[i] for i in range(3))


def test_a_dependent_activation_waits_and_tables_are_loaded_once(kernels: ModuleType) -> None:
    language = load_module(Path(__file__).with_name("timing_kernels.py")).nl
    same = trnx.profile(kernels.chain, _spec(128, 1), (language.exp,) * 4)
    mixed = trnx.profile(kernels.chain, _spec(128, 1), (language.exp, language.gelu) * 2)
    plain = trnx.profile(kernels.chain, _spec(128, 1), (language.copy,) * 4)
    loads = (same.total_seconds - plain.total_seconds) * 1e9
    assert loads == pytest.approx(1280, abs=0.01)
    assert (mixed.total_seconds - plain.total_seconds) * 1e9 == pytest.approx(4 * 1280, abs=0.01)


def test_register_loops_count_every_trip(kernels: ModuleType) -> None:
    few = trnx.profile(kernels.loop, _spec(128, 512), 2)
    many = trnx.profile(kernels.loop, _spec(128, 512), 10)
    assert few.is_exact
    assert many.is_exact
    assert (few.instructions, many.instructions) == (4, 12)
    assert many.busy("vector") == pytest.approx(5 * few.busy("vector"))


@pytest.mark.parametrize("target", TARGETS)
def test_equal_programs_have_equal_times(kernels: ModuleType, target: str) -> None:
    first, second = (
        trnx.profile(kernels.matmul, _spec(512, 128), _spec(512, 512), target=target)
        for _ in range(2)
    )
    assert json.dumps(first.to_dict()) == json.dumps(second.to_dict())
    assert first.matmul_flops == 2 * 512 * 128 * 512
    assert first.hbm_bytes == 4 * (512 * 128 + 512 * 512 + 128 * 512)


def test_text_names_engines_and_lines(kernels: ModuleType) -> None:
    profile = trnx.profile(kernels.matmul, _spec(256, 128), _spec(256, 512), target="trn2")
    text = str(profile)
    assert "matmul on trn2" in text
    assert "tensor" in text
    assert "timing_kernels.py" in text
    assert profile.arithmetic_intensity > 1


def test_a_kernel_without_instructions_takes_no_time(kernels: ModuleType) -> None:
    from trnx.simulator.program.instruction_table import InstructionTable

    assert kernels is not None
    assert schedule(InstructionTable(), hardware("trn2")).total_ps == 0
