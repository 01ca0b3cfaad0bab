"""Workloads of scans and of integers for `kernels.py`: name, function, inputs, bytes, and the share
of the DMA bound that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

_COUNTS = (4096, 2048)


class Workload(NamedTuple):
    """One row of `kernels.py` whose limit is DMA."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    nbytes: float
    bar: float


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, count: int = 1) -> Callable[[], Any]:
    def make() -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        drawn = (torch.randint(-99, 99, shape, generator=generator) for _ in range(count))
        return tuple(x.to(dtype) for x in drawn)

    return make


def workloads() -> Iterator[Workload]:
    """Scans along rows and columns, and integer chains of models."""
    elements = _COUNTS[0] * _COUNTS[1]
    float32 = _numbers(_COUNTS, torch.float32)
    bfloat16 = _numbers(_COUNTS, torch.bfloat16)
    int64 = _numbers(_COUNTS, torch.int64)
    two = _numbers(_COUNTS, torch.int64, 2)
    name = "x".join(map(str, _COUNTS))
    yield Workload(f"cumsum {name} bf16", lambda x: x.cumsum(-1), bfloat16, 4 * elements, 0.30)
    yield Workload(f"cumsum {name} fp32", lambda x: x.cumsum(-1), float32, 8 * elements, 0.82)
    yield Workload(f"cumsum {name} int64", lambda x: x.cumsum(-1), int64, 16 * elements, 0.10)
    yield Workload(f"cumsum {name} dim 0", lambda x: x.cumsum(0), float32, 8 * elements, 0.15)
    yield Workload(f"cummax {name} fp32", lambda x: x.cummax(-1), float32, 16 * elements, 0.30)
    yield Workload(
        f"logcumsumexp {name} fp32", lambda x: x.logcumsumexp(-1), float32, 8 * elements, 0.20
    )
    yield Workload(f"int64 add {name}", lambda x, y: x + y, two, 24 * elements, 0.30)
    yield Workload(f"int64 to float {name}", lambda x: x.float(), int64, 12 * elements, 0.30)
    yield Workload(f"int64 mask {name}", lambda x: x != 0, int64, 9 * elements, 0.30)
    yield Workload(f"int64 count {name}", lambda x: (x != 0).sum(-1), int64, 8 * elements, 0.30)
