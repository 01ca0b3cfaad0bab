"""Kernels on both cores of a logical core: values of one core, and no finding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from trnx.backend.kernel_samples import operands, samples_of
from trnx.nki_kernels import registry
from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import KernelSpec, Launch, Sample
from trnx.simulator import load_module, simulate
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import TRN2

TWO = replace(TRN2, cores=2)
shares: Any = load_module(Path(registry.__file__).parent / "kernels" / "_cores.py")
# Sums over rows are sums of both cores' sums; and the CPU's own products, with which TensorE is
# simulated, depend on their number of rows in the last bit.
_INEXACT = {
    *("bmm", "column_sum", "convolution", "convolution_weight_gradient", "cross_entropy"),
    *("gated_mlp", "grouped_mm", "grouped_mm_weight_gradient", "layer_norm_backward", "linear"),
    *("linear_activation", "linear_activation_backward", "linear_layer_norm"),
    *("linear_weight_gradient", "mlp_layer_norm"),
    *("norm_linear", "recurrent_backward", "sum_of_linears", "three_linears"),
    *("sdpa", "sdpa_backward"),
}


def results(launch: Launch, sample: Sample) -> tuple[Any, ...]:
    """What the kernel returns, all checks on: races between the cores among them."""
    grid = launch.grid if launch.grid > 1 else None
    found = simulate(launch.kernel, grid=grid)(*operands(launch, sample))
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def compare(spec: KernelSpec, number: int) -> Launch | None:
    """Sample `number` on one core, on both, and on the first of both."""
    one, two = (list(samples_of(spec, hw))[number] for hw in (TRN2, TWO))
    sample, alone = one
    shared = two[1]
    if isinstance(alone, Reject) or isinstance(shared, Reject):
        assert isinstance(alone, Reject) == isinstance(shared, Reject), spec.name
        return None
    wanted, found = results(alone, sample), results(shared, sample)
    for one_core, both in zip(wanted, found, strict=True):
        rounding = 0.0
        if spec.name in _INEXACT and both.dtype.is_floating_point:
            rounding = 16 * torch.finfo(both.dtype).eps
        scale = float(one_core.double().nan_to_num(0, 0, 0).abs().max()) if both.numel() else 0.0
        torch.testing.assert_close(
            both, one_core, equal_nan=True, rtol=rounding, atol=rounding * scale
        )
    return shared


_SPECS = [spec for spec in kernels() if spec.builtin]
_BY_NAME = pytest.mark.parametrize("spec", _SPECS, ids=[spec.name for spec in _SPECS])
# Writes of these have an order, and rows are single elements.
_ALONE = {"scatter"}


@_BY_NAME
def test_a_sample_on_both_cores(spec: KernelSpec) -> None:
    compare(spec, len(list(samples_of(spec, TRN2))) // 2)


@pytest.mark.slow
@_BY_NAME
def test_every_sample_on_both_cores(spec: KernelSpec) -> None:
    found = [compare(spec, number) for number in range(len(list(samples_of(spec, TRN2))))]
    launches = [launch for launch in found if launch is not None]
    assert all(launch.grid == 2 for launch in launches)
    assert not launches or (spec.name in _ALONE) == all(one.cores == 1 for one in launches)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 513])
@pytest.mark.parametrize("unit", [1, 64, 128])
@pytest.mark.parametrize("cores", [1, 2])
def test_shares_cover_everything_once(count: int, unit: int, cores: int) -> None:
    parts = []
    for program in range(2):
        with mock.patch.object(shares.nl, "program_id", lambda _, number=program: number):
            parts.append(shares.share_of(count, cores, unit))
    (first, middle), (again, end) = parts
    assert (first, end) == (0, count)
    assert middle == again
    assert middle % unit == 0 or middle == count
    if cores == 1:
        assert middle == count
    else:
        assert abs((middle - first) - (end - again)) < 2 * unit
