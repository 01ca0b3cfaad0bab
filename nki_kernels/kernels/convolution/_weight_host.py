"""What `convolution_weight_gradient` matches, takes and costs; its reference and samples."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._turned import splits_images
from trnx.nki_kernels.kernels.convolution._weight_product import BANKS
from trnx.nki_kernels.kernels.convolution._windows import Window, output_size
from trnx.nki_kernels.spec import Bindings, Cost, Sample
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


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Ragged edges of channels and positions, every geometry."""

    def sample(
        note: str,
        x: tuple[int, ...],
        weight: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        **more: Any,
    ) -> Sample:
        dims = len(x) - 2
        how: dict[str, Any] = {
            "stride": [1] * dims, "padding": [0] * dims, "dilation": [1] * dims,
            "transposed": False, "output_padding": [0] * dims, "groups": 1,
        } | more  # fmt: skip
        out = [
            output_size(
                Window(x[2 + i], 0, weight[2 + i], how["stride"][i], how["padding"][i],
                       how["dilation"][i], how["transposed"]),
                how["output_padding"][i],
            )
            for i in range(dims)
        ]  # fmt: skip
        channels = weight[1] * how["groups"] if how["transposed"] else weight[0]
        tensors = {
            "grad": torch.randn((x[0], channels, *out), generator=generator).to(dtype),
            "x": torch.randn(x, generator=generator).to(dtype),
            "weight": torch.randn(weight, generator=generator).to(dtype),
        }
        positions = x[0] * math.prod(x[2:] if how["transposed"] else out)
        error = 4e-7 * positions**0.5 * math.log2(2 + positions)
        return Sample(tensors | {"bias_sizes": None} | how, note, error)

    for size in (1, 2, 127, 128, 129):
        yield sample(f"{size} channels", (1, size, 5, 6), (3, size, 3, 3), padding=[1, 1])
        yield sample(f"{size} out channels", (1, 4, 5, 6), (size, 4, 3, 3), padding=[1, 1])
    yield sample("1x1", (2, 130, 7, 9), (140, 130, 1, 1))
    # Transposed by DMA: images of whole chunks of positions, and with a rest.
    half: dict[str, Any] = {"dtype": torch.bfloat16}
    for size in (1, 127, 129):
        yield sample(f"1x1, {size} channels of 2 bytes", (3, size, 13, 11), (5, size, 1, 1), **half)
        yield sample(f"1x1, {size} of 2 bytes out", (2, 6, 8, 16), (size, 6, 1, 1), **half)
    for images in (1, 2, 5):
        yield sample(f"1x1, {images} small images of 2 bytes", (images, 140, 7, 7),
                     (20, 140, 1, 1), **half)  # fmt: skip
    # Between images that share the partitions lie some with zeros, where as many fit.
    yield sample("1x1, odd channels between zeros", (4, 141, 7, 7), (129, 141, 1, 1), **half)
    yield sample("1x1, images of 36 positions", (5, 20, 6, 6), (131, 20, 1, 1), **half)
    yield sample("1x1, images of half the partitions", (3, 40, 8, 8), (130, 40, 1, 1), **half)
    yield sample("1x1, images of few positions", (50, 6, 2, 2), (5, 6, 1, 1), **half)
    yield sample("1x1, many of 2 bytes", (3, 140, 16, 20), (700, 140, 1, 1), **half)
    # Whose last positions TensorE transposes: few channels in a chunk, one image, an odd number.
    for x, out in (((8, 257, 12, 11), 3), ((1, 1030, 20, 21), 5), ((5, 40, 13, 13), 500)):
        yield sample(f"1x1, {x[0]} images whose ends are transposed", x, (out, x[1], 1, 1), **half)
    yield sample("1x1, groups of 2 bytes", (2, 12, 13, 12), (6, 4, 1, 1), groups=3, **half)
    yield sample("1d, 1 wide, 2 bytes", (3, 20, 300), (9, 20, 1), **half)
    # Rows of images that are contracted as they are; the window has more channels, or fewer.
    yield sample("stem of wide images", (3, 3, 40, 41), (130, 3, 7, 7), stride=[2, 2],
                 padding=[3, 3])  # fmt: skip
    for size in (32, 64):  # products run side by side
        yield sample(f"stem of {size} channels", (4, 3, 40, 100), (size, 3, 5, 5), stride=[2, 2],
                     padding=[2, 2])  # fmt: skip
    yield sample("few out channels, wide", (3, 130, 9, 50), (4, 130, 3, 3), padding=[1, 1])
    yield sample("wide, dilation", (2, 6, 12, 53), (3, 6, 3, 2), dilation=[2, 3], padding=[2, 1])
    yield sample("wide, 129 rows of 2 bytes", (2, 5, 131, 52), (7, 5, 3, 3), padding=[0, 2], **half)
    yield sample("wide, 33 images", (33, 2, 6, 48), (3, 2, 3, 3), padding=[1, 1], **half)
    yield sample("wide, transposed", (2, 5, 7, 30), (5, 3, 3, 3), stride=[2, 2], padding=[1, 1],
                 transposed=True)  # fmt: skip
    yield sample("513 columns", (1, 2, 2, 513), (3, 2, 1, 3))
    yield sample("many planes", (40, 66, 3, 4), (5, 66, 2, 2))
    yield sample("stride", (2, 66, 9, 11), (6, 66, 3, 3), stride=[2, 2], padding=[1, 1])
    yield sample("stem", (2, 3, 21, 20), (8, 3, 7, 7), stride=[2, 2], padding=[3, 3])
    yield sample("dilation", (1, 7, 13, 12), (4, 7, 3, 2), dilation=[2, 3], padding=[2, 1])
    yield sample("padding beyond the kernel", (1, 6, 2, 3), (4, 6, 2, 2), padding=[3, 3])
    yield sample("bfloat16", (2, 70, 9, 8), (130, 70, 3, 3), torch.bfloat16, padding=[1, 1])
    yield sample("many channels", (1, 140, 4, 4), (700, 140, 3, 3), padding=[1, 1])
    yield sample("1d", (3, 20, 70), (9, 20, 5), stride=[2], padding=[2])
    yield sample("3d", (2, 6, 5, 6, 7), (4, 6, 3, 3, 3), padding=[1] * 3, stride=[2, 1, 2])
    yield sample("transposed", (2, 66, 5, 6), (66, 7, 3, 3), stride=[2, 2], padding=[1, 1],
                 output_padding=[1, 1], transposed=True)  # fmt: skip
    yield sample("groups", (2, 12, 7, 6), (6, 4, 3, 3), groups=3, padding=[1, 1])
    yield sample("groups of 70", (1, 140, 5, 4), (144, 70, 2, 2), groups=2)
    yield sample("many groups", (1, 270, 5, 4), (135, 2, 3, 3), torch.bfloat16, groups=135)
    yield sample("depthwise", (2, 129, 6, 5), (129, 1, 3, 3), groups=129, padding=[1, 1])
    # Strips of rows are contracted as they are.
    for size in (32, 127, 129):
        yield sample(f"depthwise, {size} of 2 bytes", (2, size, 9, 10), (size, 1, 3, 3),
                     groups=size, padding=[1, 1], **half)  # fmt: skip
    yield sample("depthwise, 2 bytes, stride", (3, 40, 15, 17), (40, 1, 5, 3), groups=40,
                 padding=[2, 1], stride=[2, 2], **half)  # fmt: skip
    yield sample("depthwise, 2 bytes, dilation", (2, 33, 12, 9), (33, 1, 2, 3), groups=33,
                 padding=[1, 2], dilation=[1, 2], **half)  # fmt: skip
    yield sample("depthwise, 2 bytes, transposed", (2, 48, 6, 7), (48, 1, 3, 3), groups=48,
                 padding=[1, 1], stride=[2, 2], transposed=True, **half)  # fmt: skip
    yield sample("strips of rows, 2 bytes", (8, 33, 14, 28), (64, 33, 3, 3), padding=[1, 1], **half)
    yield sample("depthwise, 2 each", (2, 7, 9, 8), (14, 1, 3, 3), groups=7, stride=[2, 2])
    yield sample("depthwise 7x7", (1, 20, 9, 8), (20, 1, 7, 7), groups=20, padding=[3, 3])
    yield sample("depthwise 1d", (2, 5, 300), (5, 1, 4), groups=5, padding=[3])
    yield sample("transposed, groups", (2, 12, 5, 6), (12, 3, 3, 3), groups=4, stride=[2, 2],
                 transposed=True)  # fmt: skip
