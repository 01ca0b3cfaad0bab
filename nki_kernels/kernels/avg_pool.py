"""`avg_pool`: the mean of each window over the last two or three dimensions, also adaptive pooling.

`x[..., H, W]` or `x[..., D, H, W]` in float32, bfloat16 or float16. Sums are float32 and are
multiplied by the reciprocal of their count along each dimension; it differs where windows hang over
the edge. Adaptive pooling is taken where the sizes are multiples of the result's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._pooling import (
    Scale,
    Window,
    Windows,
    blocks_of,
    pool_kernel,
    reject_windows,
    windows_of,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_NAMES = (
    "kernel_size",
    "stride",
    "padding",
    "ceil_mode",
    "count_include_pad",
    "divisor_override",
    "output_size",
    "spatial",
)


def _result(b: Bindings) -> tuple[int, ...]:
    x = torch.empty(b.x.shape, dtype=b.x.dtype, device="meta")
    shape: tuple[int, ...] = tuple(reference(x, **{name: b[name] for name in _NAMES}).shape)
    return shape


def _windows(b: Bindings) -> Windows:
    if b.output_size is None:
        each = (b.kernel_size, b.stride, b.padding, [1])
        return windows_of(b.x.shape, _result(b), b.spatial, *each)
    result = _result(b)
    size = [x // y for x, y in zip(b.x.shape[-b.spatial :], result[-b.spatial :], strict=True)]
    return windows_of(b.x.shape, result, b.spatial, size, size, [0], [1])


def _scales(windows: Windows, b: Bindings) -> tuple[tuple[Scale, ...], ...]:
    """What the sums along each dimension are multiplied by, for runs of equal outputs."""
    if b.divisor_override is not None:
        return (((0, windows.counts[0], 1.0 / b.divisor_override),), (), ())
    axes = zip(windows.sizes, windows.counts, windows.windows, strict=True)
    counted = [_counted(*axis, bool(b.count_include_pad)) for axis in axes]
    if all(len(set(counts)) == 1 for counts in counted):
        divisor = math.prod(counts[0] for counts in counted)
        return (((0, windows.counts[0], 1.0 / divisor),), (), ())
    return tuple(_runs(counts) for counts in counted)


def _counted(size: int, count: int, window: Window, pads: bool) -> list[int]:
    """Elements of each window along one dimension, as eager counts them."""
    reach, stride, padding, _ = window
    starts = [o * stride - padding for o in range(count)]
    ends = [min(start + reach, size + padding) for start in starts]
    if not pads:
        return [min(e, size) - max(s, 0) for s, e in zip(starts, ends, strict=True)]
    return [e - s for s, e in zip(starts, ends, strict=True)]


def _runs(counts: list[int]) -> tuple[Scale, ...]:
    runs, start = [], 0
    for number, group in itertools.groupby(counts):
        stop = start + len(list(group))
        if number != 1:
            runs.append((start, stop, 1.0 / number))
        start = stop
    return tuple(runs)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, sizes that adaptive pooling divides, and the size of a window's rows."""
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} is empty")
    if b.spatial == 3 and b.output_size is None and b.x.dtype is not torch.float32:
        return Reject(f"avg_pool3d is not implemented for {b.x.dtype} in eager, which raises")
    if b.output_size is not None:
        result = _result(b)
        pairs = zip(b.x.shape[-b.spatial :], result[-b.spatial :], strict=True)
        if any(y == 0 or x % y for x, y in pairs):
            return Reject(f"x{b.x.shape} is no multiple of the output size {b.output_size}")
    return reject_windows(_windows(b), b.x.dtype.itemsize, hw)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The windows, and how many outputs of the first dimensions a tile has."""
    windows = _windows(b)
    blocks = blocks_of(windows, b.x.dtype.itemsize, hw)
    constants = (_result(b), windows.sizes, windows.counts, windows.windows, blocks, False)
    return Launch.of(pool_kernel, b, ("x",), *constants, _scales(windows, b))


def cost(b: Bindings) -> Cost:
    """One addition for each position of each window, and a product."""
    result = math.prod(_result(b))
    positions = math.prod(size for size, *_ in _windows(b).windows)
    moved = b.x.nbytes + result * b.x.dtype.itemsize
    return Cost(vector_flops=result * (positions + 1), hbm_bytes=moved)


def reference(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    output_size: list[int] | None,
    spatial: int,
) -> torch.Tensor:
    """aten.avg_pool2d or avg_pool3d, or the adaptive form where there is an `output_size`."""
    result: torch.Tensor
    if output_size is not None:
        op = aten._adaptive_avg_pool2d if spatial == 2 else aten._adaptive_avg_pool3d
        result = op.default(x, output_size)
        return result
    op = aten.avg_pool2d if spatial == 2 else aten.avg_pool3d
    last = (ceil_mode, count_include_pad, divisor_override)
    result = op.default(x, kernel_size, stride, padding, *last)
    return result


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and planes, padding counted or not, overhanging windows, three dimensions."""

    def sample(
        note: str,
        *shape: int,
        size: int = 3,
        stride: int = 2,
        padding: int = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        output_size: list[int] | None = None,
        spatial: int = 2,
        dtype: torch.dtype = torch.float32,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).to(dtype)
        numbers = {"kernel_size": size, "stride": stride, "padding": padding}
        values = {
            "x": x,
            **{name: [number] * spatial for name, number in numbers.items()},
            "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad,
            "divisor_override": divisor_override,
            "output_size": output_size,
            "spatial": spatial,
        }
        return Sample(values, note)

    for rows in (1, 127, 128, 129):
        yield sample(f"{rows} rows", 1, rows, 9, 7)
    yield sample("no batch", 3, 8, 8, size=2, padding=0)
    yield sample("several blocks", 2, 3, 150, 112)
    yield sample("padding not counted", 2, 3, 13, 12, count_include_pad=False)
    yield sample("several blocks, padding not counted", 2, 3, 150, 112, count_include_pad=False)
    yield sample("overhanging windows", 2, 3, 10, 12, ceil_mode=True)
    yield sample("a divisor of its own", 2, 3, 10, 12, divisor_override=7)
    yield sample("side by side", 2, 3, 14, 13, size=3, stride=3, padding=0)
    yield sample("one by one", 2, 3, 5, 5, size=1, stride=1, padding=0)
    yield sample("three dimensions", 2, 3, 6, 9, 8, spatial=3, count_include_pad=False)
    yield sample("adaptive", 2, 3, 14, 21, output_size=[7, 7])
    yield sample("adaptive, three dimensions", 2, 3, 4, 6, 9, output_size=[2, 3, 3], spatial=3)
    yield sample("adaptive, no multiple", 2, 3, 10, 10, output_size=[3, 3])
    for dtype in (torch.bfloat16, torch.float16):
        yield sample(f"{dtype}", 2, 40, 14, 14, dtype=dtype)


def _avg_pool2d(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    last = (ceil_mode, count_include_pad, divisor_override)
    return aten.avg_pool2d.default(x, kernel_size, stride, padding, *last)


def _avg_pool3d(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    last = (ceil_mode, count_include_pad, divisor_override)
    return aten.avg_pool3d.default(x, kernel_size, stride, padding, *last)


def _adaptive2d(x: torch.Tensor, output_size: list[int]) -> Any:
    return aten._adaptive_avg_pool2d.default(x, output_size)


def _adaptive3d(x: torch.Tensor, output_size: list[int]) -> Any:
    return aten._adaptive_avg_pool3d.default(x, output_size)


_PLAIN = {"output_size": None}
_ADAPTIVE = {
    "kernel_size": [1],
    "stride": [],
    "padding": [0],
    "ceil_mode": False,
    "count_include_pad": True,
    "divisor_override": None,
}

register(
    KernelSpec(
        name="avg_pool",
        patterns=(
            Pattern(_avg_pool2d, {**_PLAIN, "spatial": 2}),
            Pattern(_avg_pool3d, {**_PLAIN, "spatial": 3}),
            Pattern(_adaptive2d, {**_ADAPTIVE, "spatial": 2}),
            Pattern(_adaptive3d, {**_ADAPTIVE, "spatial": 3}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=pool_kernel,
        launch=launch,
    )
)
