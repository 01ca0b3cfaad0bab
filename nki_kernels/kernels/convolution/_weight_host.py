"""What `convolution_weight_gradient` matches, takes and costs; its reference."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._turned import splits_images
from trnx.nki_kernels.kernels.convolution._weight_product import BANKS
from trnx.nki_kernels.kernels.convolution._windows import Window
from trnx.nki_kernels.spec import Bindings, Cost
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

# Bytes of a partition for a block of the window, and for one of the gradient.
_BLOCK_BYTES = 4096
_FLAT_BYTES = 12288
_TURNED_BYTES = 8192
_MOST_BYTES = 49152
# For transposes that several passes over the positions use: of the gradient, and of the window.
_KEPT_BYTES, _KEPT_WINDOW_BYTES = 32768, 49152


def windows_of(b: Bindings) -> list[Window]:
    """The windows of the axes that the kernel mixes, as of a convolution that is not transposed."""
    dense, window = (b.x, b.grad) if b.transposed else (b.grad, b.x)
    found = []
    for i in range(b.x.ndim - 2):
        stride, padding, dilation = (
            v[i if len(v) > 1 else 0] for v in (b.stride, b.padding, b.dilation)
        )
        kernel, out = b.weight.shape[2 + i], dense.shape[2 + i]
        found.append(Window(window.shape[2 + i], out, kernel, stride, padding, dilation, False))
    return found


def _axes(b: Bindings) -> list[Window]:
    windows = windows_of(b)
    images = Window(b.x.shape[0], b.x.shape[0], 1, 1, 0, 1, False)
    one = Window(1, 1, 1, 1, 0, 1, False)
    return {1: [images, *windows, one], 2: [images, *windows], 3: windows}[len(windows)]


def groups_together(b: Bindings, hw: Hardware) -> int:
    """Groups whose channels fit the rows and the columns of one product; fewer where cores would
    have uneven numbers of several products.
    """
    rows, columns = b.weight.shape[0] // b.groups, b.weight.shape[1]
    most = int(min(b.groups, max(1, hw.partitions // max(rows, columns))))
    products = -(-b.groups // most)
    if products == 1 or products % hw.cores == 0:
        return most
    return int(-(-b.groups // (-(-products // hw.cores) * hw.cores)))


def _rows(b: Bindings, hw: Hardware) -> int:
    """Channels of the gradient in one product."""
    return int(b.weight.shape[0] // b.groups * groups_together(b, hw))


def _is_flat(axes: list[Window]) -> bool:
    """A 1x1 kernel: all positions of a block share the partitions, 128 by 128."""
    return all(axis.kernel == 1 and axis.padding == 0 for axis in axes)


def turns_by_dma(b: Bindings, hw: Hardware) -> bool:
    """Whether DMA transposes: the elements of two bytes of a 1x1 kernel that takes all of them, of
    images that fill more than half of the partitions, or several of which do.
    """
    axes = _axes(b)
    is_dense = _is_flat(axes) and all(axis.stride == 1 and axis.out == axis.size for axis in axes)
    positions = axes[1].out * axes[2].out
    stacked = min(axes[0].out, hw.partitions // positions) * positions
    fills = positions >= hw.partitions or stacked > hw.partitions // 2
    return bool(hw.generation >= 3 and b.x.ndim < 5 and b.x.dtype.itemsize == 2) and (
        is_dense and fills
    )


def _turned_images(b: Bindings, hw: Hardware) -> int:
    """Images of a block whose transposes DMA brings: more than a trigger takes the time of, and two
    blocks or more unless all images are small.
    """
    axes = _axes(b)
    channels = max(_rows(b, hw), b.weight.shape[1] * groups_together(b, hw))
    positions = axes[1].out * axes[2].out
    if splits_images(axes[0].out, positions, channels, hw.partitions):
        return axes[0].out
    some = max(1, hw.partitions // positions)  # on the partitions at once
    if some > 1:
        # Of a pass: transfers of fewer images would take less time than their triggers.
        channels = min(channels, float32_per_bank(hw))
    each = int(max(1, positions // hw.partitions) * channels * b.x.dtype.itemsize)
    groups = -(-axes[0].out // some)
    most = groups if groups * each <= _BLOCK_BYTES else -(-groups // 2)
    return some * max(1, min(_TURNED_BYTES // each, most))


def _flat_planes(b: Bindings, hw: Hardware) -> int:
    """Planes of a block whose positions fill the partitions best; few, if several do."""
    axes = _axes(b)
    positions = axes[1].out * axes[2].out

    def waste(planes: int) -> float:
        used = planes * positions
        return round(-(-used // hw.partitions) * hw.partitions / used, 1)

    fits = [
        n
        for n in range(1, axes[0].out + 1)
        if n == 1 or _block_bytes(b, [n, axes[1].out], hw) <= _FLAT_BYTES
    ]
    return min(fits, key=waste)


def _even(size: int, most: int) -> int:
    """The largest of the parts, nearly even, of at most so many."""
    return -(-size // -(-size // max(1, most)))


def _tiles(b: Bindings, axes: list[Window], hw: Hardware) -> list[int]:
    """Planes, rows and columns that share the partitions: what takes TensorE least time. The rows
    lie `turns` apart, so that kernel rows share transposes, of which more turns need fewer.
    """
    columns = _even(axes[2].out, hw.partitions)
    pieces = -(-axes[2].out // columns)
    most = hw.partitions // columns if pieces == 1 else 1
    several = {_even(axes[0].out, n) for n in range(1, max(1, most) + 1)}
    planes = min(sorted(several, reverse=True), key=lambda n: _columns_taken(b, axes, n, hw))
    left = hw.partitions // (planes * columns) if pieces == 1 else 1
    return [planes, _even(axes[1].out, left), columns]


def _columns_taken(b: Bindings, axes: list[Window], planes: int, hw: Hardware) -> float:
    """Moving columns of TensorE where so many planes share the partitions."""
    columns = _even(axes[2].out, hw.partitions)
    products = -(-_rows(b, hw) // hw.partitions)
    width = b.weight.shape[1] * groups_together(b, hw)
    chunks = -(-width // hw.partitions)
    rows = 1
    if columns == axes[2].out:
        rows = _even(axes[1].out, hw.partitions // (planes * columns))
    turns = -(-axes[1].out // rows)
    each = 0.0
    for turn in range(turns):
        used = planes * columns * ((axes[1].out - 1 - turn) // turns + 1)
        # Products of 64 rows of the array or fewer run at half rate (docs/timing.md).
        slow = 2 if used <= hw.partitions // 2 else 1
        each += slow * products * width * axes[0].kernel * axes[1].kernel * axes[2].kernel
        each += products * hw.partitions
    inputs = (turns - 1) * axes[1].stride + (axes[1].kernel - 1) * axes[1].dilation + 1
    taken = min(inputs, turns * axes[1].kernel)
    each += taken * axes[0].kernel * axes[2].kernel * chunks * hw.partitions
    return float(-(-axes[0].out // planes) * each)


def tensor_seconds(b: Bindings, hw: Hardware) -> float:
    """Of the products and transposes, position by position."""
    axes = _axes(b)
    return _columns_taken(b, axes, _tiles(b, axes, hw)[0], hw) / hw.pe_clock


def plan(b: Bindings, hw: Hardware) -> tuple[tuple[int, ...], ...]:
    """The fields of the kernel's axes."""
    axes = _axes(b)
    tiles = _tiles(b, axes, hw)
    block = [tiles[0], tiles[1]]
    for i in (1, 0):
        while block[i] < axes[i].out and (i == 1 or block[1] >= axes[1].out):
            block[i] += tiles[i]
            if _block_bytes(b, block, hw) > _BLOCK_BYTES:
                block[i] -= tiles[i]
                break
    if turns_by_dma(b, hw):
        block = [_turned_images(b, hw), axes[1].out]
    elif _is_flat(axes) and block[1] >= axes[1].out:
        block[0] = _flat_planes(b, hw)
    sizes = [*(min(n, axis.out) for n, axis in zip(block, axes, strict=False)), axes[2].out]
    return tuple(
        (a.out, a.size, a.kernel, a.stride, a.padding, a.dilation, size, tile)
        for a, size, tile in zip(axes, sizes, tiles, strict=True)
    )


def keeps(b: Bindings, numbers: tuple[tuple[int, ...], ...], hw: Hardware) -> tuple[bool, bool]:
    """Whether transposes of the gradient, and of the window, are kept for the next pass."""
    volumes = b.x.shape[0] if b.x.ndim == 5 else 1
    itemsize = b.x.dtype.itemsize
    places = volumes * math.prod(-(-axis[0] // axis[7]) for axis in numbers)
    channels = min(_rows(b, hw), BANKS * hw.partitions)
    gradient = places * channels * itemsize
    # The window's rows, for each of the places that have the same rows.
    out, _, kernel, stride, _, dilation, block, tile = numbers[1]
    taps = math.prod(axis[2] for axis in numbers)
    width = min(hw.partitions, b.weight.shape[1] * groups_together(b, hw))
    most = max(width, float32_per_bank(hw) // taps)
    turns = -(-block // tile)
    rows = -(-out // block) * ((turns - 1) * stride + (kernel - 1) * dilation + 1)
    others = math.prod(-(-axis[0] // axis[7]) * axis[2] for axis in (numbers[0], numbers[2]))
    window = volumes * rows * others * most * itemsize
    return gradient <= _KEPT_BYTES, window <= _KEPT_WINDOW_BYTES


def _block_bytes(b: Bindings, block: list[int], hw: Hardware) -> int:
    """Bytes of a partition for a block of so many planes and rows."""
    axes = _axes(b)
    counts = [*block, axes[2].out]
    window = 1
    dense: int = min(BANKS, -(-_rows(b, hw) // hw.partitions))
    for axis, count in zip(axes, counts, strict=True):
        window *= (count - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
        dense *= count
    return max(window, dense) * int(b.x.dtype.itemsize)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, one to three dimensions, blocks that fit SBUF."""
    if reject := reject_dtypes(b, "x"):
        return reject
    for name in ("grad", "weight"):
        if b[name].dtype != b.x.dtype:
            return Reject(f"{name} is {b[name].dtype} but x is {b.x.dtype}; one dtype is needed")
    if b.x.ndim not in (3, 4, 5) or b.weight.ndim != b.x.ndim:
        return Reject(f"x{b.x.shape} and weight{b.weight.shape}: 1 to 3 dimensions are possible")
    if min(b.x.numel, b.grad.numel, b.weight.numel) == 0:
        return Reject(f"an empty convolution: x{b.x.shape}, weight{b.weight.shape}")
    block = [int(axis[6]) for axis in plan(b, hw)[:2]]
    if (needed := _block_bytes(b, block, hw)) > _MOST_BYTES:
        return Reject(
            f"x{b.x.shape}: the smallest block takes {needed} bytes of a partition of SBUF, more "
            f"than {_MOST_BYTES}"
        )
    return None


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; grad and x are read once, the result is written."""
    dense = b.x if b.transposed else b.grad
    each = b.weight.numel // b.weight.shape[0]
    return Cost(
        matmul_flops=2 * dense.numel * each,
        vector_flops=b.weight.numel,
        hbm_bytes=b.x.nbytes + b.grad.nbytes + b.weight.nbytes,
    )


def reference(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    """The same in float32, rounded once."""
    how = (stride, padding, dilation, transposed, output_padding, groups)
    wide = (t.float() for t in (grad, x, weight))
    mask = [False, True, False]
    result: torch.Tensor = aten.convolution_backward.default(*wide, bias_sizes, *how, mask)[1]
    return result.to(x.dtype)


def pattern(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    """The gradient of the weight alone."""
    how = (stride, padding, dilation, transposed, output_padding, groups)
    found = aten.convolution_backward.default(
        grad, x, weight, bias_sizes, *how, [False, True, False]
    )
    return operator.getitem(found, 1)
