"""How a convolution of one channel a group is blocked (host side)."""

from __future__ import annotations

import math

from trnx.nki_kernels.kernels.convolution._depthwise import ROUND
from trnx.nki_kernels.kernels.convolution._windows import Window, trivial
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Outputs of a block on a partition: so many that the start of an instruction costs little, and so
# few that there is a round of blocks or more; more where a kernel position has a part of them.
_MOST_OUTPUTS, _FEWEST_OUTPUTS, _MOST_SPREAD = 1024, 256, 2048
_ROUNDS = 1
# Elements that the start of an instruction of VectorE takes the time of.
_START = 73


def _has_images(b: Bindings, windows: list[Window], hw: Hardware) -> bool:
    """Whether images are an axis of a partition, by the elements that instructions work on."""
    if len(windows) == 3:
        return False
    outputs = math.prod(window.out for window in windows)
    images, channels = b.x.shape[:2]

    def work(rows: int, elements: int) -> int:
        starts = -(-elements // _MOST_OUTPUTS) * _START
        return -(-rows // hw.partitions) * (elements + starts)

    return work(channels, images * outputs) <= work(images * channels, outputs)


def is_depthwise(b: Bindings) -> bool:
    """Whether every input channel is a group."""
    return bool(b.groups == b.x.shape[1] and b.groups > 1)


def _outputs(b: Bindings, axes: list[Window], has_images: bool, hw: Hardware) -> int:
    """Outputs of a block that make `_ROUNDS` rounds for each core, within limits."""
    rows = b.x.shape[1] * (1 if has_images else b.x.shape[0])
    every = -(-rows // hw.partitions) * math.prod(axis.out for axis in axes)
    wanted: int = every // (_ROUNDS * ROUND * hw.cores)
    is_spread = b.transposed and math.prod(axis.stride for axis in axes) > 1
    is_narrow = b.x.dtype.itemsize == 2 and b.residual is None
    most = _MOST_SPREAD if is_spread and is_narrow else _MOST_OUTPUTS
    return int(min(most, max(_FEWEST_OUTPUTS, wanted)))


def depthwise_plan(
    b: Bindings, windows: list[Window], hw: Hardware
) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """The fields of the kernel's axes, and whether the first one is that of the images."""
    has_images = _has_images(b, windows, hw)
    images = trivial(b.x.shape[0] if has_images else 1)
    axes = [images, *[trivial(1)] * (2 - len(windows)), *windows][-3:]
    left = _outputs(b, axes, has_images, hw)
    blocks: list[int] = []
    for window in reversed(axes):
        pieces = -(-window.out // max(1, left))
        blocks.insert(0, -(-window.out // pieces))
        left //= blocks[0]
    numbers = tuple(
        (w.out, w.size, w.kernel, w.stride, w.padding, w.dilation, block)
        for w, block in zip(axes, blocks, strict=True)
    )
    return numbers, has_images


def depthwise_bytes(b: Bindings, windows: list[Window], hw: Hardware) -> int:
    """Bytes of a partition for the input, the sums, a product and the results of a block, and for
    the sums of the round before it.
    """
    numbers, _ = depthwise_plan(b, windows, hw)
    inputs, outputs, size_of = 1, 1, int(b.x.dtype.itemsize)
    for out, size, kernel, stride, _, dilation, block in numbers:
        reach = (kernel - 1) * dilation
        count = (block + reach) // stride + 2 if b.transposed else (block - 1) * stride + reach + 1
        inputs *= min(size, count)
        outputs *= min(out, block)
    kernels: int = b.weight.numel // b.groups
    results = (2 if b.residual is not None else 1) * size_of
    return ROUND * (inputs * size_of + outputs * (8 + results)) + 2 * outputs * 4 + kernels * 6
