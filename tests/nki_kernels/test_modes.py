"""Both modes of tracing give equal Programs for every registered kernel, which replay alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings, KernelSpec, Sample
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.listing import listing

NAMES = [spec.name for spec in registry.kernels()]


def _compare(spec: KernelSpec, sample: Sample, target: str) -> bool:
    """False where the kernel does not take the sample on the target."""
    bindings = Bindings(
        {
            name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
            for name, value in sample.values.items()
        }
    )
    if spec.supports(bindings, hardware(target)) is not None:
        return False
    launch = spec.launch(bindings, hardware(target))
    names = iter(launch.tensor_names)
    arguments: list[Any] = [
        sample.values[next(names)] if isinstance(argument, TensorSpec) else argument
        for argument in launch.arguments
    ]
    without = simulator.trace(launch.kernel, launch.arguments, target=target)
    with_values = simulator.trace(launch.kernel, arguments, target=target, values=True)
    assert listing(without) == listing(with_values)
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    for one, other in zip(without.run(tensors), with_values.run(tensors), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return True


@pytest.mark.parametrize("name", NAMES)
def test_both_modes_record_equal_programs(name: str) -> None:
    spec = registry.kernels()[name]
    samples = list(spec.samples(torch.Generator().manual_seed(7)))
    taken = [_compare(spec, sample, "trn2") for sample in samples]
    assert any(taken)
    for target in ("trn1", "trn3"):
        _compare(spec, samples[0], target)
