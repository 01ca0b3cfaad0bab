"""Samples of max pooling and of its gradient: the same windows, other tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from trnx.nki_kernels.spec import Sample

# The tensors of a sample: (shape of x, dtype, the windows' lists, ceil_mode) -> values by name.
SampleTensors = Callable[
    [tuple[int, ...], torch.dtype, dict[str, list[int]], bool], dict[str, torch.Tensor]
]


def window_sample(
    tensors: SampleTensors,
    note: str,
    *shape: int,
    size: int = 3,
    stride: int = 2,
    padding: int = 1,
    dilation: int = 1,
    ceil_mode: bool = False,
    spatial: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Sample:
    """A sample of max pooling, or of its gradient, with equal windows in all dimensions."""
    numbers = {"kernel_size": size, "stride": stride, "padding": padding, "dilation": dilation}
    lists = {name: [number] * spatial for name, number in numbers.items()}
    values = tensors(shape, dtype, lists, ceil_mode)
    return Sample({**values, **lists, "ceil_mode": ceil_mode, "spatial": spatial}, note)


def window_samples(tensors: SampleTensors) -> Iterator[Sample]:
    """Edges of rows and planes, padding, dilation, overhanging windows, dtypes."""
    sample = functools.partial(window_sample, tensors)
    for rows in (1, 127, 128, 129):
        yield sample(f"{rows} rows", 1, rows, 9, 7)
    yield sample("no batch", 3, 8, 8, size=2, padding=0)
    yield sample("several blocks", 2, 3, 150, 112)
    yield sample("windows that overlap in every input", 2, 3, 13, 13, size=5, stride=1, padding=2)
    yield sample("windows apart from each other", 2, 3, 16, 16, size=2, stride=3, padding=0)
    yield sample("dilation", 2, 3, 20, 21, dilation=2, padding=1)
    yield sample("overhanging windows", 2, 3, 10, 11, size=2, padding=0, ceil_mode=True)
    yield sample("one window", 2, 3, 5, 5, size=5, stride=5, padding=0)
    yield sample("a window larger than the plane", 2, 3, 2, 2, size=4, stride=2, padding=2)
    yield sample("three dimensions", 2, 3, 6, 9, 8, spatial=3)
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 2, 40, 14, 14, dtype=dtype)
