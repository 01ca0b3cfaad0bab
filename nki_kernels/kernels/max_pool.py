"""`max_pool`: the largest value of each window over the last two or three dimensions.

`x[..., H, W]` or `x[..., D, H, W]` in float32, bfloat16 or float16, any size, stride, padding and
dilation of the window; NaN wins, as in eager. Where the indices of the maxima are used, it is
`max_pool_indices`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._pooling import (
    Windows,
    blocks_of,
    pool_kernel,
    reject_windows,
    windows_of,
)
from trnx.nki_kernels.kernels._pooling_samples import window_sample, window_samples
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_NO_SCALES: tuple[tuple[Any, ...], ...] = ((), (), ())


def _result(b: Bindings) -> tuple[int, ...]:
    x = torch.empty(b.x.shape, dtype=b.x.dtype, device="meta")
    shape: tuple[int, ...] = tuple(_call(b, x).shape)
    return shape


def _call(b: Bindings, x: torch.Tensor) -> torch.Tensor:
    return reference(x, b.kernel_size, b.stride, b.padding, b.dilation, b.ceil_mode, b.spatial)


def _windows(b: Bindings) -> Windows:
    each = (b.kernel_size, b.stride, b.padding, b.dilation)
    return windows_of(b.x.shape, _result(b), b.spatial, *each)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, and the size of a window's rows."""
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} is empty")
    return reject_windows(_windows(b), b.x.dtype.itemsize, hw)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The windows, and how many outputs of the first dimensions a tile has."""
    windows = _windows(b)
    blocks = blocks_of(windows, b.x.dtype.itemsize, hw)
    constants = (_result(b), windows.sizes, windows.counts, windows.windows, blocks, True)
    return Launch.of(pool_kernel, b, ("x",), *constants, _NO_SCALES)


def cost(b: Bindings) -> Cost:
    """One comparison for each position of each window."""
    result = math.prod(_result(b))
    positions = math.prod(size for size, *_ in _windows(b).windows)
    moved = b.x.nbytes + result * b.x.dtype.itemsize
    return Cost(vector_flops=result * positions, hbm_bytes=moved)


def reference(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    spatial: int,
) -> torch.Tensor:
    """The values of aten.max_pool2d_with_indices or its three-dimensional form."""
    op = aten.max_pool2d_with_indices if spatial == 2 else aten.max_pool3d_with_indices
    values: torch.Tensor = op.default(x, kernel_size, stride, padding, dilation, ceil_mode)[0]
    return values


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and planes, padding, dilation, overhanging windows, three dimensions."""

    def tensors(
        shape: tuple[int, ...], dtype: torch.dtype, lists: dict[str, list[int]], ceil_mode: bool
    ) -> dict[str, torch.Tensor]:
        del lists, ceil_mode
        return {"x": torch.randn(shape, generator=generator).to(dtype)}

    yield from window_samples(tensors)
    yield window_sample(
        tensors, "planes that do not fit", 1, 2, 7, 96, 150, size=3, dilation=3, spatial=3
    )
    special = window_sample(tensors, "infinities", 2, 3, 9, 9)
    special.values["x"][0, 1], special.values["x"][1, 0, 2] = float("-inf"), float("inf")
    yield special


def _max_pool2d(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Any:
    args = (x, kernel_size, stride, padding, dilation, ceil_mode)
    return aten.max_pool2d_with_indices.default(*args)[0]


def _max_pool3d(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Any:
    args = (x, kernel_size, stride, padding, dilation, ceil_mode)
    return aten.max_pool3d_with_indices.default(*args)[0]


register(
    KernelSpec(
        name="max_pool",
        patterns=(Pattern(_max_pool2d, {"spatial": 2}), Pattern(_max_pool3d, {"spatial": 3})),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=pool_kernel,
        launch=launch,
    )
)
