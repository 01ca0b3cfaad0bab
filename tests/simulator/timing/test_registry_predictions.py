"""Predictions of every registered kernel: sane, and exact where repetition is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings, KernelSpec, Sample
from trnx.simulator import Program, TensorSpec, trace
from trnx.simulator.hardware import TRN1, TRN2, TRN3, Hardware
from trnx.simulator.timing.schedule import Schedule
from trnx.simulator.timing.scheduler import schedule

CHIPS = (TRN1, TRN2, TRN3)
SAMPLES = 4  # of each kernel
SPECS = list(kernels())


def _samples(spec: KernelSpec) -> list[Sample]:
    every = list(spec.samples(torch.Generator().manual_seed(0)))
    return every[:: max(1, len(every) // SAMPLES)][:SAMPLES]


def _bindings(sample: Sample) -> Bindings:
    return Bindings(
        {
            name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
            for name, value in sample.values.items()
        }
    )


def _programs(spec: KernelSpec, chip: Hardware) -> Iterator[Program]:
    for sample in _samples(spec):
        bindings = _bindings(sample)
        if spec.supports(bindings, chip) is None:
            launch = spec.launch(bindings, chip)
            yield trace(launch.kernel, launch.arguments, target=chip.target)


def _assert_sane(program: Program, result: Schedule, chip: Hardware) -> None:
    seconds = result.total_ps / 1e12
    peak = 2 * chip.partitions**2 * chip.pe_clock
    assert seconds >= program.matmul_flops / peak * (1 - 1e-9)
    # HBM traffic, and that of the DMA engines; a picosecond of rounding for each instruction.
    slack = len(result.order) * 1e-12
    assert seconds + slack >= result.hbm_bytes / chip.hbm_stack_bytes_per_second
    assert result.dma_busy_ps <= chip.dma_engines * result.total_ps
    for q, busy in result.busy_ps.items():
        assert busy + sum(result.stalled_ps[q].values()) <= result.total_ps
    for p in range(len(result.order)):
        assert 0 <= result.start[p] < result.free[p] <= result.visible[p] + _slack(result, p)
    path = result.critical_path()
    assert sum(until - result.start[p] for p, until in path) + result.start[path[-1][0]] == (
        result.total_ps
    )


def _slack(result: Schedule, position: int) -> int:
    """A queue may be taken for longer than the result takes to be seen: a DMA's trigger."""
    return result.cost(position).interval


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_predictions_are_sane(spec: KernelSpec) -> None:
    seen = 0
    for chip in CHIPS:
        for program in _programs(spec, chip):
            result = schedule(program.rows, chip)
            _assert_sane(program, result, chip)
            seen += 1
    assert seen


def _linear(rows: int, depth: int, columns: int, dtype: torch.dtype, chip: Hardware) -> int:
    bindings = Bindings(
        {
            "x": TensorSpec.dense((rows, depth), dtype),
            "weight": TensorSpec.dense((columns, depth), dtype),
            "bias": None,
            "residual": None,
            "activation": "none",
        }
    )
    spec = next(spec for spec in SPECS if spec.name == "linear")
    launch = spec.launch(bindings, chip)
    program = trace(launch.kernel, launch.arguments, target=chip.target)
    skipping = schedule(program.rows, chip)
    assert skipping.visible == schedule(program.rows, chip, skips=False).visible
    return skipping.total_ps


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.target)
def test_larger_products_take_longer(chip: Hardware) -> None:
    base = (512, 512, 512)
    for dtype in (torch.float32, torch.bfloat16):
        least = _linear(*base, dtype, chip)
        for axis in range(3):
            sizes = list(base)
            sizes[axis] *= 3
            assert _linear(*sizes, dtype, chip) > least
    assert _linear(*base, torch.float32, chip) > _linear(*base, torch.bfloat16, chip)


def _row_kernel(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Bindings:
    x, vector = TensorSpec.dense(shape, dtype), TensorSpec.dense(shape[-1:], dtype)
    rest = {
        "softmax": {"dim": len(shape) - 1, "half_to_float": False, "is_log": False},
        "rms_norm": {
            "residual": None,
            "weight": vector,
            "eps": 1e-6,
            "offset": 0.0,
            "rounds": False,
            "returns_sum": False,
        },
    }[name]
    return Bindings({"x": x, **rest})


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    tiles=st.integers(1, 6), more=st.integers(1, 4), columns=st.sampled_from([1, 65, 513, 2048]),
    name=st.sampled_from(["softmax", "rms_norm"]), chip=st.sampled_from(CHIPS),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_more_data_takes_more_time(
    tiles: int, more: int, columns: int, name: str, chip: Hardware, dtype: torch.dtype
) -> None:
    spec = next(spec for spec in SPECS if spec.name == name)
    times = []
    # Whole tiles: a kernel may need one pass more for 200 rows than for 256.
    for count in (128 * tiles, 128 * tiles * (1 + more)):
        bindings = _row_kernel(name, (count, columns), dtype)
        if spec.supports(bindings, chip) is not None:
            return
        launch = spec.launch(bindings, chip)
        program = trace(launch.kernel, launch.arguments, target=chip.target)
        result = schedule(program.rows, chip)
        _assert_sane(program, result, chip)
        times.append(result.total_ps)
    assert times[1] >= times[0]
