"""Kernels on their own samples: operands as a kernel takes them, and how far results may differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

SEED = 20


def samples_of(spec: KernelSpec, hw: Hardware) -> Iterator[tuple[Sample, Launch | Reject]]:
    """The kernel's samples, contiguous as on a device, with their launch or why there is none."""
    for sample in spec.samples(torch.Generator().manual_seed(SEED)):
        values = {
            name: TensorSpec.dense(value.shape, value.dtype)
            if isinstance(value, torch.Tensor)
            else value
            for name, value in sample.values.items()
        }
        b = Bindings(values)
        yield sample, spec.supports(b, hw) or spec.launch(b, hw)


def operands(launch: Launch, sample: Sample) -> list[Any]:
    """The launch's arguments with the sample's tensors: contiguous, with a dimension, int64 as
    pairs of words, bool as bytes."""
    names = iter(launch.tensor_names)
    return [
        _in_kernel_form(sample.values[next(names)], argument)
        if isinstance(argument, TensorSpec)
        else argument
        for argument in launch.arguments
    ]


def _in_kernel_form(value: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    value = value.contiguous()
    if value.dtype == torch.bool:
        value = value.to(torch.uint8)
    elif value.dtype == torch.int64:
        value = value.unsqueeze(-1).view(torch.int32)
        return value.reshape(*spec.shape, 2) if spec.dtype == torch.int64 else value
    return value.reshape(spec.shape or (1,))


@dataclass(frozen=True)
class Difference:
    """Between results and what was expected. `largest` is the largest absolute difference,
    `allowed` how much may be; `problem` says what is wrong, and is empty where nothing is."""

    largest: float = 0.0
    allowed: float = 0.0
    problem: str = ""


def difference(results: Any, expected: Any, sample: Sample) -> Difference:
    """Float32 sums in any order, one rounding to the result's dtype, and what the sample allows."""
    found, wanted = _as_tuple(results), _as_tuple(expected)
    if len(found) != len(wanted):
        return Difference(problem=f"{len(found)} results, and {len(wanted)} are expected")
    sizes = [n for v in sample.values.values() if isinstance(v, torch.Tensor) for n in v.shape]
    each = [
        _of_one(one, other, max(sizes, default=1), sample.error)
        for one, other in zip(found, wanted, strict=True)
    ]
    wrong = next((d for d in each if d.problem), None)
    return wrong or max(each, key=lambda d: d.largest, default=Difference())


def _as_tuple(results: Any) -> tuple[torch.Tensor, ...]:
    several: Sequence[Any] = results if isinstance(results, (tuple, list)) else (results,)
    return tuple(map(torch.as_tensor, several))


def _of_one(found: torch.Tensor, wanted: torch.Tensor, depth: int, error: float) -> Difference:
    if wanted.dtype == torch.bool and found.dtype == torch.uint8:
        found = found.bool()
    elif wanted.dtype == torch.int64 and found.shape == (*wanted.shape, 2):
        found = found.contiguous().view(torch.int64).squeeze(-1)
    if found.dtype != wanted.dtype or found.shape != (wanted.shape or found.shape[:1]):
        is_, should = f"{found.dtype} {tuple(found.shape)}", f"{wanted.dtype} {tuple(wanted.shape)}"
        return Difference(problem=f"a result is {is_}, and {should} is expected")
    one, other = found.reshape(wanted.shape).double(), wanted.double()
    finite = other.isfinite()
    if not torch.equal(one[~finite].nan_to_num(7.0), other[~finite].nan_to_num(7.0)):
        return Difference(problem="NaN or infinity where the other has none")
    gaps, scale = (one - other)[finite].abs(), other[finite].abs()
    largest = float(gaps.max()) if gaps.numel() else 0.0
    if not wanted.dtype.is_floating_point:
        return Difference(largest, 0.0, _too_far(largest, 0.0) if largest else "")
    sums = torch.finfo(torch.float32).eps * (8 + math.sqrt(depth))
    allowed = sums * (float(scale.max()) if gaps.numel() else 0.0) + error
    over = gaps - 2 * torch.finfo(wanted.dtype).eps * scale
    is_far = bool((~(over <= allowed)).any())
    return Difference(largest, allowed, _too_far(largest, allowed) if is_far else "")


def _too_far(largest: float, allowed: float) -> str:
    return f"values differ by up to {largest:.3g}, and {allowed:.3g} besides rounding is allowed"
